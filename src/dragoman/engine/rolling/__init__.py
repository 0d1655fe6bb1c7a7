"""The rolling-batch engine: every step mixes prompts and decoding sequences of all requests in one forward pass."""

from dragoman.engine.rolling.engine import RollingEngine, default_capabilities
from dragoman.engine.rolling.runner import ForwardBatch, ModelRunner
from dragoman.engine.rolling.sampler import Sampler
from dragoman.engine.rolling.scheduler import EngineStats, RollingConfig

__all__ = [
    "EngineStats",
    "ForwardBatch",
    "ModelRunner",
    "RollingConfig",
    "RollingEngine",
    "Sampler",
    "default_capabilities",
]
