"""Illegal parameters are refused by name, value and rule."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import InvalidParameter
from dragoman.types import Limits
from tests.dialects.lmi_calls import parse
from tests.support.tables import table


@table(
    ("parameters", "param", "said"),
    [
        ({"temperature": -1}, "temperature", "'temperature' must be a number of at least 0, got -1"),
        ({"temperature": "hot"}, "temperature", "'temperature' must be a number of at least 0, got \"hot\""),
        ({"temperature": "nan"}, "temperature", "must be a number"),
        ({"temperature": "1e999"}, "temperature", "must be a number"),
        ({"top_p": 3}, "top_p", "'top_p' must be a number from 0 to 1, got 3"),
        ({"top_k": -2}, "top_k", "'top_k' must be an integer of at least -1, got -2"),
        ({"top_k": 1.5}, "top_k", "'top_k' must be an integer of at least -1, got 1.5"),
        ({"top_k": True}, "top_k", "'top_k' must be an integer of at least -1, got true"),
        ({"max_new_tokens": 0}, "max_new_tokens", "must be an integer of at least 1, got 0"),
        ({"max_new_tokens": 10**12}, "max_new_tokens", "must be an integer of at most 2147483647, got 1000000000000"),
        ({"stop_token_ids": [2**40]}, "stop_token_ids", "must be a list of token ids, got [1099511627776]"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "must be an object of token ids and biases"),
        ({"logit_bias": [1]}, "logit_bias", "must be an object of token ids and biases"),
        ({"temperature": 10**400}, "temperature", "must be a number"),
        ({"temperature": True}, "temperature", "must be a number of at least 0, got true"),
        ({"seed": "9" * 50}, "seed", "must be an integer from"),
        ({"guided_regex": ""}, "guided_regex", "must be a regular expression"),
        ({"guided_json": 5}, "guided_json", "must be a JSON schema"),
        ({"grammar": {"type": "json"}}, "grammar", "'grammar.value' is missing: it must be a JSON schema"),
        ({"max_new_tokens": "x"}, "max_new_tokens", 'must be an integer of at least 1, got "x"'),
        ({"repetition_penalty": 0}, "repetition_penalty", "must be a number above 0, got 0"),
        ({"presence_penalty": 2.5}, "presence_penalty", "must be a number from -2 to 2, got 2.5"),
        ({"typical_p": 0}, "typical_p", "must be a number above 0 and at most 1, got 0"),
        ({"n": 21}, "n", "must be an integer from 1 to 20 (max_best_of), got 21"),
        ({"best_of": 21}, "best_of", "must be an integer from 1 to 20 (max_best_of), got 21"),
        ({"num_beams": 21}, "num_beams", "must be an integer from 1 to 20 (max_best_of), got 21"),
        ({"logprobs": 21}, "logprobs", "must be an integer from 0 to 20 (max_logprobs), got 21"),
        ({"details": "maybe"}, "details", "'details' must be a boolean, got \"maybe\""),
        ({"stop_sequences": [""]}, "stop_sequences", "must be a list of non-empty strings"),
        ({"stop_sequences": {"a": 1}}, "stop_sequences", "must be a list of non-empty strings"),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences", "at most 64 entries, got 65"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "must be a list of token ids, got [-1]"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "must be an object of token ids and biases"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "must be an object of token ids and biases"),
        ({"early_stopping": "sometimes"}, "early_stopping", 'must be a boolean or "never"'),
        ({"response_format": {"type": "xml"}}, "response_format", "must be text, json_object, json_schema"),
        ({"guided_json": "{"}, "guided_json", "must be a JSON schema"),
        ({"guided_choice": []}, "guided_choice", "must be a list of non-empty strings"),
        ({"seed": 2**64}, "seed", "must be an integer from -9223372036854775808 to 18446744073709551615"),
        ({"n": 3, "best_of": 2}, "n", "'n' must not exceed best_of (2), got 3"),
        ({"n": 3, "num_beams": 2}, "n", "'n' must not exceed num_beams (2), got 3"),
        ({"best_of": 3, "num_beams": 2}, "best_of", "'best_of' must not exceed num_beams (2), got 3"),
        ({"num_beams": 2, "do_sample": True}, "num_beams", "'num_beams' must be 1 when do_sample is true, got 2"),
        ({"min_length": 31}, "min_length", "'min_length' must not exceed max_new_tokens (30), got 31"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "'guided_regex' contradicts"),
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
    options = {"limits": Limits(max_best_of=2, max_logprobs=1, max_stop_strings=1)}
    for parameters in ({"n": 3}, {"top_n_tokens": 2}, {"stop": ["a", "b"]}):
        parse(parameters)
        with pytest.raises(InvalidParameter):
            parse(parameters, **options)


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(InvalidParameter) as caught:
        parse({"temperature": "x" * 10_000})
    assert len(caught.value.message) < 200
