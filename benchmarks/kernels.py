"""Measures products with a matrix by kernels of our own and by OpenVINO's, format by format, beside what the machine can do.

Does: multiply matrices of random bytes in a graph, with 1 to 512 rows, the two kinds of kernels in turn; a table for each
shape, and one last JSON line. Does not: check results (tests/kernels does), or run models (`benchmarks.shapes` does). Run by
hand, on an otherwise idle machine:

    python -m benchmarks.kernels                                      (under two minutes)
    python -m benchmarks.kernels --shapes 2048x8192 --formats int4 Q4_K --rows 1 2 4 --seconds 1
    DRAGOMAN_KERNELS_ISA=avx2 OV_CPU_MAX_ISA=AVX2 python -m benchmarks.kernels       (a processor with AVX2 alone)

A shape is COLUMNSxOUTPUTS. With few rows, matrices of one shape follow each other, so many that each comes from memory; with
many, one stays where it is. Times are the best: what else runs on the machine only adds to them. OpenVINO's kernels are
measured where they have the format. K-quants have blocks of 256 columns, and no shape whose columns do not divide so.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import openvino as ov
from openvino import opset13 as ops

from benchmarks.serving import bandwidth
from dragoman.kernels.graph import PlacedMatrix, products, runtime
from dragoman.kernels.native import CHUNK, Layout, library, of_process
from dragoman.models import ModelOptions
from dragoman.models.blocks.linear import product
from dragoman.models.profile import KernelProfile, kernel_profile
from dragoman.models.sources.base import PackedMatrix, StoredTensor
from dragoman.models.sources.gguf_rows import GGUF_FORMATS
from dragoman.models.storage.constants import WeightStorage
from dragoman.models.storage.groups import INT4_GROUP_SIZE, INT8_GROUP_SIZE
from dragoman.models.storage.row_parts import RowParts

SHAPES = ((896, 9728), (4096, 4096))
ROWS = (1, 2, 4, 8, 16, 32, 128, 512)

_FEW_ROWS = 32  # up to which reading the matrix is what takes time
_COLD_BYTES = 128 << 20  # of all matrices that follow each other: a multiple of the last cache
_SUPER = 256  # columns of a block of K-quants
_LEAST_ROUNDS = 3


class Shape(NamedTuple):
    """The size of a matrix."""

    columns: int
    outputs: int

    def __str__(self) -> str:
        return f"{self.columns}x{self.outputs}"


def formats() -> dict[str, str]:
    """Formats by the names that people know, and what native/formats.hpp calls them; those that the library has."""
    known = {"int4": "i4z", "int8": "i8z", **GGUF_FORMATS}
    known |= {name: known.pop(name.upper()) for name in ("bf16", "f16")}
    number = library().entry("dragoman_format", ctypes.c_int32, ctypes.c_char_p)
    return {name: found for name, found in known.items() if number(found.encode()) >= 0}


def layout_of(name: str, shape: Shape) -> Layout | None:
    """How our kernels have a matrix of that format, None if there is none of that shape."""
    groups = {"int4": INT4_GROUP_SIZE, "int8": INT8_GROUP_SIZE}
    group = _SUPER if name.endswith("_K") else groups.get(name, CHUNK)
    layout = Layout(formats()[name], group, shape.outputs, shape.columns)
    return None if shape.columns % group and name != "int8" else layout


# --- graphs -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Products:
    """A compiled graph that multiplies the same rows with some matrices, each of `num_bytes`."""

    request: Any
    count: int
    num_bytes: int

    def seconds(self, rows: ov.Tensor) -> float:
        """Of one product."""
        begin = time.perf_counter()
        self.request.infer([rows], share_inputs=True, share_outputs=True)
        return (time.perf_counter() - begin) / self.count


def own_products(layout: Layout, count: int) -> Products:
    """By kernels of our own. The bytes are random: those that are scales stand for numbers of usual size."""
    num_bytes, stream = library().packed_bytes(layout), np.random.default_rng(0)
    x = ops.parameter([-1, layout.columns], np.float32)
    results = []
    for _ in range(count):
        memory = of_process(num_bytes)
        memory.data[:] = stream.integers(0x30, 0x40, num_bytes, np.uint8)
        results += products(x.output(0), [PlacedMatrix(memory, layout)])
    return _compiled(x, results, kernel_profile(ModelOptions("int8", kernels="own")), count, num_bytes)


def openvino_products(name: str, shape: Shape, count: int) -> Products | None:
    """By OpenVINO's, as models have them with `--kernels openvino`; None if they do not have the format."""
    matrix = _stored(name, shape, np.random.default_rng(0))
    if matrix is None:
        return None
    weight_type: Any = name if name in ("int4", "bf16", "f16") else "int8"
    profile = kernel_profile(ModelOptions(weight_type, kernels="openvino"))
    x = ops.parameter([-1, shape.columns], np.float32)
    with RowParts() as parts:
        storage = WeightStorage(profile.weights, parts)
        results = [product(x.output(0), matrix, storage) for _ in range(count)]  # each has a copy
        parts.finish()
        return _compiled(x, results, profile, count, _bytes_of(matrix))


def _compiled(x: Any, results: Sequence[Any], profile: KernelProfile, count: int, num_bytes: int) -> Products:
    core = runtime(has_operations=profile.kernels == "own")
    compiled = core.compile_model(ov.Model(list(results), [x]), "CPU", profile.properties)
    return Products(compiled.create_infer_request(), count, num_bytes)


def _stored(name: str, shape: Shape, stream: np.random.Generator) -> StoredTensor | None:
    """A random matrix as OpenVINO's kernels read the format, None if they do not."""
    size = (shape.outputs, shape.columns)
    if name in ("bf16", "f16"):
        kind: Any = ml_dtypes.bfloat16 if name == "bf16" else np.float16
        values: StoredTensor = stream.random(size, np.float32).astype(kind)
        return values
    groups = {"int4": INT4_GROUP_SIZE, "int8": shape.columns, "Q4_0": 32, "Q8_0": 32}
    if name not in groups:
        return None
    bits = 4 if name in ("int4", "Q4_0") else 8
    scales = stream.uniform(0.01, 0.1, (shape.outputs, shape.columns // groups[name])).astype(np.float16)
    if name.startswith("Q") or (name == "int8" and _int8_is_symmetric()):
        most = 1 << (bits - 1)
        return PackedMatrix(stream.integers(-most, most, size, np.int8), scales, bits=bits)
    zeros = np.full(scales.shape, 1 << (bits - 1), np.uint8)
    return PackedMatrix(stream.integers(0, 1 << bits, size, np.uint8), scales, zeros, bits)


def _int8_is_symmetric() -> bool:
    return kernel_profile(ModelOptions("int8", kernels="openvino")).weights.stored_type == "int8_symmetric"


def _bytes_of(matrix: StoredTensor) -> int:
    if not isinstance(matrix, PackedMatrix):
        return int(np.asarray(matrix).nbytes)
    rows, columns = matrix.shape
    zeros = 0 if matrix.zero_points is None else matrix.zero_points.size * matrix.bits // 8
    return rows * columns * matrix.bits // 8 + matrix.scales.size * 2 + zeros


# --- measuring --------------------------------------------------------------------------------------------------------


def measure(name: str, shape: Shape, rows: Sequence[int], seconds: float) -> dict[str, Any] | None:
    """What products of that format and shape take, None if there is no such matrix. `seconds`: for each number of rows."""
    layout = layout_of(name, shape)
    if layout is None:
        return None
    found: dict[str, Any] = {"format": name, "shape": str(shape), "rows": list(rows)}
    times: dict[str, dict[int, float]] = {"own": {}, "openvino": {}}
    for is_few in (True, False):
        chosen = [count for count in rows if (count <= _FEW_ROWS) == is_few]
        if not chosen:
            continue
        copies = max(1, -(-_COLD_BYTES // library().packed_bytes(layout))) if is_few else 1
        kinds = {"own": own_products(layout, copies), "openvino": openvino_products(name, shape, copies)}
        contenders = {kind: made for kind, made in kinds.items() if made is not None}
        for count in chosen:
            for kind, best in _best(contenders, count, shape.columns, seconds).items():
                times[kind][count] = best
        found |= {f"{kind}_bytes": made.num_bytes for kind, made in contenders.items()}
    return found | {kind: _rates(taken, found[f"{kind}_bytes"], shape) for kind, taken in times.items() if taken}


def _best(contenders: dict[str, Products], num_rows: int, columns: int, seconds: float) -> dict[str, float]:
    """The seconds of one product, of each contender; they take turns."""
    values = np.random.default_rng(1).standard_normal((num_rows, columns), np.float32)
    rows, best = ov.Tensor(values), dict.fromkeys(contenders, float("inf"))
    for contender in contenders.values():
        contender.seconds(rows)  # memory for results, kernels for the number of rows
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < end:
        for kind, contender in contenders.items():
            best[kind] = min(best[kind], contender.seconds(rows))
        rounds += 1
    return best


def _rates(taken: dict[int, float], num_bytes: int, shape: Shape) -> dict[str, Any]:
    """Times in milliseconds, and rates, of each number of rows; what 2 and 4 rows take by one."""
    operations = 2e-9 * shape.columns * shape.outputs
    ratios = {f"{count}_by_1": taken[count] / taken[1] for count in (2, 4) if {1, count} <= taken.keys()}
    return {
        "ms": [1e3 * seconds for seconds in taken.values()],
        "gb_per_s": [num_bytes / seconds / 1e9 for seconds in taken.values()],
        "gop_per_s": [operations * count / seconds for count, seconds in taken.items()],
        **ratios,
    }


def table(found: Sequence[dict[str, Any]], gb_per_s: float) -> Iterator[str]:
    """Lines for people: of one shape."""
    rows = found[0]["rows"]
    head = "".join(f"{count:>8}" for count in rows)
    yield f"{found[0]['shape']:16} {head}    GB/s  share    2/1   4/1  GOP/s"
    for line in found:
        for kind in ("own", "openvino"):
            if kind in line:
                yield _line(line, kind, gb_per_s)
        if "openvino" in line:
            times = zip(line["openvino"]["ms"], line["own"]["ms"], strict=True)
            yield f"{'':7} times    " + "".join(f"{theirs / ours:8.2f}" for theirs, ours in times)


def _line(line: dict[str, Any], kind: str, gb_per_s: float) -> str:
    """Bytes a second are those of the fewest rows, operations those of the most."""
    rates = line[kind]
    times = "".join(f"{ms:8.3f}" for ms in rates["ms"])
    by_one = "".join(f"{rates[key]:6.2f}" if key in rates else f"{'':6}" for key in ("2_by_1", "4_by_1"))
    read, computed = rates["gb_per_s"][0], rates["gop_per_s"][-1]
    return f"{line['format']:7} {kind:8} {times} {read:7.1f} {read / gb_per_s:6.2f} {by_one} {computed:6.0f}"


def _shape(text: str) -> Shape:
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape, must be COLUMNSxOUTPUTS such as 896x9728")
    return Shape(int(found[1]), int(found[2]))


def _rows(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer >= 1")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Products by kernels of our own and by OpenVINO's.")
    parser.add_argument("--shapes", nargs="+", type=_shape, default=[Shape(*sizes) for sizes in SHAPES])
    parser.add_argument("--formats", nargs="+", choices=list(formats()), default=list(formats()), metavar="FORMAT")
    parser.add_argument("--rows", nargs="+", type=_rows, default=list(ROWS))
    parser.add_argument("--seconds", type=float, default=0.15, help="for each format and number of rows; default: 0.15")
    asked = parser.parse_args(arguments)
    probe = bandwidth.measure(256 << 20)
    sys.stdout.write(
        f"{library().instruction_set}; milliseconds by rows; memory gives {probe.gb_per_s} GB/s ({probe.kernel})\n"
    )
    result: list[dict[str, Any]] = []
    for shape in asked.shapes:
        found = [row for name in asked.formats if (row := measure(name, shape, sorted(set(asked.rows)), asked.seconds))]
        if found:
            sys.stdout.write("\n".join(["", *table(found, probe.gb_per_s), ""]))
            sys.stdout.flush()
        result += found
    best = {
        kind: max((max(row[kind]["gop_per_s"]) for row in result if kind in row), default=0)
        for kind in ("own", "openvino")
    }
    sys.stdout.write(
        f"\nmost operations: {best['own']:.0f} GOP/s by our kernels, {best['openvino']:.0f} by OpenVINO's\n"
    )
    facts = {
        "instruction_set": library().instruction_set,
        "memory_gb_per_s": probe.gb_per_s,
        "threads": probe.num_threads,
    }
    sys.stdout.write(json.dumps({**facts, "products": result}) + "\n")


if __name__ == "__main__":
    main()
