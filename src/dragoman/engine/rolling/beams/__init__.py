"""Beam search: what decides which beams live, and what carries it out."""
