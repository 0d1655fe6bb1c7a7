"""Translates a request into vLLM's sampling parameters, as plain data. On the event loop.

Every sequence is a separate request to vLLM. So there can be several greedy ones, one can end before its siblings, and
only the first computes the prompt's log-probabilities.
"""

from __future__ import annotations

from typing import Any

from dragoman.errors import UnsupportedFeature
from dragoman.types import EngineRequest

LEAST_TEMPERATURE = 0.01  # vLLM raises lower ones, above 0, to this
_SEED_MASK = 2**63 - 1  # torch's seeds are signed 64 bits, and vLLM takes -1 for no seed

UNSUPPORTED = frozenset({
    "typical_p", "num_assistant_tokens", "assistant_confidence_threshold",
    "max_ngram_size", "dry_multiplier", "xtc_probability", "top_n_sigma", "post_sampling_probs", "infill",
    "repetition_detection",
})  # fmt: skip
"""What vLLM has no parameter for."""


def check_temperature(request: EngineRequest) -> None:
    """Raises: UnsupportedFeature for a temperature that vLLM would change."""
    temperature = request.sampling.temperature
    if 0 < temperature < LEAST_TEMPERATURE:
        allowed = f"0, or at least {LEAST_TEMPERATURE}"
        raise UnsupportedFeature(
            f"temperature {temperature} is not supported by this engine: it must be {allowed}", param="temperature"
        )


def ending_ids(request: EngineRequest) -> frozenset[int]:
    """The tokens that end a sequence: the request's, not those of the model's files."""
    eos = frozenset() if request.sampling.ignore_eos else request.eos_token_ids
    return eos | frozenset(request.sampling.stop_token_ids)


def sampling_arguments(request: EngineRequest, index: int) -> dict[str, Any]:
    """The arguments of vLLM's SamplingParams for sequence `index`; its seed is the request's plus that, as in vLLM.

    Names with an underscore are fields that vLLM usually fills from texts; here they have token ids.
    """
    sampling = request.sampling
    arguments: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": (request.seed + index) & _SEED_MASK,
        "max_tokens": max(1, request.max_tokens),  # needed for log-probabilities of the prompt
        "min_tokens": min(sampling.min_tokens, max(1, request.max_tokens)),
        "ignore_eos": True,  # of the model's files
        "stop_token_ids": sorted(ending_ids(request)),
        "_all_stop_token_ids": set(request.eos_token_ids | set(sampling.stop_token_ids)),  # banned before min_tokens
        "detokenize": False,
    }
    if request.bad_word_ids:
        arguments["_bad_words_token_ids"] = [list(word) for word in request.bad_word_ids]
    if sampling.logit_bias:
        arguments["logit_bias"] = dict(sampling.logit_bias)
    if sampling.allowed_token_ids is not None:
        arguments["allowed_token_ids"] = list(sampling.allowed_token_ids)
    if sampling.thinking_token_budget is not None:
        arguments["thinking_token_budget"] = sampling.thinking_token_budget
    if sampling.logprobs is not None or request.is_ranked:
        arguments["logprobs"] = sampling.logprobs or 0
    if sampling.prompt_logprobs is not None and index == 0:
        arguments["prompt_logprobs"] = sampling.prompt_logprobs
    return arguments
