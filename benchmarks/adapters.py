"""What adapters cost: the time of a step with them over that of the graph that knows none.

Does: write the shape that speed is measured on and adapters of rank 16 on all seven projections, time steps of 2, 32 and 256
sequences that decode, of which all or none use an adapter. Does not: judge. Run by hand on an idle machine, MODEL_DIR empty
or written by an earlier run:

    python -m benchmarks.adapters MODEL_DIR [--dtype int8] [--layers N]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
from safetensors.numpy import save_file

from benchmarks.serving.model import BenchShape, weight_shapes, write_model
from dragoman.engine.rolling.adapters import AdapterBank
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.models import ModelOptions, load_model
from dragoman.models.profile import AdapterOptions

RANK, PAST = 16, 16  # PAST: tokens that each sequence has in the cache
ROWS = (2, 32, 256)
COUNTS = (1, 2, 4, 8)
REPEATS = 12


def write_adapters(directory: Path, shape: BenchShape, count: int) -> tuple[tuple[str, Path], ...]:
    """Adapters with random values, by their names."""
    found = []
    shapes = {name.removesuffix(".weight"): size for name, size in weight_shapes(shape).items() if "_proj" in name}
    for number in range(count):
        path = directory / f"adapter{number}"
        path.mkdir(exist_ok=True)
        stream = np.random.default_rng(number)
        tensors = {}
        for module, (num_out, num_in) in shapes.items():
            for side, size in (("A", (RANK, num_in)), ("B", (num_out, RANK))):
                values = stream.standard_normal(size, dtype=np.float32) / 100
                tensors[f"base_model.model.{module}.lora_{side}.weight"] = values
        save_file(tensors, path / "adapter_model.safetensors")
        settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": "all-linear"}
        (path / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
        found.append((f"adapter{number}", path))
    return tuple(found)


def decode_batch(num_rows: int, slots: Sequence[int]) -> ForwardBatch:
    """One token of each of `num_rows` sequences, whose adapters take turns among `slots`; none if there are none."""
    rows = np.arange(num_rows)
    owners = None if not slots else np.array([slots[row % len(slots)] for row in range(num_rows)], dtype=np.int64)
    return ForwardBatch(
        input_ids=rows + 5,
        position_ids=np.full(num_rows, PAST, dtype=np.int64),
        past_lens=np.full(num_rows, PAST, dtype=np.int32),
        subsequence_begins=np.arange(num_rows + 1, dtype=np.int32),
        block_indices=rows.astype(np.int32),
        block_indices_begins=np.arange(num_rows + 1, dtype=np.int32),
        logit_indices=rows,
        max_context_len=PAST + 1,
        adapter_slots=owners,
    )


def seconds(steps: Sequence[tuple[OpenVinoRunner, ForwardBatch]]) -> list[float]:
    """The fastest of some runs of each step. Steps take turns, so that what else the machine does hits all alike."""
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(REPEATS):
        for (runner, batch), found in zip(steps, times, strict=True):
            runner.forward(batch)  # the caches hold what this step reads, and not the one before it
            start = perf_counter()
            runner.forward(batch)
            found.append(perf_counter() - start)
    return [min(found) for found in times]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--layers", type=int, default=BenchShape().num_layers)
    given = parser.parse_args()
    shape = BenchShape(num_layers=given.layers)
    given.directory.mkdir(parents=True, exist_ok=True)
    if not (given.directory / "config.json").exists():
        write_model(given.directory, shape)
    adapters = write_adapters(given.directory, shape, max(COUNTS))
    options = ModelOptions(given.dtype)
    plain = OpenVinoRunner(load_model(given.directory, options), max(ROWS))
    loaded = load_model(given.directory, replace(options, adapters=AdapterOptions(adapters)))
    assert loaded.adapters is not None
    bank = AdapterBank(loaded.adapters, len(adapters), RANK)
    for slot, adapter in enumerate(loaded.adapters.first.values()):
        bank.fill(slot, loaded.adapters.changes(adapter))
    runner = OpenVinoRunner(loaded, max(ROWS), bank)
    print(f"{'rows':>5} {'without':>10} {'none used':>10} " + " ".join(f"{count:>3} used" for count in COUNTS))
    for rows in ROWS:
        steps = [(runner, decode_batch(rows, tuple(range(count)))) for count in COUNTS if count <= rows]
        without, unused, *used = seconds([(plain, decode_batch(rows, ())), (runner, decode_batch(rows, ())), *steps])
        shown = " ".join(f"{time / without - 1:>+8.0%}" for time in used)
        print(f"{rows:>5} {without * 1000:>7.1f} ms {unused / without - 1:>+10.0%} {shown}")


if __name__ == "__main__":
    main()
