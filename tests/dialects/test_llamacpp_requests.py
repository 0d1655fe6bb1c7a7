"""What llama.cpp's bodies mean in neutral words, and what is refused or has no effect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.errors import InvalidRequest
from dragoman.server.api import Call
from dragoman.server.apis.llamacpp.request import BANNED, NEUTRAL, LlamaSharedBody, default_settings
from dragoman.server.timings import ToldProgress
from dragoman.types import Grammar, InfillPrompt, LineLimits, MixedPrompt, Prompt, SamplingParams
from tests.dialects.llamacpp_calls import complete, infill
from tests.support.real_dialects import fake_profile
from tests.support.tables import table

ADAPTED = fake_profile(takes_adapters=True, adapter_names=lambda: ("first", "second"))


def sampling(call: Call) -> SamplingParams:
    return call.requests[0].sampling


def prompts(call: Call) -> list[Prompt]:
    return [request.prompt for request in call.requests]


# --- prompts ----------------------------------------------------------------------------------------------------------


@table(
    ("prompt", "expected"),
    [
        ("text", [("text",)]),
        ("", [("",)]),
        ([12, 34, 56], [(12, 34, 56)]),
        ([12, 34, "text", 56], [(12, 34, "text", 56)]),
        ({"prompt_string": "text"}, [("text",)]),
        (["one", "two"], [("one",), ("two",)]),
        (["one"], [("one",)]),
        (["one", [12, 34], {"prompt_string": "two"}], [("one",), (12, 34), ("two",)]),
        ([[12, "one"], [34]], [(12, "one"), (34,)]),
    ],
)
def test_prompts_come_in_all_forms(prompt: Any, expected: list[tuple[str | int, ...]]) -> None:
    assert prompts(complete(prompt=prompt)) == [MixedPrompt(parts) for parts in expected]


def test_code_with_a_gap_becomes_one_prompt() -> None:
    files = [{"filename": "a.h", "text": "int a();"}, {"text": "int b();"}]
    call = infill(input_extra=files, prompt="  x", n_predict=9)
    told = (("a.h", "int a();"), ("tmp", "int b();"))
    assert prompts(call) == [InfillPrompt("def a():\n", "\n", "  x", told, 9)]


# --- parameters -------------------------------------------------------------------------------------------------------


def test_without_parameters_llamacpps_defaults_hold() -> None:
    params = sampling(complete())
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert (params.repetition_penalty, params.seed, params.n, params.logprobs) == (1.0, None, 1, None)
    [request] = complete().requests
    assert (request.max_tokens, request.on_overflow, request.cache_salt, request.adapter) == (None, "clip", "", None)


def test_the_models_own_defaults_come_before_llamacpps() -> None:
    profile = fake_profile(generation_defaults={"temperature": 0.6, "top_k": 20})
    params = sampling(complete(profile))
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 20, 0.95)


def test_the_operators_seed_holds_unless_a_request_has_one_or_wants_none() -> None:
    profile = fake_profile(generation_defaults={"seed": 7})
    seeds = [sampling(complete(profile, **body)).seed for body in ({}, {"seed": 3}, {"seed": -1}, {"seed": 2**32 - 1})]
    assert seeds == [7, 3, None, None]
    assert default_settings(profile)["seed"] == 7
    assert default_settings(fake_profile())["seed"] == 2**32 - 1


@table(
    ("body", "neutral", "expected"),
    [
        ({"temperature": 0.3}, "temperature", 0.3),
        ({"temperature": -1}, "temperature", 0.0),
        ({"top_k": 0}, "top_k", 0),
        ({"top_k": -1}, "top_k", 0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"min_p": 0.2}, "min_p", 0.2),
        ({"typical_p": 0.7}, "typical_p", 0.7),
        ({"repeat_penalty": 1.3}, "repetition_penalty", 1.3),
        ({"repeat_penalty": 1.3, "repeat_last_n": 0}, "repetition_penalty", 1.0),
        ({"presence_penalty": 0.5}, "presence_penalty", 0.5),
        ({"frequency_penalty": 0.5, "repeat_last_n": -1}, "frequency_penalty", 0.5),
        ({"seed": 42}, "seed", 42),
        ({"seed": -1}, "seed", None),
        ({"seed": 4294967295}, "seed", None),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"n_probs": 3}, "logprobs", 3),
        ({"n_probs": 0}, "logprobs", None),
        ({"n_probs": 2, "post_sampling_probs": True}, "post_sampling_probs", True),
        ({"logprobs": 3}, "logprobs", 3),
        ({"n_cmpl": 2}, "n", 2),
        ({"n": 2}, "n", 2),
        ({"logit_bias": [[15, 1.5], [16, False]]}, "logit_bias", {15: 1.5, 16: BANNED}),
        ({"logit_bias": {"15": -1}}, "logit_bias", {15: -1.0}),
        ({"grammar": 'root ::= "a"'}, "grammar", Grammar("lark", 'root ::= "a"')),
        ({"grammar": "%llguidance {}\nstart: /a/"}, "grammar", Grammar("lark", "%llguidance {}\nstart: /a/")),
        ({"grammar": ""}, "grammar", None),
        ({"json_schema": {}}, "grammar", Grammar("json_object")),
        ({"samplers": ["top_k"]}, "top_p", 1.0),
        ({"samplers": ["top_k"], "temperature": 0.1}, "temperature", 1.0),
        ({"samplers": "kt", "temperature": 0.1}, "temperature", 0.1),
        ({"samplers": "kt"}, "min_p", 0.0),
        ({"dry_multiplier": 0.8}, "dry_multiplier", 0.8),
        ({"dry_multiplier": 0.8, "samplers": "tx"}, "dry_multiplier", 0.0),
        ({"xtc_probability": 0.5, "samplers": "tx"}, "xtc_probability", 0.5),
        ({"top_n_sigma": 1.5}, "top_n_sigma", 1.5),
        ({"top_n_sigma": -1}, "top_n_sigma", 0.0),
        ({"samplers": []}, "top_k", 0),
        ({}, "infill", False),
        ({"samplers": ["top_k", "infill"]}, "infill", True),
        ({"samplers": ["temperature"], "repeat_penalty": 2}, "repetition_penalty", 1.0),
        ({"dry_multiplier": 1, "dry_sequence_breakers": ["a"]}, "dry_sequence_breakers", ("a",)),
    ],
)
def test_every_parameter_of_sampling_has_its_effect(body: dict[str, Any], neutral: str, expected: Any) -> None:
    assert getattr(sampling(complete(**body)), neutral) == expected


@table(
    ("body", "neutral", "expected"),
    [
        ({"n_predict": 5}, "max_tokens", 5),
        ({"n_predict": 0}, "max_tokens", 0),
        ({"n_predict": -1}, "max_tokens", None),
        ({"max_tokens": 5}, "max_tokens", 5),
        ({"stop": "end"}, "stop", ("end",)),
        ({"stop": ["end", ""]}, "stop", ("end",)),
        ({"cache_prompt": False}, "cache_salt", "r"),
        ({"cache_prompt": True}, "cache_salt", ""),
        ({"logit_bias": [["a b", -1]]}, "biased_texts", {"a b": -1.0}),
        ({"logit_bias": {"a b": False}}, "biased_texts", {"a b": BANNED}),
        ({"n_indent": 2}, "lines", LineLimits(2)),
        ({"t_max_predict_ms": 250}, "lines", LineLimits(0, 0.25)),
        ({"t_max_predict_ms": 0}, "lines", None),
        ({"lora": [{"id": 0, "scale": 0}, {"id": 1}]}, "adapter", "second"),
        ({"lora": []}, "adapter", ""),
        ({"model": "second"}, "model", "second"),
        ({"model": "anything"}, "model", None),
    ],
)
def test_every_other_parameter_has_its_effect(body: dict[str, Any], neutral: str, expected: Any) -> None:
    assert getattr(complete(ADAPTED, **body).requests[0], neutral) == expected


@table(
    ("body", "expected"),
    [
        ({"id_slot": 0}, ("id_slot",)),
        ({"id_slot": -1}, ()),
        ({"n_keep": 5, "n_discard": 0}, ("n_keep",)),
        ({"mirostat": 2}, ("mirostat",)),
        ({"dry_base": 2.0, "xtc_probability": 0}, ("dry_base",)),
        ({"dry_multiplier": 0.8, "samplers": ["top_k"]}, ("dry_multiplier",)),
        ({"temperature": 0.0, "samplers": []}, ("temperature",)),
        ({"samplers": ["top_k", "top_p", "infill"]}, ()),
        ({"samplers": ["top_k", "adaptive_p"]}, ("samplers",)),
        ({"samplers": ["temperature", "top_k"]}, ()),
        ({"samplers": ["top_k", "temperature"]}, ("samplers",)),
        ({"repeat_penalty": 1.1, "repeat_last_n": 64}, ("repeat_last_n",)),
        ({"repeat_last_n": 64}, ()),
        ({"temperature": 0, "top_p": 0.5}, ("top_p",)),
        ({"post_sampling_probs": True}, ("post_sampling_probs",)),
        ({"post_sampling_probs": True, "n_probs": 2}, ()),
        ({"unheard_of": 1}, ("unheard_of",)),
        ({"return_progress": True}, ("return_progress",)),
        ({"return_progress": False}, ()),
        ({"grammar_lazy": False}, ()),
    ],
)
def test_what_has_no_effect_is_named(body: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert complete(**body).ignored == expected


def test_the_sampler_for_gaps_is_named_where_the_engine_lacks_it() -> None:
    call = infill(fake_profile(lacks=frozenset({"infill"})), samplers=["top_k", "top_p", "infill"])
    assert (sampling(call).infill, call.ignored) == (False, ("samplers",))


def test_progress_is_told_in_streams_of_engines_that_know_it() -> None:
    knowing = fake_profile(tells_progress=True)
    call = complete(knowing, return_progress=True, stream=True)
    assert (call.wants_progress, call.ignored) == (True, ())
    told = ToldProgress(total=9, cache=2, processed=4, time_ms=5, ahead=1, expected_ms=None)
    piece = json.loads(call.encoder.progress(told).removeprefix(b"data: "))
    assert (piece["content"], piece["stop"], piece["prompt_progress"]["processed"]) == ("", False, 4)
    for profile, is_streamed in ((knowing, False), (fake_profile(), True)):
        call = complete(profile, return_progress=True, stream=is_streamed)
        assert (call.wants_progress, call.ignored) == (False, ("return_progress",))


def test_no_parameter_without_effect_is_one_that_has_an_effect() -> None:
    assert set(NEUTRAL).isdisjoint(LlamaSharedBody.__struct_fields__)


@table(
    ("body", "param", "message"),
    [
        ({"prompt": None}, "prompt", "prompt is missing"),
        ({"prompt": []}, "prompt", "prompt must hold at least one prompt, got []"),
        ({"prompt": [[]]}, "prompt[0]", "prompt[0] must hold at least one token id or text, got []"),
        ({"prompt": 5}, "prompt", "prompt must be a text"),
        ({"prompt": [1, -2]}, "prompt[1]", "prompt[1] must be a token id or a text, got -2"),
        ({"prompt": ["a", True]}, "prompt[1]", "prompt[1] must be a text, an array"),
        ({"prompt": {"prompt_string": 5}}, "prompt.prompt_string", "prompt.prompt_string must be a text, got 5"),
        (
            {"prompt": {"prompt_string": "a", "multimodal_data": ["iV"]}},
            "prompt.multimodal_data",
            "prompt.multimodal_data is not supported",
        ),
        ({"temperature": "warm"}, "temperature", 'temperature must be a number, got "warm"'),
        ({"top_p": 2}, "top_p", "top_p must be between 0.0 and 1.0, got 2"),
        ({"n_predict": -2}, "n_predict", "n_predict must be between -1 and 2147483647, got -2"),
        ({"n_keep": -2}, "n_keep", "n_keep must be between -1 and 2147483647, got -2"),
        ({"n_discard": -1}, "n_discard", "n_discard must be between 0 and 2147483647, got -1"),
        ({"n_probs": 21}, "n_probs", "n_probs must be between 0 and 20, got 21"),
        ({"n_cmpl": 0}, "n_cmpl", "n_cmpl must be between 1 and 20, got 0"),
        ({"grammar": "nothing"}, "grammar", 'grammar must be GBNF, rules like root ::= ..., got "nothing"'),
        ({"grammar": 'root ::= "a"', "json_schema": {"type": "null"}}, "json_schema", "json_schema cannot be used"),
        ({"grammar_lazy": True}, "grammar_lazy", "grammar_lazy is not supported"),
        ({"samplers": ["top_k", "magic"]}, "samplers[1]", "samplers[1] must be one of penalties, "),
        ({"samplers": "kz"}, "samplers[1]", "samplers[1] must be one of penalties, "),
        ({"samplers": "k" * 101}, "samplers", "samplers must have at most 100 entries, got 101"),
        ({"logit_bias": [[1]]}, "logit_bias[0]", "logit_bias[0] must be a token id or text and its bias, got [1]"),
        ({"logit_bias": [[1, True]]}, "logit_bias[0]", "logit_bias[0] must be a number, or false for never, got true"),
        ({"logit_bias": [[1.5, 1]]}, "logit_bias[0]", "logit_bias[0] must begin with a token id or a text, got 1.5"),
        ({"lora": [{"id": 2}]}, "lora[0].id", "lora[0].id must be between 0 and 1, got 2"),
        ({"lora": [{"id": 0, "scale": 0.5}]}, "lora[0].scale", "lora[0].scale must be 0 or 1"),
        ({"lora": [{"id": 0}, {"id": 1}]}, "lora", "lora must have at most one adapter of scale 1, got first, second"),
    ],
)
def test_bad_values_are_refused_by_name(body: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        complete(ADAPTED, **body)
    assert caught.value.param == param
    assert caught.value.message.startswith(message)


@table(
    ("body", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": 5}, "input_suffix"),
        ({"prompt": ["a"]}, "prompt"),
        ({"input_extra": {}}, "input_extra"),
        ({"input_extra": [{}]}, "input_extra[0].text"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
        ({"input_extra": [{"filename": [], "text": "a"}]}, "input_extra[0].filename"),
        ({"input_extra": [{"filename": "a", "text": []}]}, "input_extra[0].text"),
    ],
)
def test_bad_code_with_a_gap_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        infill(**body)
    assert caught.value.param == param
    assert caught.value.message.startswith(param)
