"""Requests in vLLM's words, and what comes back in ours. Needs no vllm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from dragoman.engine.base import Capabilities
from dragoman.engine.ranking import SequenceEnd
from dragoman.engine.vllm.sequences import (
    UNSUPPORTED,
    check_temperature,
    cut_at_stop,
    finish_reason_of,
    output_of,
    prompt_logprobs_of,
    sampling_arguments,
    top_of,
)
from dragoman.errors import EngineFailed, UnsupportedFeature
from dragoman.types import EngineOutput, EngineRequest, FinishReason, Logprob, PromptLogprob, SamplingParams


@dataclass
class Told:
    """vLLM's Logprob."""

    logprob: float
    rank: int


@dataclass
class Piece:
    """vLLM's CompletionOutput."""

    token_ids: list[int]
    logprobs: list[dict[int, Told]] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None


def asking(max_tokens: int = 8, seed: int = 7, **sampling: Any) -> EngineRequest:
    return EngineRequest("r", (1, 2, 3), SamplingParams(**sampling), max_tokens, seed, frozenset({0}), ((4, 5),))


def test_every_sampling_parameter_is_passed_on() -> None:
    request = asking(
        temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.3,
        logit_bias={3: 1.5}, allowed_token_ids=(3, 4), min_tokens=2, stop_token_ids=(9,), logprobs=4, prompt_logprobs=1,
        thinking_token_budget=0,
    )  # fmt: skip
    assert sampling_arguments(request, 0) == {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {3: 1.5},
        "allowed_token_ids": [3, 4],
        "thinking_token_budget": 0,
        "seed": 7,
        "max_tokens": 8,
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_token_ids": [0, 9],
        "_all_stop_token_ids": {0, 9},
        "_bad_words_token_ids": [[4, 5]],
        "logprobs": 4,
        "prompt_logprobs": 1,
        "detokenize": False,
    }


def test_siblings_have_seeds_of_their_own_and_only_the_first_has_the_prompts_log_probabilities() -> None:
    request = asking(seed=2**63 - 1, n=2, prompt_logprobs=0)
    first, second = (sampling_arguments(request, index) for index in (0, 1))
    assert (first["seed"], second["seed"]) == (2**63 - 1, 0)
    assert first["prompt_logprobs"] == 0
    assert "prompt_logprobs" not in second


def test_ends_are_those_of_the_request() -> None:
    assert sampling_arguments(asking(stop_token_ids=(9,)), 0)["stop_token_ids"] == [0, 9]
    assert sampling_arguments(asking(stop_token_ids=(9,), ignore_eos=True), 0)["stop_token_ids"] == [9]


def test_ranked_sequences_are_scored_though_nobody_asked_for_log_probabilities() -> None:
    assert sampling_arguments(asking(best_of=2), 0)["logprobs"] == 0
    assert "logprobs" not in sampling_arguments(asking(n=2), 0)


def test_a_minimum_over_the_maximum_is_the_maximum_and_nothing_is_one_token() -> None:
    assert sampling_arguments(asking(3, min_tokens=9), 0)["min_tokens"] == 3
    assert sampling_arguments(asking(0), 0)["max_tokens"] == 1


@pytest.mark.parametrize("temperature", [0.0, 0.01, 1.0])
def test_temperatures_that_vllm_takes_as_they_are_pass(temperature: float) -> None:
    check_temperature(asking(temperature=temperature))


def test_temperatures_that_vllm_would_change_are_refused() -> None:
    with pytest.raises(UnsupportedFeature, match=r"temperature 0\.001 .* must be 0, or at least 0\.01"):
        check_temperature(asking(temperature=0.001))


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_vllm_has_no_parameter_for_is_refused_by_name(name: str) -> None:
    able = Capabilities(64, 32, unsupported=UNSUPPORTED)
    able.check(asking())
    values: dict[str, Any] = {name: 0.5 if name in ("typical_p", "xtc_probability") else 2}
    with pytest.raises(UnsupportedFeature, match=f"^{name} ") as caught:
        able.check(asking(**values))
    assert caught.value.param == name


# --- outputs ----------------------------------------------------------------------------------------------------------


def test_the_most_likely_tokens_come_best_first_without_a_less_likely_one_that_was_drawn() -> None:
    candidates = {9: Told(-5.0, 40), 3: Told(-0.5, 1), 4: Told(-1.0, 2)}
    assert top_of(candidates, 2) == [Logprob(3, -0.5), Logprob(4, -1.0)]
    assert top_of(candidates, 0) == []
    assert top_of({3: Told(float("-inf"), 1)}, 1) == [Logprob(3, -9999.0)]


def test_an_output_has_what_was_asked_for() -> None:
    piece = Piece([9], [{9: Told(-5.0, 40), 3: Told(-0.5, 1)}], -5.0, "length")
    output = output_of(asking(logprobs=1), 1, piece)
    assert output == EngineOutput(
        "r", 1, [9], FinishReason.LENGTH, [-5.0], [[Logprob(3, -0.5)]], cumulative_logprob=-5.0
    )
    assert output_of(asking(), 0, Piece([9])) == EngineOutput("r", 0, [9])


def test_a_token_that_nobody_wanted_is_not_told() -> None:
    output = output_of(asking(0), 0, Piece([9], None, None, "stop"))
    assert (output.token_ids, output.finish_reason) == ([], FinishReason.LENGTH)


def test_the_last_token_tells_which_end_it_was() -> None:
    request = asking(stop_token_ids=(9, 0))
    assert finish_reason_of(request, "stop", 0) is FinishReason.EOS
    assert finish_reason_of(request, "stop", 9) is FinishReason.STOP_TOKEN
    assert finish_reason_of(asking(stop_token_ids=(0,), ignore_eos=True), "stop", 0) is FinishReason.STOP_TOKEN
    with pytest.raises(EngineFailed, match="abort"):
        finish_reason_of(request, "abort", 9)


def test_the_prompts_log_probabilities_are_aligned_with_it() -> None:
    told = [None, {2: Told(-3.0, 7), 5: Told(-0.1, 1)}]
    assert prompt_logprobs_of(told, (1, 2), 1) == [None, PromptLogprob(-3.0, (Logprob(5, -0.1),), 7)]


# --- stop strings of ranked sequences ---------------------------------------------------------------------------------


def ended_at(stop_at: int) -> SequenceEnd:
    """The end of a sequence with a stop string that the token `stop_at` completes."""
    return SequenceEnd({}, lambda token_ids: token_ids[-1] == stop_at)


def piece_of(*token_ids: int, reason: str | None = None) -> Piece:
    return Piece(list(token_ids), [{token_id: Told(-1.0, 1)} for token_id in token_ids], None, reason)


def test_a_stop_string_ends_a_ranked_sequence_with_the_token_that_completes_it() -> None:
    request, end = asking(best_of=2, logprobs=0), ended_at(11)
    first, second = (output_of(request, 0, piece_of(token_id)) for token_id in (10, 11))
    assert not cut_at_stop(first, end)
    assert cut_at_stop(second, end)
    assert (second.token_ids, second.finish_reason) == ([11], FinishReason.STOP_STRING)


def test_a_stop_string_is_found_in_the_middle_of_what_came_at_once() -> None:
    output = output_of(asking(best_of=2), 0, piece_of(10, 11, 12))
    assert cut_at_stop(output, ended_at(11))
    assert output.token_ids == [10, 11]
    assert output.logprobs is not None
    assert output.top_logprobs is not None
    assert len(output.logprobs) == len(output.top_logprobs) == 2


def test_a_sequence_that_ends_by_itself_keeps_its_own_end() -> None:
    request = asking(best_of=2, stop_token_ids=(11,))
    output = output_of(request, 0, piece_of(10, 11, reason="stop"))
    assert not cut_at_stop(output, ended_at(11))
    assert output.finish_reason is FinishReason.STOP_TOKEN
    full = output_of(request, 0, piece_of(10, 11, reason="length"))
    assert cut_at_stop(full, ended_at(11))
    assert full.finish_reason is FinishReason.STOP_STRING
