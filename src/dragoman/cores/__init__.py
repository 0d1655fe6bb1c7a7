"""Cores of kernels and of HTTP: lists, topology, and which threads run where."""
