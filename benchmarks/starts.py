"""Measures what loading one model takes in each format in which it may lie on disk, for the table of docs/models.md.

Does: write a Llama of random weights in one format after the other, measure its starts as `benchmarks.start` does, remove
it; a table, and one last JSON line, which `scripts/models_page.py --starts` puts into the page. Does not: serve. Run by
hand, on an otherwise idle machine:

    python -m benchmarks.starts > starts.txt                     (about ten minutes, 4 GB of memory, 3 GB of disk)
    python -m benchmarks.starts --only awq gguf-Q4_K ir-int4 --layers 2 --rounds 1

Matrices are 1024 and 4096 columns wide, so that blocks of all types fit. Files and kept graphs lie where TMPDIR says, which
should be a disk.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.serving.formats import FORMATS
from benchmarks.serving.model import BenchShape, weight_shapes
from benchmarks.start import MIB, measure
from dragoman.cli.progress import ProgressDisplay
from dragoman.models.profile import this_processor

COLUMNS = ("on_disk_mib", "cold_s", "peak_mib", "afterwards_mib", "kept_s", "kept_graph_mib")


def shape_of(num_layers: int) -> BenchShape:
    """With 20 layers 369 million parameters."""
    return BenchShape(
        hidden_size=1024, num_layers=num_layers, num_heads=16, num_kv_heads=4, head_size=64, intermediate_size=4096
    )


def rows(names: list[str], shape: BenchShape, rounds: int) -> Iterator[dict[str, Any]]:
    """What each format takes; its files are gone before the next one's are written."""
    display = ProgressDisplay(sys.stderr)
    for number, name in enumerate(names):
        chosen = FORMATS[name]
        with tempfile.TemporaryDirectory() as directory:
            display(f"{chosen.name}: writing", number / len(names))
            model = chosen.write(Path(directory) / "model", shape)
            for dtype in chosen.dtypes:
                display(f"{chosen.name}, {dtype}: measuring", number / len(names))
                yield _row(chosen.name, dtype, measure(model, dtype, rounds))
            display.finish()


def _row(name: str, dtype: str, result: dict[str, Any]) -> dict[str, Any]:
    cold, kept = result["cold"], result["kept"]
    return {
        "format": name,
        "dtype": dtype,
        "is_cold": result["is_cold"],
        "on_disk_mib": result["bytes"] / MIB,
        "cold_s": _seconds(cold),
        "peak_mib": max(cold["peaks_mib"].values()),
        "afterwards_mib": cold["end_mib"],
        "kept_s": _seconds(kept),
        "kept_graph_mib": kept["mapped_mib"],
    }


def _seconds(run: dict[str, Any]) -> float:
    """Of a whole load, without imports."""
    seconds: dict[str, float] = run["seconds"]
    return sum(value for stage, value in seconds.items() if stage != "importing")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What loading takes, format by format.")
    parser.add_argument("--only", nargs="+", choices=list(FORMATS), default=list(FORMATS), metavar="FORMAT")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2, help="of which the best counts")
    asked = parser.parse_args()
    shape, processor = shape_of(asked.layers), this_processor()
    sys.stdout.write(f"{'':24} {'dtype':6}" + "".join(f"{column:>16}" for column in COLUMNS) + "\n")
    found = []
    for row in rows(asked.only, shape, asked.rounds):
        found.append(row)
        numbers = "".join(f"{row[column]:16.1f}" for column in COLUMNS)
        note = "" if row["is_cold"] else "  (its files stayed in the page cache)"
        sys.stdout.write(f"{row['format']:24} {row['dtype']:6}{numbers}{note}\n")
        sys.stdout.flush()
    facts = {
        "parameters": sum(prod(dimensions) for dimensions in weight_shapes(shape).values()),
        "cores": len(os.sched_getaffinity(0)),
        "has_bf16": processor.has_bf16,
        "has_integer_dot_products": processor.has_integer_dot_products,
    }
    sys.stdout.write(json.dumps({**facts, "rows": found}) + "\n")


if __name__ == "__main__":
    main()
