"""A fuzz of every API over a real server: `python -m tests.fuzz --cases 100000`."""
