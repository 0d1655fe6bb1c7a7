"""Talking to a model from a terminal: `dragoman chat` and `dragoman complete`."""
