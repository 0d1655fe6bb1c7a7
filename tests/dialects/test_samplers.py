"""DRY, top-n sigma and XTC as fields of every API that takes fields beside its documented ones."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dragoman.errors import InvalidRequest
from dragoman.parameters import ALIASES, FURTHER, SamplingFields
from dragoman.server.api import Call, HttpCall
from dragoman.types import FurtherSampling
from tests.support.real_dialects import real_dialects
from tests.support.tables import table

CHAT = {"messages": [{"role": "user", "content": "Say it"}]}
APIS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "completions": ("/v1/completions", "openai.completions", {"prompt": "Say it"}, ""),
    "chat": ("/v1/chat/completions", "openai.chat", CHAT, ""),
    "ovms": ("/v3/completions", "ovms.completions", {"prompt": "Say it", "model": "fake"}, ""),
    "responses": ("/v1/responses", "responses.v1", {"input": "Say it"}, ""),
    "lmi": ("/invocations", "lmi", {"inputs": "Say it"}, "parameters"),
    "tgi": ("/generate", "tgi", {"inputs": "Say it"}, "parameters"),
    "ollama": ("/api/generate", "ollama.generate", {"prompt": "Say it", "model": "fake"}, "options"),
}
"""By API: its path, its dialect's name, the rest of a body, and the object in the body that its parameters are in."""

DRY = {"dry_multiplier": 0.8}
XTC = {"xtc_probability": 0.5}
EFFECTS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "dry_multiplier": (DRY, "dry_multiplier", 0.8),
    "dry_base": (DRY | {"dry_base": 2.0}, "dry_base", 2.0),
    "dry_allowed_length": (DRY | {"dry_allowed_length": 5}, "dry_allowed_length", 5),
    "dry_penalty_last_n": (DRY | {"dry_penalty_last_n": 512}, "dry_penalty_last_n", 512),
    "dry_sequence_breakers": (DRY | {"dry_sequence_breakers": [".", "\n"]}, "dry_sequence_breakers", (".", "\n")),
    "top_n_sigma": ({"top_n_sigma": 1.5}, "top_n_sigma", 1.5),
    "nsigma": ({"nsigma": 1.5}, "top_n_sigma", 1.5),
    "xtc_probability": (XTC, "xtc_probability", 0.5),
    "xtc_threshold": (XTC | {"xtc_threshold": 0.2}, "xtc_threshold", 0.2),
}
"""By field: parameters that have it, the neutral field that it sets, to which value."""

IDLE: list[dict[str, Any]] = [
    {"dry_base": 2.0, "dry_allowed_length": 5, "dry_sequence_breakers": ["."]},
    {"dry_multiplier": 0.8, "dry_penalty_last_n": 0},
    {"xtc_threshold": 0.2},
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"dry_multiplier": -0.5}, "-0.5"),
    ({"dry_base": 0.9}, "0.9"),
    ({"dry_allowed_length": 0}, "0"),
    ({"dry_penalty_last_n": -2}, "-2"),
    ({"dry_sequence_breakers": ["x"] * 17}, "17"),
    ({"dry_sequence_breakers": ["x" * 41]}, "41"),
    ({"dry_sequence_breakers": ["a", ""]}, '""'),
    ({"dry_sequence_breakers": [3]}, "3"),
    ({"top_n_sigma": -2}, "-2"),
    ({"nsigma": 200}, "200"),
    ({"xtc_probability": 1.5}, "1.5"),
    ({"xtc_threshold": -0.5}, "-0.5"),
]


def parsed(api: str, *, is_drawn: bool = True, **parameters: Any) -> Call:
    path, name, body, place = APIS[api]
    if place == "parameters":
        parameters = {"do_sample": is_drawn, **parameters}
    elif not is_drawn:
        parameters = {"temperature": 0, **parameters}
    sent = {**body, place: parameters} if place else {**body, **parameters}
    headers = {"content-type": "application/json", "user-agent": "x"}
    http = HttpCall("POST", path, json.dumps(sent).encode(), headers, request_id="r")
    return real_dialects(generation_defaults={}, overriding_defaults={})[name].open(http).parse()


def named(api: str, parameters: dict[str, Any]) -> set[str]:
    return {f"options.{name}" if api == "ollama" else name for name in parameters}


def test_the_fields_of_bodies_are_the_neutral_ones_and_their_other_names() -> None:
    assert FurtherSampling.__struct_fields__ == FURTHER
    assert {*FURTHER, *ALIASES} == set(EFFECTS) <= set(SamplingFields.__struct_fields__)


@table("api", APIS)
def test_every_field_has_its_effect(api: str) -> None:
    for parameters, field, value in EFFECTS.values():
        call = parsed(api, **parameters)
        neutral = msgspec.structs.replace(call.requests[0].sampling, **{field: value})
        assert call.requests[0].sampling == neutral
        assert call.ignored == ()
        assert getattr(parsed(api).requests[0].sampling, field) != value


@table("api", APIS)
def test_what_is_switched_off_is_as_if_it_was_not_sent(api: str) -> None:
    call = parsed(api, dry_multiplier=0, top_n_sigma=-1, xtc_probability=0)
    assert call.requests == parsed(api).requests
    assert call.ignored == ()


@table("api", APIS)
def test_what_belongs_to_a_sampler_that_is_off_is_named(api: str) -> None:
    for parameters in IDLE:
        call = parsed(api, **parameters)
        told = set(call.ignored)
        assert named(api, parameters) - {"dry_multiplier", "dry_penalty_last_n"} <= told <= named(api, parameters)
        assert told
        assert call.requests == parsed(api).requests
        assert all(call.idle.values())


@table("api", APIS)
def test_where_nothing_is_drawn_only_dry_counts(api: str) -> None:
    drawing = {"nsigma": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.2}
    call = parsed(api, is_drawn=False, dry_multiplier=0.8, **drawing)
    assert call.requests[0].sampling.dry_multiplier == 0.8
    if api != "tgi":  # which draws as soon as a value is not neutral
        assert set(call.ignored) == named(api, drawing)


@table("api", APIS)
def test_a_bad_value_is_refused_by_name_with_what_is_allowed(api: str) -> None:
    for parameters, shown in WRONG:
        (name,) = parameters
        with pytest.raises(InvalidRequest) as caught:
            parsed(api, **parameters)
        assert name in (caught.value.param or "")
        assert name in caught.value.message
        assert shown in caught.value.message
        assert "\n" not in caught.value.message
