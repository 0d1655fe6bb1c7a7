"""`dragoman completion`: completion scripts for shells."""
