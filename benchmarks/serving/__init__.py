"""Measures servers from outside: load generator, bare kernel loop, peers, report."""
