"""`dragoman batch`."""
