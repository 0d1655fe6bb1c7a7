"""Beam search: a beam's candidates, and which beams live."""
