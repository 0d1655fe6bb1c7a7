"""The parameters of TGI's own routes."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import InvalidParameter
from dragoman.parameters import ALIASES, FURTHER
from dragoman.server.apis.lmi_wire.parameters import TABLE, TGI
from dragoman.types import Grammar
from tests.dialects.lmi_calls import request_of, tgi_request, value_at
from tests.dialects.test_lmi_parameters import EFFECTS, SHAPE_THE_ANSWER
from tests.support.tables import table

TGI_EFFECTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{name: EFFECTS[name] for name in ("do_sample", "seed", "top_k", "top_p", "typical_p", "repetition_penalty")},
    **{name: EFFECTS[name] for name in ("max_new_tokens", "truncate", "stop", "stop_sequences", "best_of")},
    **{name: EFFECTS[name] for name in ("frequency_penalty", "decoder_input_details")},
    "temperature": ({"temperature": 0.5}, {"sampling.temperature": 0.5}),
    "top_n_tokens": ({"top_n_tokens": 2}, {"sampling.logprobs": 2}),
    "grammar": (
        {"grammar": {"type": "json", "value": {"type": "object"}}},
        {"sampling.grammar": Grammar("json_schema", '{"type":"object"}')},
    ),
}


@table("name", TGI_EFFECTS)
def test_a_parameter_of_tgi_sets_its_part_of_the_request(name: str) -> None:
    parameters, expected = TGI_EFFECTS[name]
    without = tgi_request({key: value for key, value in parameters.items() if key != name})
    for path, value in expected.items():
        assert value_at(tgi_request(parameters), path) == value
    assert any(value_at(without, path) != value for path, value in expected.items())


@table("value", [{"name": "x", "schema": {"type": "array"}}, {"type": "array"}], ids=["named schema", "schema"])
def test_a_grammar_of_type_json_schema_takes_a_schema_with_or_without_a_name(value: dict[str, Any]) -> None:
    sampling = tgi_request({"grammar": {"type": "json_schema", "value": value}}).sampling
    assert sampling.grammar == Grammar("json_schema", '{"type":"array"}')


def test_a_grammar_of_tgi_keeps_its_name() -> None:
    grammar = tgi_request({"grammar": {"type": "json", "value": {"dependentSchemas": {"a": {}}}}}).sampling.grammar
    assert grammar is not None
    assert (grammar.param, list(grammar.passed_over)) == ("grammar.value", ["grammar.value.dependentSchemas"])


def test_every_parameter_of_tgi_is_tested() -> None:
    names = {name for row in TABLE if TGI in row.profiles for name in (row.name, *row.aliases)}
    elsewhere = {"adapter_id", *FURTHER, *ALIASES}  # which test_adapters.py and test_samplers.py send
    assert names - SHAPE_THE_ANSWER - elsewhere == set(TGI_EFFECTS)


def test_tgi_has_its_own_defaults() -> None:
    request = tgi_request()
    assert (request.max_tokens, request.on_overflow, request.sampling.is_greedy) == (100, "refuse", True)


@table("parameters", [{"temperature": 1.0}, {"top_p": 1.0}, {"do_sample": False}])
def test_tgi_stays_greedy_with_neutral_values(parameters: dict[str, Any]) -> None:
    assert tgi_request(parameters).sampling.is_greedy


@table("parameters", [{"temperature": 0.7}, {"top_p": 0.5}, {"top_k": 4}, {"typical_p": 0.5}])
def test_tgi_samples_with_any_other_value(parameters: dict[str, Any]) -> None:
    assert not tgi_request(parameters).sampling.is_greedy


@table("parameters", [{"temperature": 0}, {"top_k": 0}, {"top_p": 0}, {"seed": -1}, {"stop": True}])
def test_tgi_refuses_what_is_out_of_its_own_ranges(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        tgi_request(parameters)


def test_a_text_of_tgi_ends_with_the_stop_string_that_ended_it() -> None:
    assert tgi_request({"stop": ["x"]}).include_stop_in_text
    assert not request_of({"stop": ["x"]}).include_stop_in_text
