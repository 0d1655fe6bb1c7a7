"""Tests a model that generates on this machine, with the rolling engine's settings. On the main thread.

Checks its answers (`parity`), the speed of its steps beside this machine's memory, and its weights as they are stored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter

import numpy as np

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.factory import factory
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ModelRunner
from dragoman.engine.rolling.needs import limits_of
from dragoman.models import LoadedModel
from dragoman.models.facts import ExpertFacts
from dragoman.tools.evaluate import Measures, WindowReader, cut_text, evaluate, load, piece_tokens
from dragoman.tools.memory_speed import memory_bandwidth
from dragoman.tools.selftest.checks import TEXTS, Check, Encode, SelfTest, Trial
from dragoman.tools.selftest.parity import LONG_ANSWER, Parity, StepLoop, request

EXACT_TOLERANCE, ROUNDED_TOLERANCE = 1e-3, 0.1  # nats, in f32 and in other types
MOST_DIVERGENCE = {"bf16": 0.02, "f16": 0.02, "int8": 0.05, "int4": 0.5}  # nats, on average, from the model in f32
_LONGEST_PROMPT = 192  # tokens: several blocks, and more than one step that cuts prompts
ROWS = 8
STEPS = 12
LEAST_WEIGHTS = 256 << 20  # bytes: caches hold much of smaller models, and other costs dominate their steps
LEAST_SHARE = 0.2  # share of the bandwidth that a step of one row must reach
MOST_ROW_COST = 1.0  # cost of a further row, in steps of one row: above, batching would lose time

_GIGABYTE = 1e9


def self_test(trial: Trial) -> SelfTest:
    """All checks of a model. Raises: ModelError, EngineOptionError, ServerError."""
    loaded = factory.load(trial.setup)
    model = loaded.model
    limits = limits_of(loaded.options, model.facts, model.profile, loaded.max_model_len)
    begin = perf_counter()
    checks = list(_checks(model, limits, trial))
    return SelfTest(trial.name, model.stored_as or model.options.weight_type, round(perf_counter() - begin, 2), checks)


def _checks(model: LoadedModel, limits: RollingConfig, trial: Trial) -> Iterator[Check]:
    prompts = prompts_of(trial.encode, model.facts.max_position)
    # no pacing and no prefix cache
    limits = replace(limits, max_num_seqs=max(limits.max_num_seqs, ROWS), prefix_cache="off", max_slowdown=0.0)
    trial.progress("comparing answers", 0.0)
    runner = OpenVinoRunner(model, num_blocks(prompts, model.profile.block_size))
    try:
        tolerance = EXACT_TOLERANCE if model.profile.is_exact else ROUNDED_TOLERANCE
        yield from Parity(runner, limits, prompts, tolerance).checks()
        trial.progress("measuring steps", 0.5)
        weights = 0 if has_experts(model) else factory.needs(trial.setup).weights
        bandwidth = memory_bandwidth(model.options.num_threads or os.cpu_count() or 1)
        yield from speed_checks(runner, limits, prompts[-1], weights, bandwidth)
    finally:
        runner.close()
    text = [token for prompt in prompts for token in prompt]
    yield _kept_check(model, text, trial)
    yield _reference_check(model, text, trial)
    trial.progress("comparing answers", 1.0)


def prompts_of(encode: Encode, max_position: int) -> list[list[int]]:
    """The texts as tokens, the longest first, cut so that answers fit into the context."""
    room = min(_LONGEST_PROMPT, max_position - LONG_ANSWER)
    whole = [token for text in TEXTS for token in encode(text)]
    return [whole[:room], *(list(encode(text))[: room // 2] for text in TEXTS)]


def num_blocks(prompts: Sequence[Sequence[int]], block_size: int) -> int:
    """The number of blocks for all concurrent requests, in each kind of cache."""
    longest = max(map(len, prompts)) + LONG_ANSWER
    return 2 * max(len(prompts), ROWS) * (-(-longest // block_size) + 1)


def has_experts(model: LoadedModel) -> bool:
    return any(isinstance(layer.mlp, ExpertFacts) for layer in model.facts.layers)


def _kept_check(model: LoadedModel, text: Sequence[int], trial: Trial) -> Check:
    """Check that a kept graph computes the same as a new one."""
    name = "kept graph as built again"
    needless = "" if model.from_cache else "the graph was built now, none was kept"
    if (skipped := trial.skipped(name, needless)) is not None:
        return skipped
    built = load(trial.setup_with(cache_dir=None), trial.progress)
    tokens = list(text[: min(len(text), model.facts.max_position)])
    largest = max_difference(model, built, tokens)
    why = "" if largest == 0 else "the kept graph is of another build, or was damaged: remove it from cache_dir"
    return Check(name, "off" if why else "ok", f"{largest:.2g} in logits", "the same to the bit", why)


def max_difference(one: LoadedModel, other: LoadedModel, tokens: Sequence[int]) -> float:
    """The largest difference between the logits of two models that read the same tokens."""
    piece = piece_tokens(one.facts.vocab_size)
    with WindowReader(one, len(tokens), piece) as first, WindowReader(other, len(tokens), piece) as second:
        pairs = zip(first.read(tokens), second.read(tokens), strict=True)
        return max(float(np.max(np.abs(mine[1] - theirs[1]))) for mine, theirs in pairs)


def _reference_check(model: LoadedModel, text: Sequence[int], trial: Trial) -> Check:
    """Check the distance of the model from itself in f32."""
    name, stored = "stored weights as f32", model.options.weight_type
    if (skipped := trial.skipped(name, "the weights are f32" if stored == "f32" else "")) is not None:
        return skipped
    exact = load(trial.setup_with(dtype="f32"), trial.progress)
    windows = cut_text(list(text), min(model.facts.max_position, 2 * _LONGEST_PROMPT), None)
    found = evaluate(model, windows, trial.progress, exact)
    return reference_check(name, found, MOST_DIVERGENCE[stored])


def reference_check(name: str, found: Measures, most: float) -> Check:
    assert found.divergence_mean is not None
    assert found.agreement is not None
    is_ok = found.divergence_mean <= most
    words = f"{found.divergence_mean:.2g} nats, {found.agreement:.1%} of likeliest tokens"
    why = "compressing changes this model much: try another dtype, or dragoman compress with a text"
    return Check.judged(name, is_ok, words, f"{most:g} nats", why)


def speed_checks(
    runner: ModelRunner, limits: RollingConfig, prompt: Sequence[int], weights: int, bandwidth: float
) -> Iterator[Check]:
    """Checks of rows' cost, and of the `bandwidth` (bytes/s) of a step over `weights` bytes (0 = it does not read all)."""
    one_s = step_seconds(runner, limits, prompt, 1)
    yield bandwidth_check(one_s, weights, bandwidth)
    rows = min(ROWS, limits.max_num_seqs)
    if rows > 1:
        yield rows_check(one_s, step_seconds(runner, limits, prompt, rows), rows)


def bandwidth_check(step_s: float, weights: int, bandwidth: float) -> Check:
    name, found = "step of one row", f"{1000 * step_s:.2f} ms"
    memory = f"memory reads {bandwidth / _GIGABYTE:.1f} GB/s"
    if not weights:
        return Check(name, "skipped", found, why=f"a step does not read all weights; {memory}")
    if weights < LEAST_WEIGHTS:
        return Check(name, "skipped", found, why=f"the model is too small to be bound by memory; {memory}")
    share = weights / step_s / bandwidth
    found += f", {weights / step_s / _GIGABYTE:.1f} GB/s of {bandwidth / _GIGABYTE:.1f}"
    is_ok = share >= LEAST_SHARE
    why = "steps are much slower than memory: fewer threads than cores, or a processor that is busy?"
    return Check.judged(name, is_ok, found, f"at least {LEAST_SHARE:.0%}", why)


def rows_check(one_s: float, many_s: float, num_rows: int) -> Check:
    cost = (many_s - one_s) / one_s / (num_rows - 1)
    is_ok = cost <= MOST_ROW_COST
    found = f"{cost:.2f} of the first, for {num_rows} rows"
    why = "requests are answered faster one after the other than together: lower max_num_seqs"
    return Check.judged("each further row", is_ok, found, f"at most {MOST_ROW_COST:g}", why)


def step_seconds(runner: ModelRunner, limits: RollingConfig, prompt: Sequence[int], num_rows: int) -> float:
    """The median seconds of a step with `num_rows` decoding sequences, without the first steps."""
    times: list[float] = []
    loop = StepLoop(runner, limits)
    try:
        requests = [request(str(i), prompt, 2 * STEPS, i) for i in range(num_rows)]
        loop.answers(requests, lambda seconds, rows: times.append(seconds) if rows == num_rows else None)
    finally:
        loop.close()
    return median(times[-STEPS:])
