"""Every documented parameter has its effect in every profile and version that documents it."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import InvalidParameter
from dragoman.server.api import ModelProfile
from dragoman.server.apis.lmi_wire.parameters import BACKENDS, TABLE, VERSIONS
from dragoman.types import Grammar
from tests.dialects.lmi_calls import parse, request_of, tgi_request, value_at
from tests.support.tables import table

COMMON_31 = [
    "do_sample",
    "seed",
    "temperature",
    "repetition_penalty",
    "top_k",
    "top_p",
    "max_new_tokens",
    "details",
    "return_full_text",
    "stop_sequences",
]
VLLM_31 = [
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "best_of",
    "num_beams",
    "length_penalty",
    "early_stopping",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos_token",
    "logprobs",
    "prompt_logprobs",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "decoder_input_details",
]
TRT_31 = [
    "temperature",
    "top_k",
    "top_p",
    "min_length",
    "bad_sequences",
    "stop",
    "presence_penalty",
    "length_penalty",
    "frequency_penalty",
]
COMMON_26 = [name for name in COMMON_31 if name != "stop_sequences"]
DEEPSPEED_26 = ["typical_p", "stop_sequences", "truncate"]
VLLM_26 = [
    "stop_sequences",
    "temperature",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "num_beams",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos_token",
    "logprobs",
    "prompt_logprobs",
    "skip_special_tokens",
    "spaces_between_special_tokens",
]
TRT_26 = [
    "temperature",
    "repetition_penalty",
    "max_new_tokens",
    "top_k",
    "top_p",
    "details",
    "stop",
    "presence_penalty",
    "length_penalty",
    "stop_words_list",
    "bad_words_list",
    "min_length",
]

DOCUMENTED: dict[tuple[str, str], list[str]] = {
    ("0.31", "vllm"): COMMON_31 + VLLM_31,
    ("0.31", "lmi-dist"): COMMON_31 + VLLM_31 + ["typical_p", "truncate"],
    ("0.31", "trtllm"): COMMON_31 + TRT_31,
    ("0.31", "scheduler"): COMMON_31,
    ("0.31", "auto"): COMMON_31 + VLLM_31 + TRT_31 + ["typical_p", "truncate"],
    ("0.26", "deepspeed"): COMMON_26 + DEEPSPEED_26,
    ("0.26", "lmi-dist"): [*COMMON_26, *DEEPSPEED_26, "ignore_eos_token"],
    ("0.26", "vllm"): COMMON_26 + VLLM_26,
    ("0.26", "trtllm"): COMMON_26 + TRT_26,
    ("0.26", "auto"): COMMON_26 + DEEPSPEED_26 + VLLM_26 + TRT_26,
}
"""The parameters of the LMI schema pages v0.31 and v0.26, by version and backend; 0.32 has those of 0.31."""
DOCUMENTED |= {("0.32", profile): names for (version, profile), names in DOCUMENTED.items() if version == "0.31"}

SAMPLE = {"do_sample": True}
BEAMS = {"num_beams": 3}

EFFECTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "do_sample": ({"do_sample": True}, {"sampling.is_greedy": False}),
    "seed": ({"seed": 42}, {"sampling.seed": 42}),
    "temperature": (SAMPLE | {"temperature": 0.5}, {"sampling.temperature": 0.5}),
    "repetition_penalty": ({"repetition_penalty": 1.2}, {"sampling.repetition_penalty": 1.2}),
    "top_k": (SAMPLE | {"top_k": 7}, {"sampling.top_k": 7}),
    "top_p": (SAMPLE | {"top_p": 0.5}, {"sampling.top_p": 0.5}),
    "min_p": (SAMPLE | {"min_p": 0.1}, {"sampling.min_p": 0.1}),
    "typical_p": (SAMPLE | {"typical_p": 0.9}, {"sampling.typical_p": 0.9}),
    "max_new_tokens": ({"max_new_tokens": 5}, {"max_tokens": 5}),
    "stop_sequences": ({"stop_sequences": ["a", "b"]}, {"stop": ("a", "b")}),
    "stop": ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
    "stop_words_list": ({"stop_words_list": ["a"]}, {"stop": ("a",)}),
    "bad_sequences": ({"bad_sequences": ["a"]}, {"sampling.bad_words": ("a",)}),
    "bad_words_list": ({"bad_words_list": ["a"]}, {"sampling.bad_words": ("a",)}),
    "min_length": ({"min_length": 4}, {"sampling.min_tokens": 4}),
    "truncate": ({"truncate": 9}, {"truncate_prompt_tokens": 9}),
    "presence_penalty": ({"presence_penalty": 0.5}, {"sampling.presence_penalty": 0.5}),
    "frequency_penalty": ({"frequency_penalty": -0.5}, {"sampling.frequency_penalty": -0.5}),
    "n": (SAMPLE | {"n": 2}, {"sampling.n": 2}),
    "best_of": (SAMPLE | {"best_of": 3}, {"sampling.best_of": 3, "sampling.n": 3}),
    "num_beams": (BEAMS, {"sampling.num_beams": 3, "sampling.n": 3}),
    "length_penalty": (BEAMS | {"length_penalty": 2.0}, {"sampling.length_penalty": 2.0}),
    "early_stopping": (BEAMS | {"early_stopping": True}, {"sampling.early_stopping": True}),
    "stop_token_ids": ({"stop_token_ids": [5, 6]}, {"sampling.stop_token_ids": (5, 6)}),
    "include_stop_str_in_output": ({"include_stop_str_in_output": True}, {"include_stop_in_text": True}),
    "ignore_eos_token": ({"ignore_eos_token": True}, {"sampling.ignore_eos": True}),
    "logprobs": ({"logprobs": 4}, {"sampling.logprobs": 4}),
    "prompt_logprobs": ({"prompt_logprobs": 2}, {"sampling.prompt_logprobs": 2}),
    "decoder_input_details": ({"decoder_input_details": True}, {"sampling.prompt_logprobs": 0}),
    "skip_special_tokens": ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
    "spaces_between_special_tokens": (
        {"spaces_between_special_tokens": False},
        {"spaces_between_special_tokens": False},
    ),
}
"""Parameters, and what they set in the request. Those that only shape the answer are in test_lmi_answers."""

SHAPE_THE_ANSWER = {"details", "return_full_text"}


REACH_THE_REQUEST = [
    (version, profile, name)
    for (version, profile), names in DOCUMENTED.items()
    for name in dict.fromkeys(names)
    if name not in SHAPE_THE_ANSWER
]


@table(("version", "profile", "name"), REACH_THE_REQUEST)
def test_a_documented_parameter_sets_its_part_of_the_request(version: str, profile: str, name: str) -> None:
    parameters, expected = EFFECTS[name]
    options = {"rolling_batch": profile, "lmi_version": version}
    request = request_of(parameters, **options)
    without = request_of({key: value for key, value in parameters.items() if key != name}, **options)
    for path, value in expected.items():
        assert value_at(request, path) == value
    assert any(value_at(without, path) != value for path, value in expected.items())
    assert name not in parse(parameters | {"details": True}, **options).ignored


@table("profile", BACKENDS)
@table("version", VERSIONS)
def test_defaults_without_parameters_are_greedy_and_thirty_tokens(version: str, profile: str) -> None:
    request = request_of(rolling_batch=profile, lmi_version=version)
    assert request.sampling.temperature == 0.0
    assert (request.sampling.top_k, request.sampling.top_p, request.sampling.logprobs) == (0, 1.0, 0)
    assert request.max_tokens == (128 if (version, profile) == ("0.26", "trtllm") else 30)
    assert (request.sampling.n, request.sampling.best_of, request.sampling.num_beams) == (1, None, 1)
    assert (request.on_overflow, request.sampling.seed, request.stop) == ("clip", None, ())


@table(
    ("version", "profile", "expected"),
    [
        ("0.31", "auto", (1.0, 0, 1.0)),
        ("0.31", "vllm", (1.0, 0, 1.0)),
        ("0.31", "scheduler", (1.0, 0, 1.0)),
        ("0.31", "trtllm", (1.0, 5, 0.85)),
        ("0.32", "trtllm", (1.0, 5, 0.85)),
        ("0.26", "trtllm", (0.8, 5, 0.85)),
        ("0.26", "vllm", (1.0, 0, 1.0)),
        ("0.26", "deepspeed", (1.0, 0, 1.0)),
    ],
)
def test_sampling_defaults_are_those_of_the_backend(
    version: str, profile: str, expected: tuple[float, int, float]
) -> None:
    sampling = request_of(SAMPLE, rolling_batch=profile, lmi_version=version).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == expected


@table(("version", "expected"), [("0.26", 0), ("0.31", 1), ("0.32", 1)])
def test_tensorrt_generates_at_least_one_token_since_0_31(version: str, expected: int) -> None:
    assert request_of(rolling_batch="trtllm", lmi_version=version).sampling.min_tokens == expected


@table(
    ("name", "profile"),
    [("typical_p", "vllm"), ("truncate", "vllm"), ("min_p", "trtllm"), ("n", "scheduler"), ("min_length", "vllm")],
)
def test_a_parameter_of_another_backend_is_dropped_and_reported(name: str, profile: str) -> None:
    call = parse(EFFECTS[name][0], rolling_batch=profile)
    assert name in call.ignored
    assert call.requests == parse(EFFECTS[name][0] | {name: None}, rolling_batch=profile).requests


def test_null_means_not_given_for_every_parameter() -> None:
    nulls = {name: None for row in TABLE for name in (row.name, *row.aliases)}
    for profile in BACKENDS:
        call = parse(nulls, rolling_batch=profile)
        assert call.requests == parse({}, rolling_batch=profile).requests
        assert call.ignored == ()
    assert tgi_request(nulls) == tgi_request()


@table(
    ("sent", "same_as"),
    [
        ({"max_new_tokens": "256"}, {"max_new_tokens": 256}),
        ({"max_new_tokens": 256.0}, {"max_new_tokens": 256}),
        ({"do_sample": "true", "temperature": "0.5"}, {"do_sample": True, "temperature": 0.5}),
        ({"do_sample": 1}, {"do_sample": True}),
        ({"ignore_eos_token": "False"}, {}),
        ({"stop_sequences": "a"}, {"stop_sequences": ["a"]}),
        ({"stop_token_ids": 5}, {"stop_token_ids": [5]}),
        ({"stop_token_ids": ["5"]}, {"stop_token_ids": [5]}),
        ({"seed": "7"}, {"seed": 7}),
        ({"logit_bias": {"5": "1.5"}}, {"logit_bias": {"5": 1.5}}),
        ({"max_tokens": 9}, {"max_new_tokens": 9}),
        ({"ignore_eos": True}, {"ignore_eos_token": True}),
        ({"best_of": 3, "use_beam_search": True}, {"num_beams": 3}),
    ],
)
def test_what_the_real_server_coerces_means_the_same(sent: dict[str, Any], same_as: dict[str, Any]) -> None:
    assert parse(sent).requests == parse(same_as).requests


def test_stop_texts_of_all_names_are_joined() -> None:
    sent = {"stop_sequences": ["a", "b"], "stop": "b", "stop_words_list": ["c"]}
    assert request_of(sent).stop == ("a", "b", "c")


def test_a_boolean_stop_is_ignored_and_reported() -> None:
    call = parse({"stop": True}, rolling_batch="trtllm")
    assert call.requests[0].stop == ()
    assert call.ignored == ("stop",)


def test_of_two_names_for_the_length_the_documented_one_wins() -> None:
    call = parse({"max_tokens": 5, "max_new_tokens": 7})
    assert call.requests[0].max_tokens == 7
    assert call.ignored == ("max_tokens",)


def test_a_literal_request_output_len_is_the_length_in_tensorrt() -> None:
    assert request_of({"request_output_len": 8}, rolling_batch="trtllm").max_tokens == 8


def test_a_budget_of_reasoning_is_named_where_the_model_has_none_to_tell() -> None:
    call = parse({"thinking_token_budget": 5})
    assert call.ignored == ("thinking_token_budget",)
    assert "reasoning" in call.idle["thinking_token_budget"]
    assert parse({"thinking_token_budget": 5}, model=ModelProfile(abilities=frozenset({"thinking"}))).ignored == ()
    with pytest.raises(InvalidParameter, match=r"thinking_token_budget must be between -1 and "):
        parse({"thinking_token_budget": -2})


def test_negative_seeds_are_read_as_unsigned() -> None:
    assert request_of({"seed": -1}).sampling.seed == 2**64 - 1


def test_top_n_tokens_wins_over_logprobs() -> None:
    call = parse({"top_n_tokens": 5, "logprobs": 2, "details": True})
    assert (call.requests[0].sampling.logprobs, call.ignored) == (5, ("logprobs",))
    assert parse({"top_n_tokens": 0, "logprobs": 2, "details": True}).ignored == ()


@table("profile", [*BACKENDS, "disable"])
def test_top_n_tokens_and_logprobs_are_taken_in_every_profile(profile: str) -> None:
    assert request_of({"top_n_tokens": 3}, rolling_batch=profile).sampling.logprobs == 3
    assert request_of({"logprobs": 2}, rolling_batch=profile).sampling.logprobs == 2


@table(
    ("parameters", "expected"),
    [
        ({"logit_bias": {"5": 1.5, "6": -100}}, {"sampling.logit_bias": {5: 1.5, 6: -100.0}}),
        ({"min_tokens": 3}, {"sampling.min_tokens": 3}),
        ({"thinking_token_budget": 0}, {"sampling.thinking_token_budget": 0}),
        ({"response_format": {"type": "json_object"}}, {"sampling.grammar": Grammar("json_object")}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
            {"sampling.grammar": Grammar("json_schema", '{"type":"object"}')},
        ),
        (
            {"response_format": {"type": "json_object", "value": {"type": "object"}}},
            {"sampling.grammar": Grammar("json_schema", '{"type":"object"}')},
        ),
        ({"guided_json": {"type": "array"}}, {"sampling.grammar": Grammar("json_schema", '{"type":"array"}')}),
        ({"guided_json": '{"type": "array"}'}, {"sampling.grammar": Grammar("json_schema", '{"type":"array"}')}),
        ({"guided_regex": "a+"}, {"sampling.grammar": Grammar("regex", "a+")}),
        ({"guided_choice": ["a", "b"]}, {"sampling.grammar": Grammar("choice", '["a","b"]')}),
        ({"guided_grammar": 'start: "a"'}, {"sampling.grammar": Grammar("lark", 'start: "a"')}),
        ({"use_beam_search": True, "best_of": 2}, {"sampling.num_beams": 2, "sampling.n": 2}),
    ],
)
@table("profile", ["auto", "vllm", "lmi-dist"])
def test_vllm_profiles_take_the_engines_further_parameters(
    profile: str, parameters: dict[str, Any], expected: dict[str, Any]
) -> None:
    request = request_of(parameters, rolling_batch=profile)
    for path, value in expected.items():
        assert value_at(request, path) == value
        assert value_at(request_of(rolling_batch=profile), path) != value


def test_a_text_response_format_constrains_nothing() -> None:
    assert request_of({"response_format": {"type": "text"}}).sampling.grammar is None


def test_parameters_of_the_details_are_reported_without_details() -> None:
    names = ("decoder_input_details", "prompt_logprobs", "top_n_tokens", "logprobs")
    sent = dict.fromkeys(names, 1)
    assert parse(sent).ignored == names
    assert parse(sent | {"details": True}).ignored == ()
    assert parse(sent | {"n": 2}).ignored == ()


def test_neutral_values_are_not_reported() -> None:
    sent = {"length_penalty": 1.0, "early_stopping": False, "top_n_tokens": 0, "top_p": 1.0, "top_k": -1, "n": 1}
    assert parse(sent).ignored == ()


def test_unknown_parameters_are_reported_in_the_order_they_came() -> None:
    assert parse({"zebra": 1, "ape": [], "nothing": None}).ignored == ("zebra", "ape")


def test_tgi_names_are_taken_in_every_profile_with_tgi_compat() -> None:
    request = request_of(
        {"truncate": 5, "frequency_penalty": 0.5, "best_of": 2, "grammar": {"type": "regex", "value": "a"}},
        rolling_batch="scheduler",
        tgi_compat=True,
    )
    assert (request.truncate_prompt_tokens, request.sampling.frequency_penalty) == (5, 0.5)
    assert (request.sampling.best_of, request.sampling.grammar) == (2, Grammar("regex", "a"))
