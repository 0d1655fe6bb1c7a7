"""Schemas of what the OpenAI wire format carries."""
