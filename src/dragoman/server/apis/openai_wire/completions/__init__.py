"""Completions."""
