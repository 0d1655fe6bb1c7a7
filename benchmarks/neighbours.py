"""Measures what two models of one process leave each other, with threads that are tied to cores and without.

Does: run two models' steps alone and at once, in turn, and tell steps per second in parts of what each does alone; a
table, and one last JSON line. Does not: run engines, or judge. Run by hand, on an otherwise idle machine:

    python -m benchmarks.neighbours                                  (the bundled model beside itself)
    python -m benchmarks.neighbours MODEL_DIR OTHER_DIR --steps 8 p256

A step is a number of sequences that decode after 100 tokens each, or a prompt of as many tokens as follow a `p`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dragoman.config.resolve import demo_model_dir
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.models import BLOCK_SIZE, ModelOptions, load_model

_NUM_PAST = 100
_PAUSE_S = 0.0005  # between steps, with the interpreter's lock: what an engine does besides


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A model and the step that it computes over and over."""

    runner: OpenVinoRunner
    batch: ForwardBatch

    def count_steps(self, seconds: float) -> float:
        """Steps per second."""
        begin = time.perf_counter()
        num_steps, now = 0, begin
        while now < begin + seconds:
            self.runner.forward(self.batch)
            num_steps += 1
            resume_at = time.perf_counter() + _PAUSE_S
            while (now := time.perf_counter()) < resume_at:
                pass
        return num_steps / (now - begin)


def step_of(name: str) -> ForwardBatch:
    """The step that `name` stands for: see the module. Raises: ValueError if it stands for none."""
    is_prompt = name.startswith("p")
    num_rows, size, past = (1, int(name[1:]), 0) if is_prompt else (int(name), 1, _NUM_PAST)
    if num_rows < 1 or size < 1:
        raise ValueError(f"{name} is no step, must be a number of sequences or p and a number of tokens")
    num_blocks = -(-(past + size) // BLOCK_SIZE)
    begins = np.arange(num_rows + 1, dtype=np.int32)
    return ForwardBatch(
        input_ids=np.full(num_rows * size, 3, dtype=np.int64),
        position_ids=np.tile(np.arange(past, past + size, dtype=np.int64), num_rows),
        past_lens=np.full(num_rows, past, dtype=np.int32),
        subsequence_begins=begins * np.int32(size),
        block_indices=np.arange(num_rows * num_blocks, dtype=np.int32),
        block_indices_begins=begins * np.int32(num_blocks),
        logit_indices=np.arange(1, num_rows + 1, dtype=np.int64) * size - 1,
        max_context_len=past + size,
    )


def load(directory: Path, batch: ForwardBatch, *, is_tied: bool) -> Neighbour:
    """The model, with its kernels ready for the step."""
    loaded = load_model(directory, ModelOptions(has_neighbours=not is_tied))
    neighbour = Neighbour(OpenVinoRunner(loaded, len(batch.block_indices)), batch)
    for _ in range(2):
        neighbour.runner.forward(batch)
    return neighbour


def at_once(neighbours: Sequence[Neighbour], seconds: float) -> list[float]:
    """Steps per second of each, when all compute."""
    rates = [0.0] * len(neighbours)

    def run(index: int) -> None:
        rates[index] = neighbours[index].count_steps(seconds)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(neighbours))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rates


def shares(neighbours: Sequence[Neighbour], seconds: float) -> list[float]:
    """What each has of its own speed, when all compute."""
    alone = [neighbour.count_steps(seconds) for neighbour in neighbours]
    return [rate / own for rate, own in zip(at_once(neighbours, seconds), alone, strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What two models of one process leave each other.")
    parser.add_argument("models", nargs="*", type=Path, default=[demo_model_dir()] * 2, metavar="MODEL_DIR")
    parser.add_argument("--steps", nargs=2, type=step_of, default=[step_of("8")] * 2, metavar="STEP")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts")
    asked = parser.parse_args()
    if len(asked.models) != 2:
        parser.error("name two models, or none")
    pairs = {
        word: [load(path, batch, is_tied=is_tied) for path, batch in zip(asked.models, asked.steps, strict=True)]
        for word, is_tied in (("tied", True), ("not tied", False))
    }
    measured: dict[str, list[list[float]]] = {word: [] for word in pairs}
    for _ in range(asked.rounds):
        for word, pair in pairs.items():
            measured[word].append(shares(pair, asked.seconds))
    result = {
        word: [statistics.median(column) for column in zip(*rows, strict=True)] for word, rows in measured.items()
    }
    for word, (first, second) in result.items():
        sys.stdout.write(f"{word:10} {first:.2f} + {second:.2f} = {first + second:.2f}\n")
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
