"""LMI's `djl_python.huggingface`."""

from dragoman.server.apis.lmi.hooks.service import Service


class HuggingFaceService(Service):
    """LMI's handler for Transformers, vLLM and lmi-dist, answered by the served model."""


__all__ = ["HuggingFaceService"]
