"""LMI's `djl_python.encode_decode`."""

from dragoman.server.apis.lmi.hooks.content import decode, encode

__all__ = ["decode", "encode"]
