"""Scores that are capped, as Gemma 2's: exact in f32 for any mix of a step, and told where they are left out.

Only the library of kernels caps them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.engine.base import EngineTools
from dragoman.engine.factory import EngineSetup
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.factory import RollingFactory
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.kernels import presence
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.types import EngineOutput, EngineRequest, SamplingParams
from tests.support.family_checkpoint import FAMILIES, write_family_checkpoint
from tests.support.family_logits import error_on_prompt
from tests.support.forward import forward_batch

EXACT = ModelOptions("f32", kernels="own")
needs_library = pytest.mark.skipif(bool(presence.why_not()), reason="there is no library of kernels")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family_checkpoint("gemma2", tmp_path_factory.mktemp("gemma2"))


@pytest.fixture(scope="module")
def loaded(directory: Path) -> LoadedModel:
    return load_model(directory, EXACT)


@pytest.fixture(scope="module")
def reference() -> Any:
    return np.load(FAMILIES / "gemma2.npz")


def relative_error(found: Any, expected: Any) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


@needs_library
@pytest.mark.parametrize("cuts", [(350, 700), (1, 2, 33, 64, 65, 384, 700), (699, 700)], ids=str)
def test_a_prompt_in_pieces_beside_others_gets_the_recorded_logits(
    cuts: Sequence[int], loaded: LoadedModel, reference: Any
) -> None:
    """The others: a prompt of 90 that ends, one that decodes, and one that goes on behind blocks of the first."""
    token_ids = {n: [int(token_id) for token_id in reference[f"token_ids_{n}"]] for n in (5, 90, 700)}
    runner = OpenVinoRunner(loaded, [40] * len(loaded.facts.cache_kinds))
    runner.forward(forward_batch([(token_ids[5], 0, [31])], [4]))
    own, found, begin = list(range(22)), [], 0
    for end in cuts:
        rows = [
            ([7], 5, [31]),
            (token_ids[700][begin:end], begin, own[: -(-end // 32)]),
            (token_ids[90], 0, [25, 26, 27]),
        ]
        logits = runner.forward(forward_batch(rows, range(1, 1 + end - begin + 90))).copy()
        found.append(logits[: end - begin])
        columns, positions = reference["columns"], reference["positions_90"]
        beside = logits[end - begin :][np.ix_(positions, columns)]
        assert relative_error(beside, reference["logits_90"]) < 1e-4
        begin = end
    whole = np.concatenate(found)[np.ix_(reference["positions_700"], reference["columns"])]
    assert relative_error(whole, reference["logits_700"]) < 1e-4
    # another sequence goes on behind the first one's blocks, as a cached prefix is used
    rows = [(token_ids[700][640:700], 640, [*own[:20], 35, 36]), ([3], 0, [37])]
    last = runner.forward(forward_batch(rows, [59]))[0]
    assert relative_error(last, np.concatenate(found)[699]) < 1e-4


Answers = dict[str, tuple[list[int], list[float]]]


def answers(loaded: LoadedModel, requests: Sequence[EngineRequest], config: RollingConfig) -> Answers:
    """Each request's tokens and log-probabilities from an engine that forgets what windows have passed."""
    core = EngineCore(OpenVinoRunner(loaded, [120] * len(loaded.facts.cache_kinds)), Sampler(320), config)
    for key, request in enumerate(requests):
        core.inbox.put(AddRequest(key, request))
    found: Answers = {}
    deliveries = core.step()
    while deliveries or core.has_work():
        for delivery in deliveries:
            assert isinstance(delivery.item, EngineOutput), delivery.item
            tokens, logprobs = found.setdefault(delivery.item.request_id, ([], []))
            tokens += delivery.item.token_ids
            logprobs += delivery.item.logprobs or []
        deliveries = core.step()
    return found


@needs_library
def test_an_engine_answers_together_and_in_pieces_as_alone(loaded: LoadedModel) -> None:
    stream = np.random.RandomState(3)
    prefix = tuple(stream.randint(3, 300, 130).tolist())
    prompts = [prefix + tuple(stream.randint(3, 300, int(size)).tolist()) for size in (3, 40, 90)] + [prefix[:9]]
    sampling = SamplingParams(temperature=0.0, logprobs=0)
    requests = [EngineRequest(f"r{n}", prompt, sampling, max_tokens=12, seed=0) for n, prompt in enumerate(prompts)]
    alone: Answers = {}
    for request in requests:
        alone |= answers(loaded, [request], RollingConfig(4096, prefix_cache="off"))
    together = answers(loaded, requests, RollingConfig(67))
    for name, (tokens, logprobs) in alone.items():
        assert together[name][0] == tokens
        assert together[name][1] == pytest.approx(logprobs, abs=1e-4)


@needs_library
def test_a_kept_graph_caps_too(directory: Path, tmp_path: Path) -> None:
    for is_kept in (False, True):
        kept = load_model(directory, ModelOptions("f32", cache_dir=tmp_path, kernels="own"))
        assert kept.from_cache == is_kept
        assert error_on_prompt(kept, "gemma2", 90) < 1e-4


def test_where_the_cap_is_left_out_a_start_says_so(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    tools = EngineTools(lambda _grammar: None, lambda _stop, _min: None)  # type: ignore[arg-type, return-value]
    has_library = not presence.why_not()
    for dtype, kernels, are_told in (
        ("int8", "openvino", True),
        ("f32", "own" if has_library else "auto", not has_library),
    ):
        caplog.clear()
        setup = EngineSetup(directory, {"dtype": dtype, "kernels": kernels, "max_model_len": 64})
        with caplog.at_level(logging.WARNING):
            built = RollingFactory().load(setup).build(tools, 1 << 28)
        assert ("attention scores are not capped at 5" in caplog.text) == are_told
        assert any("not capped" in fact for fact in built.facts) == are_told


@needs_library
def test_scores_are_capped_whatever_the_cache_holds(directory: Path) -> None:
    for weight_type, kv_type in (("int8", "auto"), ("int8", "u8"), ("f32", "u8"), ("f32", "f16")):
        loaded = load_model(directory, ModelOptions(weight_type, kv_type=kv_type, kernels="own"))  # type: ignore[arg-type]
        assert "not capped" not in " ".join(loaded.facts.departures)
        assert {attention.softcap for attention in loaded.facts.attention_layers.values()} == {5.0}
        assert error_on_prompt(loaded, "gemma2", 90) < 0.5
