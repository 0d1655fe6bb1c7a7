"""Explains what the server would do with a call, without doing it."""
