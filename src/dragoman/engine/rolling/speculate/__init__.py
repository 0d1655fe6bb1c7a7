"""Speculative decoding: who guesses, how far, and when it is left alone."""
