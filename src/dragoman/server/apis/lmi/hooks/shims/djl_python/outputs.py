"""LMI's `djl_python.outputs`."""

from dragoman.server.apis.lmi.hooks.outputs import Output

__all__ = ["Output"]
