"""Times steps of a model in which every layer has a window: they should cost the same behind any context.

Does: build it with random weights, fill its cache with copies of a short prompt, time bare steps on the kernels, whose
tables leave out what lies before the windows, as the engine's do. Does not: run engines, or print. Used by `contenders`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.long_context.filled_runner import MAX_POSITION, fill, step_ms
from benchmarks.serving.model import BenchShape, model_config
from benchmarks.shapes import RandomSource
from dragoman.engine.rolling.blocks.block_manager import blocks_for
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import BLOCK_SIZE, ModelOptions
from dragoman.models.families import read_model
from dragoman.models.loader import compile_source

WINDOW = 512  # tokens


class WindowRunner:
    """A Mistral of the numbers that speed is measured on, with a cache for `streams`. Raises: ModelError."""

    def __init__(self, kernels: Any, kv_type: Any, streams: int, num_layers: int | None = None) -> None:
        shape = BenchShape(max_position=MAX_POSITION)
        config = model_config(replace(shape, num_layers=num_layers or shape.num_layers)) | {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": WINDOW,
        }
        loaded = compile_source(read_model(config), RandomSource(), ModelOptions(kv_type=kv_type, kernels=kernels))
        self.inner = OpenVinoRunner(loaded, streams * (blocks_for(WINDOW, BLOCK_SIZE) + 2))
        fill(self.inner)

    def step_ms(self, streams: int, context: int, num_steps: int) -> float:
        """The median of so many steps behind `context` tokens."""
        return step_ms(self.inner, streams, context, num_steps)

    def close(self) -> None:
        """Release the model and the cache."""
        self.inner.close()
