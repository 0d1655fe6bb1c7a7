"""LMI's `djl_python.outputs`."""

from dragoman.hooks.outputs import Output

__all__ = ["Output"]
