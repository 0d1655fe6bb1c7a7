"""Beam search, for engines that compute and for those that only ask."""
