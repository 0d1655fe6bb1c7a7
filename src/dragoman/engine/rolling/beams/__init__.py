"""Beam search: a beam's candidates, and the state of a search."""
