"""Measures a layer's experts in the ways in which they can be evaluated, as a table and one last JSON line.

Does: build one layer with the blocks that models use and random weights, and time steps of several sizes. Does not: load a
model. Run by hand; on a machine that is busy read the processor time, not the wall time:

    python -m benchmarks.experts --shape qwen3-30b-a3b --tokens 1 4 16 64 --form own apart dense

Own and apart are those of `dragoman.models.blocks.mlp`, with our kernels and with OpenVINO's; dense computes all experts
for all tokens with OpenVINO's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.kernels.graph import runtime
from dragoman.models import ModelOptions, memory
from dragoman.models.blocks.mlp import ExpertWeights, Routing, evaluate_experts, gated_mlp, route
from dragoman.models.blocks.nodes import add, multiply, split, unsqueeze
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.profile import KernelProfile, Kernels, kernel_profile
from dragoman.models.storage.constants import Node, WeightStorage
from dragoman.models.storage.row_parts import RowParts
from dragoman.models.weights import Weights

NORMALIZED = RoutingRule(is_normalized=True)
SHAPES: dict[str, tuple[int, ExpertFacts]] = {  # hidden size, experts
    "mixtral-8x7b": (4096, ExpertFacts(8, 2, 14336, "silu", NORMALIZED)),
    "gpt-oss-20b": (2880, ExpertFacts(32, 4, 2880, "silu", NORMALIZED)),
    "deepseek-v2-lite": (2048, ExpertFacts(64, 6, 1408, "silu", NORMALIZED)),
    "qwen3-30b-a3b": (2048, ExpertFacts(128, 8, 768, "silu", NORMALIZED)),
    "qwen3-next-80b-a3b": (2048, ExpertFacts(512, 10, 512, "silu", NORMALIZED)),
}
FORMS = ("own", "apart", "dense")
WARM_UP_TOKENS = 512  # so many that every expert gets some, whose first use takes longer


class RandomWeights:
    """Tensors of any name and shape, all cut from the same random numbers."""

    def __init__(self) -> None:
        values = np.random.default_rng(0).standard_normal(1 << 24, dtype=np.float32) * 0.03
        self._pool = values.astype(ml_dtypes.bfloat16)

    def __contains__(self, name: str) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def tensor(self, name: str, shape: tuple[int, ...]) -> Any:
        """The tensor, bf16; another one for another name."""
        size = int(np.prod(shape))
        if len(self._pool) < 2 * size:
            self._pool = np.resize(self._pool, 2 * size)
        begin = hash(name) % (len(self._pool) - size + 1)
        return self._pool[begin : begin + size].reshape(shape)


def layer(form: str, hidden_size: int, facts: ExpertFacts, profile: KernelProfile) -> ov.Model:
    """The graph: x f32 [T, 1, hidden] -> the same."""
    x = ops.parameter(ov.PartialShape([-1, 1, hidden_size]), ov.Type.f32, name="x")
    with RowParts() as parts:
        weights = Weights(RandomWeights(), WeightStorage(profile.weights, parts))
        experts = [
            ExpertWeights(*(weights.at(f"{index}.{name}") for name in ("gate", "up", "down")))
            for index in range(facts.num_experts)
        ]
        routing = route(x.output(0), weights.at("router"), facts)
        evaluate = dense if form == "dense" else evaluate_experts
        result = evaluate(x.output(0), routing, experts, facts)
        parts.finish()
    return ov.Model([result], [x], form)


def dense(x: Node, routing: Routing, weights: Sequence[ExpertWeights], facts: ExpertFacts) -> Node:
    """All experts for all tokens."""
    flags = ops.one_hot(routing.chosen, facts.num_experts, np.float32(1), np.float32(0), 2)
    shares = ops.reduce_sum(ops.multiply(flags, unsqueeze(routing.shares, 2)), np.array([1]), False).output(0)
    total: Node = None
    for expert, share in zip(weights, split(shares, [1] * facts.num_experts), strict=True):
        part = multiply(gated_mlp(x, *expert, facts.inner_size, facts.activation), unsqueeze(share, 2))
        total = part if total is None else add(total, part)
    return total


def measure(compiled: Any, num_tokens: int, hidden_size: int, repeats: int) -> tuple[float, float]:
    """Medians of processor and wall time in milliseconds, each time for other tokens."""
    request, stream = compiled.create_infer_request(), np.random.default_rng(1)
    times = []
    for _ in range(repeats):
        x = stream.standard_normal((num_tokens, 1, hidden_size), dtype=np.float32)
        request.set_input_tensor(ov.Tensor(x))
        begin = time.process_time(), time.perf_counter()
        request.infer()
        times.append((time.process_time() - begin[0], time.perf_counter() - begin[1]))
    processor, wall = zip(*times, strict=True)
    return 1e3 * statistics.median(processor), 1e3 * statistics.median(wall)


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["gpt-oss-20b", "qwen3-30b-a3b"])
    parser.add_argument("--form", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--dtype", default="int8", choices=["int8", "int4", "bf16", "f32"])
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    threads = {"INFERENCE_NUM_THREADS": arguments.threads} if arguments.threads else {}
    memory.bound_shared_cache()
    report: dict[str, Any] = {}
    for shape in arguments.shape:
        hidden_size, facts = SHAPES[shape]
        for form in arguments.form:
            kernels: Kernels = "own" if form == "own" else "openvino"
            profile = kernel_profile(ModelOptions(arguments.dtype, num_threads=arguments.threads, kernels=kernels))
            core = runtime(has_operations=profile.kernels == "own")
            properties = profile.properties | memory.PROPERTIES | threads
            compiled = core.compile_model(layer(form, hidden_size, facts, profile), "CPU", properties)
            measure(compiled, 2 if form == "dense" else WARM_UP_TOKENS, hidden_size, 3)
            for num_tokens in arguments.tokens:
                repeats = max(5, min(40, 100 // num_tokens))
                processor, wall = measure(compiled, num_tokens, hidden_size, repeats)
                report[f"{shape} {form} {num_tokens}"] = {"processor_ms": processor, "wall_ms": wall}
                sys.stdout.write(f"{shape:20} {form:8} {num_tokens:5} tokens {processor:9.2f} ms {wall:9.2f} ms wall\n")
                sys.stdout.flush()
            del compiled
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
