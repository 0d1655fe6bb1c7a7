"""What an engine cannot do is refused by name; what it can do passes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.engine.base import Capabilities
from dragoman.errors import UnsupportedFeature
from dragoman.types import EngineRequest, Grammar, SamplingParams


def request(**sampling: Any) -> EngineRequest:
    return EngineRequest("r", (1,), SamplingParams(**sampling), 4, seed=1)


CHANGED = {
    "min_p": (0.5, "min_p 0.5 is not supported by this engine: it must be 0.0"),
    "logit_bias": ({3: 1.0}, "logit_bias {3: 1.0} is not supported by this engine: it must be left out"),
    "bad_words": (("a",), "bad_words ('a',) is not supported by this engine: it must be left out"),
    "allowed_token_ids": ((1,), "allowed_token_ids (1,) is not supported by this engine: it must be left out"),
    "ignore_eos": (True, "ignore_eos True is not supported by this engine: it must be False"),
    "logprobs": (0, "logprobs 0 is not supported by this engine: it must be left out"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_field_that_is_not_supported_must_be_as_by_default(name: str) -> None:
    value, message = CHANGED[name]
    able = Capabilities(64, 32, unsupported=frozenset(CHANGED))
    able.check(request())
    with pytest.raises(UnsupportedFeature) as caught:
        able.check(request(**{name: value}))
    assert (caught.value.message, caught.value.param) == (message, name)
    Capabilities(64, 32).check(request(**{name: value}))


def test_grammars_of_other_kinds_and_in_frames_are_refused_where_only_some_can_be_followed() -> None:
    able = Capabilities(64, 32, grammar=True, grammar_kinds=frozenset({"regex", "choice"}))
    able.check(request(grammar=Grammar("regex", "a")))
    for grammar, words in (
        (Grammar("lark", "start: A"), "grammar lark is not supported by this engine: it must be one of: choice, regex"),
        (Grammar("regex", "a", frame="start: @output"), "grammar regex within other text"),
    ):
        assert not able.can_follow(grammar)
        with pytest.raises(UnsupportedFeature, match=words):
            able.check(request(grammar=grammar))
        Capabilities(64, 32, grammar=True).check(request(grammar=grammar))
    assert not Capabilities(64, 32, grammar_kinds=frozenset({"regex"})).can_follow(Grammar("regex", "a"))


def test_a_priority_is_refused_by_the_number_that_the_client_sent() -> None:
    urgent = msgspec.structs.replace(request(), priority=7)  # the client's are the other way round
    with pytest.raises(UnsupportedFeature, match="priority -7 is not supported by this engine: it must be 0"):
        Capabilities(64, 32).check(urgent)
    Capabilities(64, 32, priority=True).check(urgent)
