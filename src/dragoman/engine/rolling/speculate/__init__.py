"""Speculative decoding: the proposers, the number of their guesses, and the pauses when they do not pay."""
