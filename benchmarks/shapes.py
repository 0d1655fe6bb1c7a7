"""Measures whether every family decodes as fast as a Llama that reads as many bytes of weights, shape by shape.

Does: build models of real shapes with random weights, and beside each a Llama of the same numbers; time bare steps of 1 and
of 32 sequences of the two, in turn; a table, and one last JSON line. Does not: run engines, or read checkpoints. Run by
hand, on an otherwise idle machine:

    python -m benchmarks.shapes                       (about 8 GB of memory)
    python -m benchmarks.shapes --only qwen3-0.6b gemma-3-1b --dtype int4

A lone stream reads every weight once per token. So what a step costs is told as a share of the memory's bandwidth, too.
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
from benchmarks.serving.model import stored_bytes
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.models import ModelOptions
from dragoman.models.families import read_model
from dragoman.models.loader import compile_source

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

_COMMON = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")


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
    model = read_model(_whole(config))
    runner = OpenVinoRunner(compile_source(model, source, options), max(len(batch.block_indices) for batch in batches))
    for batch in batches:
        for _ in range(_WARM_UP_STEPS):
            runner.forward(batch)
    matrices = {name: (shape[0], shape[1]) for name, shape in source.shapes.items() if len(shape) == 2}
    # of the table the head's
    return Shape(runner, sum(stored_bytes(name, shape, options.weight_type) for name, shape in matrices.items()))


def _whole(config: dict[str, Any]) -> dict[str, Any]:
    return {"max_position_embeddings": 8192, **config, "tie_word_embeddings": True}


def twin_of(config: dict[str, Any]) -> dict[str, Any]:
    """A Llama of the same numbers."""
    facts = read_model(_whole(config)).facts
    mlp = facts.layers[0].mlp
    common = {key: config[key] for key in _COMMON if key in config}
    return {**common, "architectures": ["LlamaForCausalLM"], "intermediate_size": mlp.inner_size}


def compare(config: dict[str, Any], asked: argparse.Namespace, gb_per_s: float) -> dict[str, Any]:
    """What steps of the shape and of its twin cost."""
    batches, options = [step_of("1"), step_of("32")], ModelOptions(weight_type=asked.dtype)
    pair = [load(each, options, batches) for each in (config, twin_of(config))]
    times: list[list[list[float]]] = [[[], []], [[], []]]
    for _ in range(asked.rounds):
        for shape, found in zip(pair, times, strict=True):
            for column, batch in zip(found, batches, strict=True):
                column.append(shape.seconds_per_step(batch, asked.steps))
    shape, twin = pair
    one, many = (statistics.median(column) for column in times[0])
    # of each round, so that a machine whose speed changes changes it for both
    ratios = [statistics.median(b / a for a, b in zip(*columns, strict=True)) for columns in zip(*times, strict=True)]
    more_bytes = shape.weight_bytes / twin.weight_bytes
    for each in pair:
        each.runner.close()
    return {
        "architecture": config["architectures"][0],
        "weights_mb": shape.weight_bytes / 1e6,
        "tokens_per_s": 1 / one,
        "share": shape.weight_bytes / one / gb_per_s / 1e9,
        "to_llama": ratios[0] * more_bytes,
        "tokens_per_s_32": 32 / many,
        "to_llama_32": ratios[1] * more_bytes,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Whether every family decodes as fast as a Llama of its size.")
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), default=list(SHAPES), metavar="SHAPE")
    parser.add_argument("--dtype", choices=("int8", "int4"), default="int8")
    parser.add_argument("--steps", type=int, default=5, help="in a row, of which the median counts")
    parser.add_argument("--rounds", type=int, default=16, help="in turn, of whose ratios the median counts")
    asked = parser.parse_args()
    probe = bandwidth.measure()
    sys.stdout.write(f"memory: {probe.gb_per_s} GB/s\n")
    sys.stdout.write(f"{'':14}  MB read  1: tokens/s  share  to Llama  32: tokens/s  to Llama\n")
    result = {}
    for name in asked.only:
        row = result[name] = compare(SHAPES[name], asked, probe.gb_per_s)
        sys.stdout.write(
            f"{name:14} {row['weights_mb']:8.0f} {row['tokens_per_s']:12.1f} {row['share']:6.2f} {row['to_llama']:9.2f}"
            f" {row['tokens_per_s_32']:13.0f} {row['to_llama_32']:9.2f}\n"
        )
        sys.stdout.flush()
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
