"""Illegal parameters are refused by name, value and rule."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import InvalidParameter
from dragoman.server.api import ModelProfile
from dragoman.types import Limits
from tests.dialects.lmi_calls import parse
from tests.support.tables import table


@table(
    ("parameters", "param", "said"),
    [
        ({"temperature": -1}, "temperature", "temperature must be at least 0.0, got -1.0"),
        ({"temperature": "hot"}, "temperature", 'temperature must be a number, got "hot"'),
        ({"temperature": "nan"}, "temperature", "temperature must be a finite number, got nan"),
        ({"temperature": "1e999"}, "temperature", "must be a number"),
        ({"top_p": 3}, "top_p", "top_p must be between 0.0 and 1.0, got 3.0"),
        ({"top_k": -2}, "top_k", "top_k must be between -1 and 4294967295, got -2"),
        ({"top_k": 1.5}, "top_k", "top_k must be an integer, got 1.5"),
        ({"top_k": True}, "top_k", "top_k must be an integer, got true"),
        ({"max_new_tokens": 0}, "max_new_tokens", "max_new_tokens must be between 1 and 4294967295, got 0"),
        (
            {"max_new_tokens": 10**12},
            "max_new_tokens",
            "max_new_tokens must be between 1 and 4294967295, got 1000000000000",
        ),
        ({"logit_bias": {"-1": 1}}, "logit_bias", 'logit_bias must map token ids to numbers, got the key "-1"'),
        ({"logit_bias": [1]}, "logit_bias", "logit_bias must be an object, got [1]"),
        ({"temperature": 10**400}, "temperature", "must be a number"),
        ({"temperature": True}, "temperature", "temperature must be a number, got true"),
        (
            {"seed": "9" * 50},
            "seed",
            "seed must be between -9223372036854775808 and 18446744073709551615, got 99999999999999999999999999999999999999",
        ),
        ({"guided_regex": ""}, "guided_regex", "must be a regular expression"),
        ({"guided_json": 5}, "guided_json", "guided_json must be a string or an object, got 5"),
        ({"grammar": {"type": "json"}}, "grammar.value", "grammar.value is missing: it must be a JSON schema"),
        ({"max_new_tokens": "x"}, "max_new_tokens", 'max_new_tokens must be an integer, got "x"'),
        ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty must be greater than 0.0, got 0.0"),
        ({"presence_penalty": 2.5}, "presence_penalty", "presence_penalty must be between -2.0 and 2.0, got 2.5"),
        ({"typical_p": 0}, "typical_p", "typical_p must be greater than 0.0 and at most 1.0, got 0.0"),
        ({"n": 21}, "n", "n must be between 1 and 20, got 21"),
        ({"best_of": 21}, "best_of", "best_of must be between 1 and 20, got 21"),
        ({"num_beams": 21}, "num_beams", "num_beams must be between 1 and 20, got 21"),
        ({"logprobs": 21}, "logprobs", "logprobs must be between 0 and 20, got 21"),
        ({"details": "maybe"}, "details", 'details must be true or false, got "maybe"'),
        ({"stop_sequences": [""]}, "stop_sequences", 'stop_sequences must hold non-empty strings, got [""]'),
        ({"stop_sequences": {"a": 1}}, "stop_sequences[0]", 'stop_sequences[0] must be a string, got {"a": 1}'),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences", "stop_sequences must have at most 64 strings, got 65"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "stop_token_ids[0] must be at least 0, got -1"),
        ({"logit_bias": {"a": 1}}, "logit_bias", 'logit_bias must map token ids to numbers, got the key "a"'),
        ({"logit_bias": {"1": 101}}, "logit_bias", "logit_bias[1] must be between -100 and 100, got 101.0"),
        (
            {"early_stopping": "sometimes"},
            "early_stopping",
            'early_stopping must be true, false or "never", got "sometimes"',
        ),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type",
            'response_format.type must be text, json_object, json_schema, json or regex, got "xml"',
        ),
        ({"guided_json": "{"}, "guided_json", "must be a JSON schema"),
        ({"guided_choice": []}, "guided_choice", "must be a list of non-empty strings"),
        (
            {"seed": 2**64},
            "seed",
            "seed must be between -9223372036854775808 and 18446744073709551615, got 18446744073709551616",
        ),
        ({"n": 3, "best_of": 2}, "n", "n must be at most best_of (2), got 3"),
        ({"n": 3, "num_beams": 2}, "n", "n must be at most num_beams (2), got 3"),
        ({"best_of": 3, "num_beams": 2}, "best_of", "best_of must be at most num_beams (2), got 3"),
        ({"num_beams": 2, "do_sample": True}, "num_beams", "num_beams must be 1 when do_sample is true, got 2"),
        ({"min_length": 31}, "min_length", "min_length must be at most max_new_tokens (30), got 31"),
        (
            {"guided_regex": "a", "guided_json": {}},
            "guided_regex",
            "guided_regex cannot be used together with guided_json: give one of them",
        ),
        ({"output_formatter": 5}, "output_formatter", "must be a string, got 5"),
    ],
)
def test_an_illegal_value_is_refused_by_name_value_and_rule(parameters: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        parse(parameters)
    assert said in caught.value.message
    assert caught.value.param == param
    assert len(caught.value.message) < 250


def test_limits_are_the_operators() -> None:
    model = ModelProfile(limits=Limits(max_best_of=2, max_logprobs=1, max_stop_strings=1))
    for parameters in ({"n": 3}, {"top_n_tokens": 2}, {"stop": ["a", "b"]}):
        parse(parameters)
        with pytest.raises(InvalidParameter):
            parse(parameters, model=model)


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(InvalidParameter) as caught:
        parse({"temperature": "x" * 10_000})
    assert len(caught.value.message) < 200
