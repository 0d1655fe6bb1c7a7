"""Clients of other projects, unmodified, against a real server: run by `make test-clients` alone."""
