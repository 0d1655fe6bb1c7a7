"""Beam search, for engines that compute and for remote ones."""
