"""Measures attention over block tables by kernels of our own and by OpenVINO's, beside what memory gives.

Does: attend in a graph of some layers, whose caches together are larger than the processor's, the two kinds of kernels in
turn; a line for each case, and one last JSON line. Does not: check results (tests/kernels does), or run models. Run by hand,
on an otherwise idle machine:

    python -m benchmarks.attention                                         (about a minute)
    python -m benchmarks.attention --heads 14x2x64 --cache f16 --decode 1x4096 --prompts 512x0
    DRAGOMAN_KERNELS_ISA=avx2 OV_CPU_MAX_ISA=AVX2 python -m benchmarks.attention

Heads are QUERIESxKEYSxSIZE. Decoding is STREAMSxCONTEXT, or STREAMSxCONTEXTxSHARED with so many tokens whose blocks all
streams share. Prompts are TOKENSxPAST. Times are the best: what else runs on the machine only adds to them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from benchmarks.serving import bandwidth
from dragoman.kernels.graph import BLOCK_SLOTS, AttentionLayout, attention, runtime
from dragoman.kernels.native import library
from dragoman.models.blocks.attention import paged_attention
from dragoman.models.blocks.step import BlockTables, cache_parameter
from dragoman.models.facts import AttentionFacts

_COLD_BYTES = 96 << 20  # of all layers' caches: a multiple of the last cache
_MOST_LAYERS = 48
_LEAST_ROUNDS = 3


class Heads(NamedTuple):
    """Heads of queries, of keys, and their size."""

    queries: int
    keys: int
    size: int


class Case(NamedTuple):
    """A step. `context`: tokens before each row's own; `shared`: of these, whose blocks all rows share."""

    num_rows: int
    num_tokens: int
    context: int
    shared: int = 0

    def __str__(self) -> str:
        if self.num_tokens > 1:
            return f"prompt {self.num_tokens} behind {self.context}"
        shared = f", {self.shared} shared" if self.shared else ""
        return f"{self.num_rows} behind {self.context}{shared}"

    def cache_bytes(self, heads: Heads, number_bytes: int) -> int:
        """Keys and values that have to be read once."""
        tokens = self.num_rows * (self.context + self.num_tokens - self.shared) + self.shared
        return tokens * heads.keys * heads.size * 2 * number_bytes

    def operations(self, heads: Heads) -> float:
        """Of products: two for each number of keys and values."""
        pairs = self.num_rows * self.num_tokens * (self.context + (self.num_tokens + 1) / 2)
        return 4.0 * pairs * heads.queries * heads.size


def tables_of(case: Case) -> dict[str, Any]:
    """The inputs of a step that say where its context is."""
    length = case.context + case.num_tokens
    needed, shared = -(-length // BLOCK_SLOTS), case.shared // BLOCK_SLOTS
    numbers = np.random.default_rng(0).permutation(case.num_rows * needed)
    blocks = numbers.reshape(case.num_rows, needed).astype(np.int32)
    blocks[:, :shared] = blocks[0, :shared]
    rows = np.arange(case.num_rows + 1, dtype=np.int32)
    return {
        "positions": np.tile(np.arange(case.context, length), case.num_rows),
        "past": np.full(case.num_rows, case.context, np.int32),
        "begins": rows * np.int32(case.num_tokens),
        "blocks": blocks.ravel(),
        "block_begins": rows * np.int32(needed),
        "longest": np.array(length, np.int32),
    }


class Layers:
    """A compiled graph of layers of attention, of one kind of kernels."""

    def __init__(self, kind: str, heads: Heads, cache_type: str, case: Case, count: int) -> None:
        names = ("past", "begins", "blocks", "block_begins")
        inputs: dict[str, Any] = {"positions": ops.parameter([-1], np.int64)}
        inputs |= {name: ops.parameter([-1], np.int32) for name in names}
        inputs["longest"] = ops.parameter([], np.int32)
        widths = [heads.queries * heads.size, heads.keys * heads.size, heads.keys * heads.size]
        qkv = [ops.parameter([-1, width], np.float32) for width in widths]
        layout = AttentionLayout(*heads, heads.size, cache_type, heads.size**-0.5)
        caches, results = [], []
        nodes = {name: node.output(0) for name, node in inputs.items()}
        for number in range(2 * count):
            shape = [-1, *layout.block_shapes[number % 2]]
            caches.append(ops.parameter(shape, np.uint8) if kind == "own" else cache_parameter(f"cache.{number}"))
        for pair in zip(caches[::2], caches[1::2], strict=True):
            rows = [node.output(0) for node in qkv]
            if kind == "own":
                outputs = (pair[0].output(0), pair[1].output(0))
                results.append(attention(rows, outputs, nodes["positions"], [nodes[name] for name in names], layout))
            else:
                where = BlockTables(nodes["past"], nodes["blocks"], nodes["block_begins"])
                facts = AttentionFacts(*heads, heads.size, heads.size**-0.5)
                results.append(paged_attention(rows, pair, where, (nodes["begins"], nodes["longest"]), facts))
        model = ov.Model(results, [*qkv, *inputs.values(), *caches])
        properties = {
            "INFERENCE_PRECISION_HINT": "bf16" if cache_type == "bf16" else "f32",
            "KV_CACHE_PRECISION": cache_type,
            "KEY_CACHE_QUANT_MODE": "BY_TOKEN",
            "PERFORMANCE_HINT": "LATENCY",
        }
        compiled = runtime(has_operations=kind == "own").compile_model(model, "CPU", properties)
        self.request, self.count = compiled.create_infer_request(), count
        stream, tables = np.random.default_rng(1), tables_of(case)
        num_tokens = case.num_rows * case.num_tokens
        self._values = [stream.standard_normal((num_tokens, width), np.float32) for width in widths]
        self._values += [np.require(tables[name], requirements="C") for name in inputs]
        for index, values in enumerate(self._values):
            self.request.set_input_tensor(index, ov.Tensor(values, shared_memory=True))
        for port in compiled.inputs[len(self._values) :]:
            shape = [len(tables["blocks"]), *(axis.get_length() for axis in list(port.get_partial_shape())[1:])]
            tensor = ov.Tensor(port.get_element_type(), ov.Shape(shape))
            tensor.data.reshape(-1).view(np.uint8)[:] = 0x31  # small numbers of every type
            self.request.set_tensor(port, tensor)
        self.seconds()

    def seconds(self) -> float:
        """Of one layer."""
        begin = time.perf_counter()
        self.request.infer()
        return (time.perf_counter() - begin) / self.count


def measure(heads: Heads, cache_type: str, case: Case, kinds: Sequence[str], seconds: float) -> dict[str, Any]:
    """What a layer's attention takes, by the kinds of kernels in turn."""
    size = {"f32": 4, "u8": 1}.get(cache_type, 2)
    num_bytes = case.cache_bytes(heads, size)
    count = min(max(1, -(-_COLD_BYTES // num_bytes)), _MOST_LAYERS) if case.num_tokens == 1 else 1
    contenders = {kind: Layers(kind, heads, cache_type, case, count) for kind in kinds}
    best = dict.fromkeys(contenders, float("inf"))
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < end:
        for kind, layers in contenders.items():
            best[kind] = min(best[kind], layers.seconds())
        rounds += 1
    found: dict[str, Any] = {"heads": "x".join(map(str, heads)), "cache": cache_type, "case": str(case)}
    for kind, taken in best.items():
        rates = {"gb_per_s": num_bytes / taken / 1e9, "gflop_per_s": case.operations(heads) / taken / 1e9}
        found[kind] = {"ms": 1e3 * taken, **rates}
    return found


def line(found: dict[str, Any]) -> str:
    """A case for people."""
    head = f"{found['heads']:10} {found['cache']:5} {found['case']:28}"
    words = [
        f"{kind} {rates['ms']:8.3f} ms {rates['gb_per_s']:6.1f} GB/s {rates['gflop_per_s']:6.0f} GFLOP/s"
        for kind in ("own", "openvino")
        if (rates := found.get(kind))
    ]
    both = "own" in found and "openvino" in found
    times = [f"{found['openvino']['ms'] / found['own']['ms']:5.2f} times"] if both else []
    return "  ".join([head, *words, *times])


def _numbers(text: str, *counts: int) -> list[int]:
    if re.fullmatch(r"\d+(x\d+)+", text) is None or text.count("x") + 1 not in counts:
        raise argparse.ArgumentTypeError(f"{text!r} must be {' or '.join(map(str, counts))} integers with x between")
    return [int(number) for number in text.split("x")]


def _decode(text: str) -> Case:
    num_rows, context, *shared = _numbers(text, 2, 3)
    return Case(num_rows, 1, context, *shared)


def _prompt(text: str) -> Case:
    num_tokens, past = _numbers(text, 2)
    return Case(1, num_tokens, past)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Attention by kernels of our own and by OpenVINO's.")
    heads = [Heads(14, 2, 64), Heads(32, 8, 128)]
    parser.add_argument("--heads", nargs="+", type=lambda text: Heads(*_numbers(text, 3)), default=heads)
    parser.add_argument("--cache", nargs="+", choices=("f32", "bf16", "f16", "u8"), default=["f16", "u8"])
    decode = ["1x4096", "8x4096", "1x16384", "32x1024", "32x4200x4096"]
    parser.add_argument("--decode", nargs="*", type=_decode, default=list(map(_decode, decode)))
    parser.add_argument("--prompts", nargs="*", type=_prompt, default=list(map(_prompt, ["512x0", "512x7680"])))
    parser.add_argument("--kinds", nargs="+", choices=("own", "openvino"), default=["own", "openvino"])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each case; default: 0.5")
    asked = parser.parse_args(arguments)
    probe = bandwidth.measure(256 << 20)
    sys.stdout.write(f"{library().instruction_set}; memory gives {probe.gb_per_s} GB/s ({probe.kernel})\n")
    result = []
    for shape in asked.heads:
        for cache_type in asked.cache:
            for case in [*asked.decode, *asked.prompts]:
                result.append(measure(shape, cache_type, case, asked.kinds, asked.seconds))
                sys.stdout.write(line(result[-1]) + "\n")
                sys.stdout.flush()
    facts = {
        "instruction_set": library().instruction_set,
        "memory_gb_per_s": probe.gb_per_s,
        "threads": probe.num_threads,
    }
    sys.stdout.write(json.dumps({**facts, "attention": result}) + "\n")


if __name__ == "__main__":
    main()
