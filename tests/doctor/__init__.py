"""`dragoman doctor`."""
