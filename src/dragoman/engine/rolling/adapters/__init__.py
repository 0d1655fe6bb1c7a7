"""The adapters of a rolling engine: what they compute with, and which request uses which."""
