"""Cores of kernels and of HTTP: lists of cores, what Linux says about them, and which threads run on them."""
