"""Tests a model on this machine, with the rolling engine's settings. On the main thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from dragoman.engine.factory import EngineSetup, Progress
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.factory import factory
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.needs import limits_of
from dragoman.models import LoadedModel
from dragoman.models.facts import ExpertFacts
from dragoman.tools.evaluate.evaluation import evaluate, load
from dragoman.tools.evaluate.measures import Measures
from dragoman.tools.evaluate.reader import WindowReader, piece_tokens
from dragoman.tools.evaluate.text import cut_text
from dragoman.tools.memory_speed import memory_bandwidth
from dragoman.tools.selftest.parity import LONG_ANSWER, Parity
from dragoman.tools.selftest.report import Check, SelfTest
from dragoman.tools.selftest.speed import ROWS, speed_checks
from dragoman.tools.selftest.texts import TEXTS

Encode = Callable[[str], Sequence[int]]

EXACT_TOLERANCE, ROUNDED_TOLERANCE = 1e-3, 0.1  # nats, in f32 and in other types
MOST_DIVERGENCE = {"bf16": 0.02, "f16": 0.02, "int8": 0.05, "int4": 0.5}  # nats, on average, from the model in f32
_LONGEST_PROMPT = 192  # tokens: several blocks, and more than one step that cuts prompts


def self_test(name: str, setup: EngineSetup, encode: Encode, progress: Progress, *, is_quick: bool = False) -> SelfTest:
    """All checks of a model. `is_quick`: without loading it again. Raises: ModelError, EngineOptionError, ServerError."""
    loaded = factory.load(setup)
    model = loaded.model
    limits = limits_of(loaded.options, model.facts, model.profile, loaded.max_model_len)
    begin = perf_counter()
    checks = list(_checks(model, setup, limits, encode, progress, is_quick=is_quick))
    return SelfTest(name, model.stored_as or model.options.weight_type, round(perf_counter() - begin, 2), checks)


def _checks(
    model: LoadedModel, setup: EngineSetup, limits: RollingConfig, encode: Encode, progress: Progress, *, is_quick: bool
) -> Iterator[Check]:
    prompts = prompts_of(encode, model.facts.max_position)
    # no pacing and no prefix cache
    limits = replace(limits, max_num_seqs=max(limits.max_num_seqs, ROWS), prefix_cache="off", max_slowdown=0.0)
    progress("comparing answers", 0.0)
    runner = OpenVinoRunner(model, num_blocks(prompts, model.profile.block_size))
    try:
        tolerance = EXACT_TOLERANCE if model.profile.is_exact else ROUNDED_TOLERANCE
        yield from Parity(runner, limits, prompts, tolerance).checks()
        progress("measuring steps", 0.5)
        weights = 0 if has_experts(model) else factory.needs(setup).weights
        bandwidth = memory_bandwidth(model.options.num_threads or os.cpu_count() or 1)
        yield from speed_checks(runner, limits, prompts[-1], weights, bandwidth)
    finally:
        runner.close()
    text = [token for prompt in prompts for token in prompt]
    yield _kept_check(model, setup, text, progress, is_quick=is_quick)
    yield _reference_check(model, setup, text, progress, is_quick=is_quick)
    progress("comparing answers", 1.0)


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


def _kept_check(
    model: LoadedModel, setup: EngineSetup, text: Sequence[int], progress: Progress, *, is_quick: bool
) -> Check:
    """Check that a kept graph computes the same as a new one."""
    name = "kept graph as built anew"
    needless = "" if model.from_cache else "the graph was built now, none was kept"
    if (skipped := Check.skipped(name, needless, is_quick=is_quick)) is not None:
        return skipped
    built = load(replace(setup, options={**setup.options, "cache_dir": None}), progress)
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


def _reference_check(
    model: LoadedModel, setup: EngineSetup, text: Sequence[int], progress: Progress, *, is_quick: bool
) -> Check:
    """Check the distance of the model from itself in f32."""
    name, stored = "stored weights as f32", model.options.weight_type
    needless = "the weights are f32" if stored == "f32" else ""
    if (skipped := Check.skipped(name, needless, is_quick=is_quick)) is not None:
        return skipped
    exact = replace(setup, options={**setup.options, "dtype": "f32"})
    windows = cut_text(list(text), min(model.facts.max_position, 2 * _LONGEST_PROMPT), None)
    found = evaluate(model, windows, progress, load(exact, progress))
    return reference_check(name, found, MOST_DIVERGENCE[stored])


def reference_check(name: str, found: Measures, most: float) -> Check:
    assert found.divergence_mean is not None
    assert found.agreement is not None
    is_ok = found.divergence_mean <= most
    words = f"{found.divergence_mean:.2g} nats, {found.agreement:.1%} of likeliest tokens"
    why = "compressing changes this model much: try another dtype, or dragoman compress with a text"
    return Check.judged(name, is_ok, words, f"{most:g} nats", why)
