"""Measures whether every family decodes as fast as Llama does: bytes of weights read per second, shape by shape.

Does: build models of real shapes with random weights, one for each family of the table, and time bare steps of 1 and of 32
sequences, in turn; a table, and one last JSON line. Does not: run engines, or read checkpoints. Run by hand, on an otherwise
idle machine:

    python -m benchmarks.shapes                       (about 6 GB of memory)
    python -m benchmarks.shapes --only qwen3-0.6b llama-3.2-1b --dtype int4

A lone stream reads every weight once per token. So what a step costs is told as a share of the memory's bandwidth, which
models of different sizes have in common; with 32 streams as tokens per second times the bytes of weights, relative to Llama.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.neighbours import step_of
from benchmarks.serving import bandwidth
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.models import ModelOptions
from dragoman.models.families import read_model
from dragoman.models.loader import compile_source
from dragoman.models.storage.quantize import INT4_GROUP_SIZE

_REFERENCE = "llama-3.2-1b"
_WARM_UP_STEPS = 3
_NUM_VALUES = 1 << 22  # random values, of which every tensor is made: speed does not depend on them

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128_256,
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
    },
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
    },
    "olmo-2-1b": {
        "architectures": ["Olmo2ForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "vocab_size": 100_352,
    },
    "lfm2-1.2b": {
        "architectures": ["Lfm2ForCausalLM"],
        "hidden_size": 2048,
        "block_ff_dim": 12_288,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "rope_theta": 1_000_000.0,
        "vocab_size": 65_536,
    },
    "gemma-3-1b": {
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "vocab_size": 262_144,
        "query_pre_attn_scalar": 256,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "hidden_activation": "gelu_pytorch_tanh",
    },
}
"""Where config.json has it, with the head tied to the embeddings."""


class RandomSource:
    """A source that has every tensor it is asked for, but a head. `shapes`: of the matrices that it has handed out."""

    def __init__(self) -> None:
        values = np.random.default_rng(0).standard_normal(_NUM_VALUES, dtype=np.float32) * np.float32(0.02)
        self._values = values.astype(ml_dtypes.bfloat16)
        self.shapes: dict[str, tuple[int, ...]] = {}

    def __contains__(self, name: str) -> bool:
        return not name.startswith("lm_head")

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Any:
        """Random values, in bf16."""
        self.shapes[name] = shape
        return np.resize(self._values, shape)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model that is ready to run, and the bytes of weights that it reads for a token."""

    runner: OpenVinoRunner
    architecture: str
    weight_bytes: int

    def seconds_per_step(self, batch: ForwardBatch, num_steps: int) -> float:
        """The median."""
        times = []
        for _ in range(num_steps):
            begin = time.perf_counter()
            self.runner.forward(batch)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)


def load(config: dict[str, Any], options: ModelOptions, batches: list[ForwardBatch]) -> Shape:
    """The model of that config."""
    source = RandomSource()
    model = read_model({"max_position_embeddings": 8192, "tie_word_embeddings": True, **config})
    runner = OpenVinoRunner(compile_source(model, source, options), max(len(batch.block_indices) for batch in batches))
    for batch in batches:
        for _ in range(_WARM_UP_STEPS):
            runner.forward(batch)
    matrices = [shape for shape in source.shapes.values() if len(shape) == 2]  # the table is the head's too
    return Shape(
        runner, config["architectures"][0], sum(_stored_bytes(shape, options.weight_type) for shape in matrices)
    )


def _stored_bytes(shape: tuple[int, ...], weight_type: str) -> int:
    """Source: the layouts of `dragoman.models.storage.quantize`."""
    rows, columns = shape
    if weight_type == "int4" and columns % INT4_GROUP_SIZE == 0:
        return rows * columns // 2 + rows * columns // INT4_GROUP_SIZE * 2
    return rows * columns + 3 * rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Whether every family decodes as fast as Llama does.")
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), default=list(SHAPES), metavar="SHAPE")
    parser.add_argument("--dtype", choices=("int8", "int4"), default="int8")
    parser.add_argument("--steps", type=int, default=20, help="for each measurement, of which the median counts")
    parser.add_argument("--rounds", type=int, default=5, help="in turn, of which the median counts")
    asked = parser.parse_args()
    batches = [step_of("1"), step_of("32")]
    options = ModelOptions(weight_type=asked.dtype)
    names = list(dict.fromkeys([_REFERENCE, *asked.only]))
    shapes = {name: load(SHAPES[name], options, batches) for name in names}
    probe = bandwidth.measure()
    times: dict[str, list[list[float]]] = {name: [[], []] for name in names}
    for _ in range(asked.rounds):
        for name, shape in shapes.items():
            for found, batch in zip(times[name], batches, strict=True):
                found.append(shape.seconds_per_step(batch, asked.steps))
    result = {name: _result(shapes[name], times[name], probe.gb_per_s) for name in names}
    sys.stdout.write(f"memory: {probe.gb_per_s} GB/s\n")
    sys.stdout.write(f"{'':14}  MB read  1: tokens/s  share  to Llama  32: tokens/s  GB/s  to Llama\n")
    for name, row in result.items():
        one, many = (row[key] / result[_REFERENCE][key] for key in ("share", "gb_per_s_32"))
        sys.stdout.write(
            f"{name:14} {row['weights_mb']:8.0f} {row['tokens_per_s']:12.1f} {row['share']:6.2f} {one:9.2f}"
            f" {row['tokens_per_s_32']:13.0f} {row['gb_per_s_32']:5.1f} {many:9.2f}\n"
        )
    sys.stdout.write(json.dumps(result) + "\n")


def _result(shape: Shape, times: list[list[float]], gb_per_s: float) -> dict[str, Any]:
    one, many = (statistics.median(rounds) for rounds in times)
    read = shape.weight_bytes / 1e9
    return {
        "architecture": shape.architecture,
        "weights_mb": read * 1e3,
        "tokens_per_s": 1 / one,
        "share": read / one / gb_per_s,
        "tokens_per_s_32": 32 / many,
        "gb_per_s_32": read / many * 32,
    }


if __name__ == "__main__":
    main()
