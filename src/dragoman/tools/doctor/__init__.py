"""Examines a machine for this server: what would run and how fast, problems, and remedies."""
