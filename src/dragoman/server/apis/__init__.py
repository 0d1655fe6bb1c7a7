"""The client APIs, a folder each."""
