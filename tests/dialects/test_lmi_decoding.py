"""Greedy, sampling or beams, and how many sequences: what parameters mean together."""

from __future__ import annotations

from typing import Any

from dragoman.server.apis.lmi_wire.parameters import VERSIONS
from tests.dialects.lmi_calls import parse, request_of
from tests.support.tables import table

SAMPLE = {"do_sample": True}


@table("parameters", [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}])
@table("version", ["0.26", "0.31"])
def test_sampling_parameters_alone_stay_greedy_and_are_reported(version: str, parameters: dict[str, Any]) -> None:
    call = parse(parameters, lmi_version=version)
    assert call.requests[0].sampling.is_greedy
    assert call.requests[0].sampling.top_k == 0
    assert call.ignored == tuple(parameters)


@table("parameters", [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}, {"typical_p": 0.5}])
def test_in_0_32_any_sampling_parameter_samples(parameters: dict[str, Any]) -> None:
    call = parse(parameters, lmi_version="0.32")
    assert not call.requests[0].sampling.is_greedy
    assert call.requests[0].sampling.temperature == parameters.get("temperature", 1.0)
    assert call.ignored == ()


def test_in_0_32_an_explicit_do_sample_false_stays_greedy() -> None:
    call = parse({"do_sample": False, "temperature": 0.7}, lmi_version="0.32")
    assert call.requests[0].sampling.is_greedy
    assert call.ignored == ("temperature",)


@table("version", VERSIONS)
def test_temperature_zero_is_greedy_even_with_do_sample(version: str) -> None:
    call = parse({"do_sample": True, "temperature": 0, "top_k": 3}, lmi_version=version)
    assert call.requests[0].sampling.is_greedy
    assert call.ignored == ("top_k",)


@table("top_k", [0, -1])
def test_top_k_zero_and_minus_one_mean_all_tokens(top_k: int) -> None:
    call = parse(SAMPLE | {"top_k": top_k}, rolling_batch="vllm")
    assert call.requests[0].sampling.top_k == 0
    assert not call.requests[0].sampling.is_greedy


def test_top_k_and_top_p_zero_together_are_greedy_as_in_tensorrt() -> None:
    call = parse(SAMPLE | {"top_k": 0, "top_p": 0}, rolling_batch="trtllm")
    assert call.requests[0].sampling.is_greedy
    assert call.ignored == ()


def test_top_p_zero_alone_is_off_in_tensorrt() -> None:
    sampling = request_of(SAMPLE | {"top_p": 0}, rolling_batch="trtllm").sampling
    assert (sampling.top_p, sampling.top_k, sampling.temperature) == (1.0, 5, 1.0)


@table(
    ("parameters", "n", "best_of", "num_beams"),
    [
        ({"n": 2}, 2, None, 1),
        ({"best_of": 3}, 3, 3, 1),
        ({"best_of": 3, "n": 2}, 2, 3, 1),
        ({"best_of": 1}, 1, None, 1),
        ({"num_beams": 4}, 4, None, 4),
        ({"num_beams": 4, "n": 2}, 2, None, 4),
        ({"num_beams": 4, "best_of": 2}, 2, None, 4),
    ],
)
def test_the_number_of_sequences_is_n_or_what_was_drawn(
    parameters: dict[str, Any], n: int, best_of: int | None, num_beams: int
) -> None:
    sampling = request_of(parameters).sampling
    assert (sampling.n, sampling.best_of, sampling.num_beams) == (n, best_of, num_beams)


def test_beam_search_switches_sampling_off_without_being_greedy() -> None:
    call = parse({"num_beams": 2, "temperature": 0.5, "top_k": 4}, lmi_version="0.32")
    sampling = call.requests[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.is_greedy) == (1.0, 0, False)
    assert call.ignored == ("temperature", "top_k")


def test_parameters_of_beam_search_are_reported_without_beams() -> None:
    assert parse({"length_penalty": 2.0, "early_stopping": "never"}).ignored == ("length_penalty", "early_stopping")
