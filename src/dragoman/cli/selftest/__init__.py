"""`dragoman selftest`: tests a model on this machine."""
