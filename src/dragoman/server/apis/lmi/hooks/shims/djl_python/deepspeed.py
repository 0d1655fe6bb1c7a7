"""LMI's `djl_python.deepspeed`."""

from dragoman.server.apis.lmi.hooks.service import Service


class DeepSpeedService(Service):
    """LMI's handler for DeepSpeed, answered by the served model."""


__all__ = ["DeepSpeedService"]
