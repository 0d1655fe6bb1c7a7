"""llama.cpp's own names on the routes of OpenAI's shape, where its server takes them as well."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.errors import InvalidRequest
from dragoman.server.api import Call, HttpCall
from dragoman.server.apis.openai_wire.grammars import GrammarFields
from dragoman.server.apis.openai_wire.llamacpp_names import ALIASES, EFFECTS, LlamaFields
from dragoman.types import GenerationRequest, LineLimits
from tests.dialects.test_samplers import APIS
from tests.support.real_dialects import real_dialects
from tests.support.tables import table

OPENAI = ("completions", "chat", "responses")
GBNF = 'root ::= "yes" | "no"'


def parse(api: str, **parameters: Any) -> Call:
    """The call of a body with these parameters."""
    path, name, rest, _ = APIS[api]
    body = json.dumps({**rest, **parameters}).encode()
    http = HttpCall("POST", path, body, {"content-type": "application/json"}, request_id="r")
    served = {"generation_defaults": {"top_k": 20, "top_p": 0.8}, "shifts_context": True}
    return real_dialects(**served)[name].open(http).parse()


def request_of(api: str, **parameters: Any) -> GenerationRequest:
    """Its one request; nothing of it is without effect."""
    call = parse(api, **parameters)
    assert call.ignored == ()
    return call.requests[0]


@table("api", OPENAI)
def test_every_name_has_its_effect(api: str) -> None:
    assert request_of(api, n_predict=0).max_tokens == 0
    assert request_of(api, n_predict=7).max_tokens == 7
    assert request_of(api, n_predict=7).on_overflow == "clip"  # as llama.cpp cuts it to what there is room for
    assert request_of(api, n_predict=-1).max_tokens is None  # of completions, too, where 16 is the default
    assert request_of(api, n_cmpl=3).sampling.n == 3
    assert request_of(api, repeat_penalty=1.5).sampling.repetition_penalty == 1.5
    assert request_of(api, repeat_penalty=1.5, repeat_last_n=0).sampling.repetition_penalty == 1.0
    grammar = request_of(api, grammar=GBNF).sampling.grammar
    assert grammar is not None
    assert (grammar.kind, grammar.source, grammar.param) == ("lark", GBNF, "grammar")
    schema = request_of(api, json_schema={"type": "string"}).sampling.grammar
    assert schema is not None
    assert (schema.kind, schema.param) == ("json_schema", "json_schema")
    assert request_of(api, json_schema={}).sampling.grammar.kind == "json_object"  # type: ignore[union-attr]
    apart = request_of(api, cache_prompt=False)
    assert apart.cache_salt == apart.request_id
    assert request_of(api, cache_prompt=True).cache_salt == ""
    assert request_of(api, n_indent=4, t_max_predict_ms=500).lines == LineLimits(4, 0.5)
    shifted = request_of(api, n_keep=-1, n_discard=9)
    assert (shifted.may_shift, shifted.n_keep, shifted.n_discard) == (True, -1, 9)
    assert request_of(api, lora=[]).adapter == ""
    assert request_of(api, samplers="i").sampling.infill


@table("api", OPENAI)
def test_samplers_that_are_not_listed_are_off_whatever_the_model_says(api: str) -> None:
    sampling = request_of(api, samplers=["temperature", "min_p"], min_p=0.1, temperature=0.5).sampling
    assert (sampling.min_p, sampling.temperature, sampling.top_k, sampling.top_p) == (0.1, 0.5, 0, 1.0)
    call = parse(api, samplers=["top_p"], top_p=0.5, top_k=3, repetition_penalty=1.2, dry_multiplier=0.8)
    assert call.ignored == ("top_k", "repetition_penalty", "dry_multiplier")
    assert set(call.idle.values()) == {"its sampler is not one of samplers"}
    sampling = call.requests[0].sampling
    assert (sampling.top_p, sampling.top_k, sampling.repetition_penalty, sampling.has_dry) == (0.5, 0, 1.0, False)
    assert parse(api, samplers=["top_p", "top_k"]).ignored == ("samplers",)  # another order than there is


def test_probabilities_are_asked_for_by_another_name() -> None:
    assert request_of("completions", n_probs=3).sampling.logprobs == 3
    assert request_of("chat", n_probs=3).sampling.logprobs == 3
    assert request_of("completions", n_probs=0).sampling.logprobs is None
    assert request_of("chat", n_probs=2, post_sampling_probs=True).sampling.post_sampling_probs
    assert parse("chat", post_sampling_probs=True).ignored == ("post_sampling_probs",)
    assert parse("responses", n_probs=3, return_tokens=True).ignored == ("n_probs", "return_tokens")


@table("api", OPENAI)
def test_the_other_name_counts_where_both_are_given(api: str) -> None:
    own = "max_output_tokens" if api == "responses" else "max_tokens"
    call = parse(api, n_predict=9, repeat_penalty=1.5, **{own: 7}, repetition_penalty=1.1)
    assert call.ignored == ("n_predict", "repeat_penalty")
    assert (call.requests[0].max_tokens, call.requests[0].sampling.repetition_penalty) == (7, 1.1)


@table("api", OPENAI)
@table(
    ("name", "value", "told"),
    [
        ("n_predict", -2, "-2"),
        ("n_cmpl", 0, "0"),
        ("repeat_penalty", 0, "0"),
        ("repeat_last_n", -2, "-2"),
        ("samplers", ["top_z"], '"top_z"'),
        ("grammar", "yes or no", '"yes or no"'),
        ("json_schema", {"type": "strin"}, '"strin"'),
        ("n_keep", -2, "-2"),
        ("n_discard", -1, "-1"),
        ("n_indent", -1, "-1"),
        ("t_max_predict_ms", -2, "-2"),
        ("lora", [{"id": 5}], "5"),
    ],
)
def test_a_bad_value_is_refused_by_its_own_name(api: str, name: str, value: Any, told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(api, **{name: value})
    assert name in str(refused.value)
    assert told in str(refused.value)


def test_the_fields_are_those_that_are_described() -> None:
    own = {*LlamaFields.__struct_fields__} - {*GrammarFields.__struct_fields__}
    assert own | {"n_probs", "return_tokens", "grammar", "json_schema"} == set(EFFECTS)
    assert set(ALIASES) <= set(EFFECTS)
