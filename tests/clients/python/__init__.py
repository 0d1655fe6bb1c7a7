"""Clients in Python that go into one environment."""
