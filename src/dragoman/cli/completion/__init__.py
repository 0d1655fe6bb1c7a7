"""`dragoman completion`: scripts by which shells complete the commands."""
