"""Beam search of engines that have none of their own: on the demo model it finds what the built-in engine finds."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import UnsupportedFeature
from dragoman.types import Grammar, StopStrings
from tests.contract.asking import Answer, asking, collect, run, running
from tests.contract.engines import ENGINES, EngineUnderTest
from tests.support.tables import table
from tests.support.tiers import width

(ROLLING,) = (one for one in ENGINES if one.name == "rolling on the demo model")

SEARCHES: dict[str, dict[str, Any]] = {
    "all beams": {"num_beams": 4, "n": 4, "logprobs": 2},
    "ends": {"num_beams": 3, "n": 3, "ignore_eos": False, "max_tokens": 30},
    "lengths": {"num_beams": 3, "ignore_eos": False, "length_penalty": 2.0, "early_stopping": True, "max_tokens": 24},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.5, "n": 4},
    "stop tokens": {"num_beams": 2, "n": 2, "stop_token_ids": (1367,)},
    "stop strings": {"num_beams": 2, "stop": StopStrings((" learning",))},
    "the prompt": {"num_beams": 2, "prompt_logprobs": 1},
}


def _assert_alike(found: Answer, expected: Answer) -> None:
    assert (found.tokens, found.reasons) == (expected.tokens, expected.reasons)
    for one, other in zip(found.sequences, expected.sequences, strict=True):
        assert one.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-3)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
        assert [[top.token_id for top in tops] for tops in one.tops] == [
            [top.token_id for top in tops] for tops in other.tops
        ]
    assert (found.prompt_logprobs is None) == (expected.prompt_logprobs is None)


@table("name", width(list(SEARCHES), ["ends", "groups", "stop strings", "the prompt"]))
def test_beams_are_those_of_the_built_in_engine(name: str, under_test: EngineUnderTest) -> None:
    if under_test.prompt != ROLLING.prompt:
        pytest.skip("another model")
    values = {"max_tokens": 12} | SEARCHES[name]

    async def test() -> None:
        async with running(under_test) as engine, running(ROLLING) as built_in:
            request = asking(under_test, **values)
            if not engine.capabilities.beam_search:
                with pytest.raises(UnsupportedFeature, match=r"^num_beams "):
                    await collect(engine, request)
                return
            _assert_alike(await collect(engine, request), await collect(built_in, request))

    run(test())


CHANGES: dict[str, Any] = {
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {5: 1.0},
    "allowed_token_ids": (5, 6, 7),
    "min_tokens": 3,
    "grammar": Grammar("regex", "[a-c]+"),
}


@table("name", CHANGES)
def test_what_changes_log_probabilities_is_refused_by_name_where_beams_go_by_raw_ones(
    name: str, under_test: EngineUnderTest
) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            if not (engine.capabilities.beam_search and engine.capabilities.plain_beams):
                return
            with pytest.raises(UnsupportedFeature, match=f"^{name} ") as caught:
                await collect(engine, asking(under_test, num_beams=2, **{name: CHANGES[name]}))
            assert caught.value.param == name

    run(test())
