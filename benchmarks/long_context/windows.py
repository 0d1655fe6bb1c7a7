"""Times steps of a model in which five layers of six have a window, beside the same model without windows.

Does: build both with random weights, fill their caches with copies of a short prompt, time bare steps on the kernels: with
tables that leave out what lies before the windows, as the engine's do, with tables of everything, and without windows.
Does not: run engines, or print. Used by `__main__`.

More blocks are named than there are where memory is short, as `filled_runner` does.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.long_context.filled_runner import MAX_POSITION, prompt_batch
from benchmarks.serving.model import BenchShape, model_config
from benchmarks.shapes import RandomSource
from dragoman.engine.rolling.blocks.block_manager import blocks_for, first_visible_block
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import BlockTables, ForwardBatch
from dragoman.models import BLOCK_SIZE, ModelOptions
from dragoman.models.families import read_model
from dragoman.models.loader import compile_source

WINDOW = 512  # tokens: that of Gemma 3 1B
_PERIOD = 6  # of which the last layer sees everything
_FIRST_BLOCKS = 4
_WARM_UP_STEPS = 2
_GIB = 1024**3


class WindowRunner:
    """A Gemma 3 of the numbers that speed is measured on, over a full cache; `has_windows` or not. Raises: ModelError."""

    def __init__(self, kv_type: Any, memory_gb: float, num_layers: int | None = None, *, has_windows: bool) -> None:
        shape = BenchShape(max_position=MAX_POSITION)
        shape = replace(shape, num_layers=num_layers or shape.num_layers)
        kinds = ["full_attention" if (n + 1) % _PERIOD == 0 else "sliding_attention" for n in range(shape.num_layers)]
        config = model_config(shape) | {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": shape.head_size,
            "sliding_window": WINDOW,
            "layer_types": kinds if has_windows else ["full_attention"] * shape.num_layers,
        }
        loaded = compile_source(read_model(config), RandomSource(), ModelOptions(kv_type=kv_type))
        self._num_blocks = int(memory_gb * _GIB / sum(loaded.block_bytes))
        self._runner = OpenVinoRunner(loaded, self._num_blocks)
        self._runner.forward(prompt_batch(0, _FIRST_BLOCKS * BLOCK_SIZE))
        copies = [(block % _FIRST_BLOCKS, block) for block in range(_FIRST_BLOCKS, self._num_blocks)]
        for kind in range(len(self._runner.pools)):
            self._runner.copy_blocks(copies, kind)

    def batch(self, streams: int, context: int, *, is_whole: bool = False) -> ForwardBatch:
        """A step of so many sequences whose last token is the `context`-th; `is_whole`: with tables of everything."""
        first, *others = [self._tables(streams, context, 0 if is_whole else pool.window) for pool in self._runner.pools]
        rows = np.arange(streams + 1)
        return ForwardBatch(
            input_ids=np.full(streams, 3, dtype=np.int64),
            position_ids=np.full(streams, context - 1, dtype=np.int64),
            past_lens=first.past_lens,
            subsequence_begins=rows.astype(np.int32),
            block_indices=first.block_indices,
            block_indices_begins=first.block_indices_begins,
            logit_indices=rows[:-1],
            max_context_len=context,
            more_tables=tuple(others),
        )

    def _tables(self, streams: int, context: int, window: int) -> BlockTables:
        first = first_visible_block(context - 1, window, BLOCK_SIZE)
        each = blocks_for(context, BLOCK_SIZE) - first
        return BlockTables(
            past_lens=np.full(streams, context - 1 - first * BLOCK_SIZE, dtype=np.int32),
            block_indices=(np.arange(streams * each) % self._num_blocks).astype(np.int32),
            block_indices_begins=(np.arange(streams + 1) * each).astype(np.int32),
        )

    def step_ms(self, batch: ForwardBatch, num_steps: int) -> float:
        """The median of so many."""
        times = []
        for _ in range(_WARM_UP_STEPS + num_steps):
            begin = time.perf_counter()
            self._runner.forward(batch)
            times.append(1000 * (time.perf_counter() - begin))
        return statistics.median(times[_WARM_UP_STEPS:])

    def close(self) -> None:
        """Release the model and the cache."""
        self._runner.close()
