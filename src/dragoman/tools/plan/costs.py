"""The cost of an engine step as a function of its content: fitted to measured steps, kept as JSON.

A step's seconds are a sum. Its tokens count linearly between measured sizes: few wait for the weights, many for the
arithmetic. Each row of logits, and each token of context that attention reads, in each cache kind, has a cost. So have
prompts (attention computes them apart, HTTP handles their requests) and another number of tokens than before (kernels
are prepared again).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.forward.runner import StepWork

Array = npt.NDArray[np.float64]

_ROUNDS = 20  # rounds of reweighting, which fit absolute deviations: single slow steps hardly count
_LEAST_DEVIATION = 1e-3  # relative deviation; smaller ones count alike
_TOLERANCE = 1e-10
_LEAST_SLOWNESS, _MOST_SLOWNESS = 80, 4000  # measured steps
_LEAST_S = 1e-7  # of a step: time has to pass


class CostsError(ValueError):
    """A file of costs cannot be used; the message says why, on one line."""


class StepCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The costs of steps, in seconds, never negative. `tokens`: (tokens, seconds), ascending in both.

    Costs are linear between two sizes of `tokens`. `context_s`, `pair_s`: per token of `StepWork.contexts` and of
    `StepWork.pairs`, by cache kind. `model`, `fingerprint`: "" = unknown. `deviation`: the median relative one.
    `slowness`: for measured steps in order, their seconds, and these relative to their cost, as a machine is slow for
    moments; empty = always 1. `http_s`: a client's wait besides the steps. `prompt_s`: of a step with prompts.
    `change_s`: of a step with another number of tokens than before.
    """

    tokens: tuple[tuple[int, float], ...]
    row_s: float
    context_s: tuple[float, ...]
    pair_s: tuple[float, ...]
    model: str = ""
    fingerprint: str = ""
    deviation: float = 0.0
    slowness: tuple[tuple[float, float], ...] = ()
    http_s: float = 0.0
    prompt_s: float = 0.0
    change_s: float = 0.0

    def __post_init__(self) -> None:
        """Raises: ValueError for impossible costs."""
        if not self.tokens or self.tokens[0][0] < 1:
            raise ValueError("tokens must hold at least one (tokens, seconds) pair, of 1 token or more")
        for (size, seconds), (larger, more) in pairwise(self.tokens):
            if larger <= size or more < seconds:
                raise ValueError(f"tokens must ascend: {size} tokens take {seconds} s, the next {larger} take {more} s")
        if self.tokens[0][1] <= 0:
            raise ValueError("the seconds of the smallest step in tokens must be more than 0")
        others = (self.row_s, self.http_s, self.prompt_s, self.change_s)
        if min(*others, *self.context_s, *self.pair_s) < 0:
            raise ValueError("row_s, context_s, pair_s, http_s, prompt_s and change_s must not be negative")
        if min((min(row) for row in self.slowness), default=1.0) <= 0:
            raise ValueError("slowness must be pairs of numbers of more than 0")
        if not self.context_s or len(self.context_s) != len(self.pair_s):
            raise ValueError("context_s and pair_s must have one number for each cache kind of the model")

    def seconds(self, work: StepWork, *, is_change: bool = False) -> float:
        """The seconds of the step. `is_change`: the one before had another number of tokens."""
        context = sum(cost * count for cost, count in zip(self.context_s, work.contexts, strict=True))
        pairs = sum(cost * count for cost, count in zip(self.pair_s, work.pairs, strict=True))
        prompts = self.prompt_s if any(work.pairs) else 0.0
        change = self.change_s if is_change else 0.0
        return self._of_tokens(work.num_tokens) + self.row_s * work.num_rows + prompts + change + context + pairs

    def _of_tokens(self, num_tokens: int) -> float:
        points = self.tokens
        if num_tokens <= points[0][0] or len(points) == 1:
            return points[0][1]
        index = min(bisect_left(points, (num_tokens, 0.0)), len(points) - 1)
        (left, left_s), (right, right_s) = points[index - 1], points[index]
        return left_s + (right_s - left_s) * (num_tokens - left) / (right - left)


def read_costs(path: Path) -> StepCosts:
    """The costs in a file. Raises: CostsError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=StepCosts)
    except (OSError, msgspec.DecodeError) as error:
        raise CostsError(f"must be a JSON file of step costs that can be read ({error})") from error


def write_costs(path: Path, costs: StepCosts) -> None:
    """Raises: CostsError if the file cannot be written."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(costs)) + b"\n")
    except OSError as error:
        raise CostsError(f"must be a file that can be written ({error})") from error


# --- fitting ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step and the seconds it took. `is_change`: the one before it had another number of tokens."""

    work: StepWork
    seconds: float
    is_change: bool = False


def fit_costs(steps: Sequence[MeasuredStep]) -> StepCosts:
    """The costs with the smallest relative deviation from measured steps, of which there is at least one."""
    knots = _knots([step.work.num_tokens for step in steps])
    matrix = np.array([_row(step, knots) for step in steps])
    measured = np.array([step.seconds for step in steps])
    relative = matrix / measured[:, None]
    weights = np.ones(len(steps))
    for _ in range(_ROUNDS):
        solution = _solve_nonnegative(relative * weights[:, None], weights)
        deviations = np.abs(relative @ solution - 1)
        weights = 1 / np.sqrt(np.maximum(deviations, _LEAST_DEVIATION))
    base, *rises = solution[: len(knots)].tolist()
    row_s, prompt_s, change_s, *others = solution[len(knots) :].tolist()
    num_kinds = len(steps[0].work.contexts)
    of_tokens = accumulate(rises, initial=max(base, _LEAST_S))
    return StepCosts(
        tokens=tuple(zip(knots, of_tokens, strict=True)),
        row_s=row_s,
        context_s=tuple(others[:num_kinds]),
        pair_s=tuple(others[num_kinds:]),
        deviation=float(np.median(deviations)),
        prompt_s=prompt_s,
        change_s=change_s,
    )


def slowness_of(costs: StepCosts, steps: Sequence[MeasuredStep]) -> tuple[tuple[float, float], ...]:
    """`StepCosts.slowness` of the last steps; empty for a few steps, whose slowest one is chance."""
    if len(steps) < _LEAST_SLOWNESS:
        return ()
    last = steps[-_MOST_SLOWNESS:]
    shares = (step.seconds / costs.seconds(step.work, is_change=step.is_change) for step in last)
    return tuple((round(step.seconds, 6), max(round(share, 3), 1e-3)) for step, share in zip(last, shares, strict=True))


def _knots(sizes: Sequence[int]) -> list[int]:
    """The smallest size, and the largest of each power of two: between them costs rise evenly."""
    largest: dict[int, int] = {}
    for size in sorted(sizes):
        largest[(size - 1).bit_length()] = size
    return sorted({min(sizes), *largest.values()})


def _row(step: MeasuredStep, knots: Sequence[int]) -> list[float]:
    """The factors of the unknowns: smallest step, rises between knots, rows, prompts, a change, contexts, pairs."""
    work = step.work
    rises = []
    for left, right in pairwise(knots):
        share = (work.num_tokens - left) / (right - left)
        rises.append(max(share if right == knots[-1] else min(share, 1.0), 0.0))
    others = [float(work.num_rows), float(any(work.pairs)), float(step.is_change)]
    return [1.0, *rises, *others, *work.contexts, *work.pairs]


def _solve_nonnegative(matrix: Array, target: Array) -> Array:
    """The least-squares solution without negative entries. Shapes: [n, k], [n] -> [k].

    Source: the active-set method of Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    count = scaled.shape[1]
    solution, is_free = np.zeros(count), np.zeros(count, dtype=bool)
    for _ in range(3 * count):
        gradient = scaled.T @ (target - scaled @ solution)
        gradient[is_free] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= _TOLERANCE:
            break
        is_free[best] = True
        solution, is_free = _step_into_bounds(scaled, target, solution, is_free)
    found: Array = solution / scale
    return found


def _step_into_bounds(matrix: Array, target: Array, solution: Array, is_free: Any) -> tuple[Array, Any]:
    """Solve for the free entries; those that would become negative are fixed at 0."""
    while True:
        trial = np.zeros_like(solution)
        trial[is_free] = np.linalg.lstsq(matrix[:, is_free], target, rcond=None)[0]
        is_bad = is_free & (trial <= _TOLERANCE)
        if not is_bad.any():
            return trial, is_free
        gaps = np.maximum(solution[is_bad] - trial[is_bad], _TOLERANCE)
        solution = solution + min((solution[is_bad] / gaps).min(), 1.0) * (trial - solution)
        is_free = is_free & (solution > _TOLERANCE) & ~(is_bad & (solution <= _TOLERANCE))
        solution = np.where(is_free, solution, 0.0)
