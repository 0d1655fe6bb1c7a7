"""Measures what one engine step costs besides the forward pass, per part, as a table and one last JSON line.

Does: time named cases on synthetic batches. Does not: load a model. Run by hand, on an otherwise idle machine:

    python -m benchmarks.step_cost --rows 1 8 32 64 --vocab-size 32768 152064 --only sample

Whole steps come from whole_step.py. A new part of the step gets its own cases: a function from a `Shape` to a `Trial`,
listed in `CASES`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.whole_step import all_penalties, step_trial
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sample.sampler_state import SamplerState
from dragoman.types import EngineRequest, SamplingParams

NUM_PROMPT_TOKENS, NUM_GENERATED_TOKENS = 256, 64


@dataclass(frozen=True, slots=True)
class Shape:
    """The batch: `rows` sequences that get a token, over `vocab_size` logits each."""

    rows: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement: `run` is timed, `reset` puts its inputs back before every run and is not."""

    reset: Callable[[], None]
    run: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """A named part of the step. `target_ms` are our limits by vocabulary size, for 32 rows on 2 cores."""

    name: str
    prepare: Callable[[Shape], Trial]
    target_ms: Mapping[int, float]


# --- the sampler ------------------------------------------------------------------------------------------------------

GREEDY_MS = {32_768: 1.2, 152_064: 2.4}  # 60 % of a whole step's 2 and 4 ms
SAMPLED_MS = {32_768: 3.0, 152_064: 7.2}  # 60 % of 5 and 12 ms
NO_TARGET: Mapping[int, float] = {}


def make_logits(shape: Shape, *, is_flat: bool) -> npt.NDArray[np.float32]:
    """Logits as a trained model gives them, some 20 tokens far above the rest; flat ones are nearly even."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1 if is_flat else 2, (shape.rows, shape.vocab_size)).astype(np.float32)
    if not is_flat:
        columns = rng.integers(0, shape.vocab_size, (shape.rows, 20))
        logits[np.arange(shape.rows)[:, None], columns] += np.linspace(8, 16, 20, dtype=np.float32)
    return logits


def make_states(shape: Shape, sampler: Sampler, params: SamplingParams) -> list[SamplerState]:
    """One sequence per row, in the middle of its answer."""
    rng = np.random.default_rng(1)
    states = []
    for row in range(shape.rows):
        prompt = tuple(rng.integers(0, shape.vocab_size, NUM_PROMPT_TOKENS).tolist())
        request = EngineRequest(str(row), prompt, params, 1000, seed=row, eos_token_ids=frozenset({0}))
        state = sampler.new_state(request, 0)
        for token_id in rng.integers(1, shape.vocab_size, NUM_GENERATED_TOKENS).tolist():
            state.observe(token_id)
        states.append(state)
    return states


def sampler_case(name: str, target_ms: Mapping[int, float], *, is_flat: bool = False, **params: Any) -> Case:
    """`Sampler.sample` for a batch whose rows all have these parameters."""

    def prepare(shape: Shape) -> Trial:
        sampler = Sampler(shape.vocab_size)
        states = make_states(shape, sampler, SamplingParams(**params))
        source = make_logits(shape, is_flat=is_flat)
        logits = np.empty_like(source)
        return Trial(lambda: np.copyto(logits, source), lambda: sampler.sample(logits, states))

    return Case(f"sample: {name}", prepare, target_ms)


PENALTIES = all_penalties()

SAMPLER_CASES = (
    sampler_case("greedy", GREEDY_MS, temperature=0.0),
    sampler_case("greedy, penalties", GREEDY_MS, temperature=0.0, **PENALTIES),
    sampler_case("greedy, 5 log-probabilities", NO_TARGET, temperature=0.0, logprobs=5),
    sampler_case("temperature", SAMPLED_MS, temperature=0.7),
    sampler_case("top-k", SAMPLED_MS, temperature=0.7, top_k=50),
    sampler_case("top-p", SAMPLED_MS, temperature=0.7, top_p=0.9),
    sampler_case("top-k, top-p, penalties", SAMPLED_MS, temperature=0.7, top_k=50, top_p=0.9, **PENALTIES),
    sampler_case("top-p, penalties", SAMPLED_MS, temperature=0.7, top_p=0.9, **PENALTIES),
    sampler_case("min-p", SAMPLED_MS, temperature=0.7, min_p=0.05),
    sampler_case("top-n sigma", NO_TARGET, temperature=0.7, top_n_sigma=1.0),
    sampler_case("XTC", NO_TARGET, temperature=0.7, min_p=0.05, xtc_probability=0.5),
    sampler_case("greedy, DRY", NO_TARGET, temperature=0.0, dry_multiplier=0.8),
    sampler_case("typical", NO_TARGET, temperature=0.7, typical_p=0.9),
    sampler_case("top-p, flat distribution", NO_TARGET, is_flat=True, temperature=1.0, top_p=0.9),
)


# --- whole steps ------------------------------------------------------------------------------------------------------

GREEDY_STEP_MS = {32_768: 2.0, 152_064: 4.0}
SAMPLED_STEP_MS = {32_768: 5.0, 152_064: 12.0}


def step_case(name: str, target_ms: Mapping[int, float], **params: Any) -> Case:
    """A whole step without its forward, for a batch whose rows all have these parameters."""

    def prepare(shape: Shape) -> Trial:
        logits = make_logits(shape, is_flat=False)
        return Trial(*step_trial(logits, SamplingParams(**params), NUM_PROMPT_TOKENS, NUM_GENERATED_TOKENS))

    return Case(f"step: {name}", prepare, target_ms)


STEP_CASES = (
    step_case("greedy", GREEDY_STEP_MS, temperature=0.0),
    step_case("greedy, log-probability", GREEDY_STEP_MS, temperature=0.0, logprobs=0),
    step_case("greedy, 5 log-probabilities", NO_TARGET, temperature=0.0, logprobs=5),
    step_case("top-k, top-p", SAMPLED_STEP_MS, temperature=0.7, top_k=50, top_p=0.9),
    step_case("top-p", SAMPLED_STEP_MS, temperature=0.7, top_p=0.9),
    step_case("top-k, top-p, penalties", SAMPLED_STEP_MS, temperature=0.7, top_k=50, top_p=0.9, **PENALTIES),
)

CASES: tuple[Case, ...] = (*STEP_CASES, *SAMPLER_CASES)


# --- measuring --------------------------------------------------------------------------------------------------------


def measure(trial: Trial, num_repeats: int) -> list[float]:
    """Milliseconds of every run, after two that do not count."""
    times = []
    for _ in range(num_repeats + 2):
        trial.reset()
        begin = time.perf_counter()
        trial.run()
        times.append((time.perf_counter() - begin) * 1e3)
    return times[2:]


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Cost of an engine step without its forward pass.")
    parser.add_argument("--rows", type=int, nargs="+", default=[32])
    parser.add_argument("--vocab-size", type=int, nargs="+", default=[32_768, 152_064])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Run the chosen cases and report them."""
    options = parse_arguments(arguments)
    write = sys.stdout.write
    write(f"{'case':<36}{'rows':>6}{'vocab':>9}{'median ms':>12}{'best ms':>10}{'target ms':>11}\n")
    results = []
    for case in (case for case in CASES if options.only in case.name):
        for shape in (Shape(rows, size) for size in options.vocab_size for rows in options.rows):
            times = measure(case.prepare(shape), options.repeats)
            median, best = statistics.median(times), min(times)
            target = case.target_ms.get(shape.vocab_size) if shape.rows == 32 else None
            shown = f"{target:.1f}" if target is not None else "-"
            write(f"{case.name:<36}{shape.rows:>6}{shape.vocab_size:>9}{median:>12.3f}{best:>10.3f}{shown:>11}\n")
            results.append(
                {
                    "case": case.name,
                    "rows": shape.rows,
                    "vocab_size": shape.vocab_size,
                    "median_ms": round(median, 4),
                    "best_ms": round(best, 4),
                    "target_ms": target,
                }
            )
    write(json.dumps({"benchmark": "step_cost", "results": results}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
