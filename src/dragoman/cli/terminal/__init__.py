"""The terminal commands `dragoman chat` and `dragoman complete`."""
