"""Measures bare steps by kernels of our own and by OpenVINO's, in turn: sequences that decode, and prompts.

Does: build one model of random weights twice, time its steps; a table for each type, and one last JSON line. Does not: run
engines (`benchmarks.serving` does), or single products (`benchmarks.kernels` does). Run by hand, on an idle machine:

    python -m benchmarks.steps                                        (two minutes, 3 GB of memory)
    python -m benchmarks.steps --shape gemma-3-1b --dtype int8 --steps 1 2 p512 --rounds 10
    DRAGOMAN_KERNELS_ISA=avx2 OV_CPU_MAX_ISA=AVX2 python -m benchmarks.steps         (a processor with AVX2 alone)

A step is a number of sequences that decode after 100 tokens each, or a prompt of as many tokens as follow a `p`. Times are
the best: what else runs on the machine only adds to them. A step of one sequence reads every weight once, at a share of the
memory's bandwidth.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.neighbours import step_of
from benchmarks.serving import bandwidth
from benchmarks.serving.model import BenchShape, model_config
from benchmarks.shapes import SHAPES, Shape, load
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.models import ModelOptions

BUILT = "built"
STEPS = ("1", "2", "4", "8", "32", "p128", "p512")
KINDS = ("own", "openvino")

_REPEATED = {
    1: 8,
    2: 8,
    4: 8,
    8: 4,
    32: 2,
}  # so often in a round is a step of up to so many tokens taken, and longer ones once


def shapes() -> dict[str, dict[str, Any]]:
    """Models by name; the first one is that of `benchmarks.serving`."""
    return {BUILT: model_config(BenchShape()), **SHAPES}


def measure(
    models: Mapping[str, Shape], batches: Mapping[str, ForwardBatch], rounds: int
) -> dict[str, dict[str, float]]:
    """The least seconds of each step, of each kind of kernels; these take turns."""
    best = {kind: dict.fromkeys(batches, float("inf")) for kind in models}
    for _ in range(rounds):
        for kind, model in models.items():
            for name, batch in batches.items():
                size = len(batch.input_ids)
                times = next((count for most, count in _REPEATED.items() if size <= most), 1)
                best[kind][name] = min(best[kind][name], *(model.seconds_per_step(batch, 1) for _ in range(times)))
    return best


def summary(taken: Mapping[str, float], weight_bytes: int, gb_per_s: float) -> dict[str, Any]:
    """Milliseconds of each step, what 2 and 4 sequences take by one, and the share of the memory's bandwidth of one."""
    found: dict[str, Any] = {
        "ms": {name: 1e3 * seconds for name, seconds in taken.items()},
        "weights_mb": weight_bytes / 1e6,
    }
    if "1" in taken:
        found |= {f"{count}_by_1": taken[count] / taken["1"] for count in ("2", "4") if count in taken}
        found["share"] = weight_bytes / taken["1"] / 1e9 / gb_per_s
    return found


def table(dtype: str, found: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Lines for people."""
    kinds = [kind for kind in KINDS if kind in found]
    names = list(found[kinds[0]]["ms"])
    yield f"{dtype + ', ms':14}" + "".join(f"{name:>9}" for name in names) + "    2/1   4/1  MB read  share"
    for kind in kinds:
        row = found[kind]
        ratios = "".join(f"{row[key]:6.2f}" if key in row else f"{'':6}" for key in ("2_by_1", "4_by_1"))
        share = f"{row['share']:7.2f}" if "share" in row else ""
        yield (
            f"{kind:14}"
            + "".join(f"{ms:9.2f}" for ms in row["ms"].values())
            + f" {ratios} {row['weights_mb']:8.0f}{share}"
        )
    if len(kinds) == 2:
        ours, theirs = (found[kind]["ms"] for kind in kinds)
        yield f"{'times':14}" + "".join(f"{theirs[name] / ours[name]:9.2f}" for name in names)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Steps by kernels of our own and by OpenVINO's.")
    parser.add_argument("--shape", choices=list(shapes()), default=BUILT)
    parser.add_argument("--dtype", nargs="+", choices=("int8", "int4", "bf16", "f16"), default=("int4", "int8"))
    parser.add_argument("--kernels", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--steps", nargs="+", default=STEPS, metavar="STEP", help="such as 4 or p128")
    parser.add_argument("--layers", type=int, help="of the model; default: all")
    parser.add_argument("--rounds", type=int, default=8, help="in turn")
    asked = parser.parse_args(arguments)
    try:
        batches = {name: step_of(name) for name in asked.steps}
    except ValueError as error:
        parser.error(str(error))
    config = shapes()[asked.shape] | ({} if asked.layers is None else {"num_hidden_layers": asked.layers})
    probe = bandwidth.measure()
    sys.stdout.write(f"{asked.shape}; memory gives {probe.gb_per_s} GB/s\n")
    result = {}
    for dtype in asked.dtype:
        options = {kind: ModelOptions(weight_type=dtype, kernels=kind) for kind in asked.kernels}
        models = {kind: load(config, chosen, list(batches.values())) for kind, chosen in options.items()}
        taken = measure(models, batches, asked.rounds)
        found = result[dtype] = {
            kind: summary(taken[kind], model.weight_bytes, probe.gb_per_s) for kind, model in models.items()
        }
        sys.stdout.write("".join(f"{line}\n" for line in ("", *table(dtype, found))))
        sys.stdout.flush()
        for model in models.values():
            model.runner.close()
    sys.stdout.write(json.dumps({"shape": asked.shape, "memory_gb_per_s": probe.gb_per_s, "types": result}) + "\n")


if __name__ == "__main__":
    main()
