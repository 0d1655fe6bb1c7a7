"""LMI's `djl_python.inputs`."""

from dragoman.server.apis.lmi.hooks.inputs import Input

__all__ = ["Input"]
