"""Computes the rolling engine's sizes for a model on this machine. Importing this imports the runtime."""

from __future__ import annotations

from dragoman.engine.base import MemoryNeeds
from dragoman.engine.factory import EngineSetup
from dragoman.engine.rolling.needs import expected_engine, settled_options
from dragoman.models.facts import ExpertFacts
from dragoman.models.profile import kernel_profile
from dragoman.tools.doctor.model import ModelFacts


def expected_model(name: str, setup: EngineSetup, needs: MemoryNeeds, available: int) -> ModelFacts:
    """The model's facts with `available` bytes of memory. Raises: EngineOptionError, ModelError, OSError."""
    options = settled_options(setup)
    engine = expected_engine(setup.model_dir, options, max(available - needs.weights - needs.drafts, 0))
    profile = kernel_profile(options.model_options, has_states=bool(engine.facts.state_layers))
    sizes = zip(engine.num_blocks, engine.shape.block_bytes, strict=True)
    return ModelFacts(
        name=name,
        place=str(setup.model_dir),
        weights_type=options.model_options.weight_type,
        computes_in=profile.inference_type,
        cache_type=profile.kv_type,
        prefix_cache=engine.limits.prefix_cache,
        weights_bytes=needs.weights,
        least_bytes=needs.least,
        cache_bytes=sum(count * size for count, size in sizes),
        cached_tokens=max(engine.num_blocks) * engine.shape.block_size,
        context=engine.limits.max_model_len or engine.facts.max_position,
        reads_all=not any(isinstance(layer.mlp, ExpertFacts) for layer in engine.facts.layers),
    )
