"""The adapters of a rolling engine: their matrices, and their use by requests."""
