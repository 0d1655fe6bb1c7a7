"""LMI's `djl_python.tensorrt_llm`."""

from dragoman.server.apis.lmi.hooks.service import Service


class TRTLLMService(Service):
    """LMI's handler for TensorRT-LLM, answered by the served model."""


__all__ = ["TRTLLMService"]
