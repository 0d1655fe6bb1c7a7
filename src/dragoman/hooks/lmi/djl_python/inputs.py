"""LMI's `djl_python.inputs`."""

from dragoman.hooks.inputs import Input

__all__ = ["Input"]
