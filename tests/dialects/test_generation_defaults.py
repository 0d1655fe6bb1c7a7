"""Parameters that a client leaves out are those of generation_config.json, unless the API's document fixes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dragoman.server.api import Call, HttpCall, ModelProfile
from dragoman.server.apis import set_up_all
from dragoman.server.explaining import told
from dragoman.types import SamplingParams
from tests.support.real_dialects import fake_profile, real_dialects
from tests.support.tables import table

MODEL: Mapping[str, Any] = {
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.05,
    "typical_p": 0.8,
    "repetition_penalty": 1.1,
    "do_sample": True,
}
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"prompt": "Hi"}
APIS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "openai chat": ("/v1/chat/completions", CHAT),
    "openai completions": ("/v1/completions", COMPLETION),
    "ovms chat": ("/v3/chat/completions", {**CHAT, "model": "fake"}),
    "ovms completions": ("/v3/completions", {**COMPLETION, "model": "fake"}),
    "lmi": ("/invocations", {"inputs": "Hi"}),
    "lmi chat": ("/invocations", CHAT),
    "tgi": ("/generate", {"inputs": "Hi"}),
}
NAMES = {"openai chat": "lmi.v1_chat", "openai completions": "openai.completions", "ovms chat": "ovms.chat",
         "ovms completions": "ovms.completions", "lmi": "lmi", "lmi chat": "lmi.chat", "tgi": "tgi"}  # fmt: skip


def sampling(api: str, defaults: Mapping[str, Any], given: Mapping[str, Any], **profile: Any) -> SamplingParams:
    """What a request samples with."""
    path, body = APIS[api]
    nested = "inputs" in body
    sent = {**body, "parameters": dict(given)} if nested else {**body, **given}
    dialects = real_dialects(generation_defaults=defaults, **{"overriding_defaults": defaults, **profile})
    call = HttpCall(
        "POST", path, json.dumps(sent).encode(), {"content-type": "application/json", "user-agent": "x"}, request_id="r"
    )
    (request,) = dialects[NAMES[api]].open(call).parse().requests
    return request.sampling


def shown(params: SamplingParams) -> dict[str, Any]:
    """The values that the file may name."""
    return {name: getattr(params, name) for name in MODEL if name != "do_sample"}


@table("api", APIS)
def test_what_is_left_out_is_the_models(api: str) -> None:
    expected = {name: value for name, value in MODEL.items() if name != "do_sample"}
    assert shown(sampling(api, MODEL, {})) == expected


@table("api", APIS)
def test_documented_defaults_stay_unless_the_operator_wants_the_files_everywhere(api: str) -> None:
    found = shown(sampling(api, MODEL, {}, overriding_defaults={}))
    if api in ("openai chat", "openai completions"):
        assert found == {name: value for name, value in MODEL.items() if name != "do_sample"}
    else:
        assert {**found, "temperature": 1.0} == shown(SamplingParams())


@table("api", APIS)
def test_what_a_client_says_counts(api: str) -> None:
    given = {"temperature": 0.3, "top_k": 5, "top_p": 0.5, "repetition_penalty": 1.0}
    found = shown(sampling(api, MODEL, given))
    assert {name: found[name] for name in given} == given
    assert (found["min_p"], found["typical_p"]) == (0.05, 0.8)


@table("api", APIS)
def test_without_the_option_the_apis_have_their_own_defaults(api: str) -> None:
    found = shown(sampling(api, {}, {}))
    assert {**found, "temperature": 1.0} == shown(SamplingParams())
    assert found["temperature"] == (0.0 if api in ("lmi", "tgi") else 1.0)


@table("api", APIS)
def test_the_operator_may_say_seed_and_penalties_as_well(api: str) -> None:
    values = {"seed": 7, "presence_penalty": 0.5, "frequency_penalty": -0.5, "temperature": 0.4}
    operator = {**values, "do_sample": True}
    found, asked = sampling(api, operator, {}), sampling(api, operator, {"seed": 3})
    assert {name: getattr(found, name) for name in values} == values
    assert (asked.seed, asked.presence_penalty) == (3, 0.5)


def test_who_decided_is_told_of_the_operators_values_too() -> None:
    profile = fake_profile(
        generation_defaults={"top_k": 9, "min_p": 0.1, "seed": 7},
        default_options={"top_k": "default_top_k", "seed": "default_seed"},
    )
    http = HttpCall("POST", "/completion", b'{"prompt": "Hi"}', {}, request_id="r")

    def parse(http: HttpCall, profile: ModelProfile) -> Call:
        return set_up_all(profile)["llamacpp.completion"].open(http).parse()

    found = {
        one.name: (one.source, list(one.names)) for one in told(parse(http, profile), http, profile, parse).parameters
    }
    assert (found["top_k"], found["seed"]) == (
        ("server option", ["default_top_k"]),
        ("server option", ["default_seed"]),
    )
    assert (found["min_p"], found["top_p"]) == (("generation_config.json", []), ("API default", []))


@table("version", ["0.26", "0.31", "0.32"])
def test_a_client_of_lmi_may_still_want_no_sampling(version: str) -> None:
    found = sampling("lmi", MODEL, {"do_sample": False}, settings={"lmi_version": version})
    assert found.is_greedy
    assert found.repetition_penalty == 1.1
    assert not sampling("lmi", MODEL, {}, settings={"lmi_version": version}).is_greedy


def test_a_model_that_wants_sampling_refuses_no_beams() -> None:
    assert sampling("lmi", MODEL, {"num_beams": 3}).num_beams == 3


def test_temperature_zero_stays_greedy() -> None:
    for api in APIS:
        if api != "tgi":  # where it must be above 0
            assert sampling(api, MODEL, {"temperature": 0}).is_greedy
