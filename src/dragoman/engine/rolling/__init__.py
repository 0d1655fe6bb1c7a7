"""The rolling-batch engine: every step mixes prompts and decoding sequences of all requests in one forward pass."""

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.forward.runner import ForwardBatch, ModelRunner
from dragoman.engine.rolling.sample.sampler import Sampler

__all__ = [
    "ForwardBatch",
    "ModelRunner",
    "RollingConfig",
    "RollingEngine",
    "Sampler",
]
