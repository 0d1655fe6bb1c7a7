"""LMI's `djl_python.fastertransformer`."""

from dragoman.server.apis.lmi.hooks.service import Service


class FasterTransformerService(Service):
    """LMI's handler for FasterTransformer, answered by the served model."""


__all__ = ["FasterTransformerService"]
