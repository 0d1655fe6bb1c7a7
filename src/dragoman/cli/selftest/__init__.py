"""`dragoman selftest`: whether a model computes on this machine as it should."""
