"""Translates a sequence into vLLM's sampling parameters, and vLLM's outputs back, as plain data. On the event loop.

Every sequence is a separate request to vLLM. So there can be several greedy ones, one can end before its siblings, and
only the first computes the prompt's log-probabilities. Does not import vllm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from dragoman.engine.ranking import SequenceEnd
from dragoman.errors import EngineFailed, UnsupportedFeature
from dragoman.types import (
    LOWEST_LOGPROB,
    EngineOutput,
    EngineRequest,
    FinishReason,
    Logprob,
    PromptLogprob,
)

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
        "stop_token_ids": sorted(request.end_reasons()),
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


Candidates = Mapping[int, Any]
"""Token id -> vLLM's Logprob, with `logprob` and `rank`: the token itself, then the most likely ones."""


class Piece(Protocol):
    """The used part of vLLM's CompletionOutput: a step's addition to the sequence."""

    @property
    def token_ids(self) -> Sequence[int]: ...

    @property
    def logprobs(self) -> Iterable[Candidates] | None: ...

    @property
    def cumulative_logprob(self) -> float | None: ...

    @property
    def finish_reason(self) -> str | None: ...


def top_of(candidates: Candidates, num_top: int) -> list[Logprob]:
    ranked = sorted(
        (candidate.rank, token_id, candidate.logprob)
        for token_id, candidate in candidates.items()
        if candidate.rank <= num_top
    )
    return [Logprob(token_id, max(logprob, LOWEST_LOGPROB)) for _, token_id, logprob in ranked]


def prompt_logprobs_of(
    rows: Sequence[Candidates | None], prompt_ids: Sequence[int], num_top: int
) -> list[PromptLogprob | None]:
    found: list[PromptLogprob | None] = []
    for token_id, candidates in zip(prompt_ids, rows, strict=True):
        if candidates is None:
            found.append(None)
            continue
        candidate = candidates[token_id]
        top = tuple(top_of(candidates, num_top))
        found.append(PromptLogprob(max(candidate.logprob, LOWEST_LOGPROB), top, candidate.rank))
    return found


def finish_reason_of(request: EngineRequest, reason: str, last_id: int) -> FinishReason:
    """Raises: EngineFailed if vLLM gave the sequence up."""
    if reason == "length":
        return FinishReason.LENGTH
    if reason != "stop":
        raise EngineFailed(f"generation failed: vLLM ended the sequence with {reason}")
    return request.end_reasons().get(last_id, FinishReason.STOP_TOKEN)


def output_of(request: EngineRequest, index: int, piece: Piece) -> EngineOutput:
    """An output of sequence `index`, without facts of prompt and cache. Raises: EngineFailed."""
    token_ids = list(piece.token_ids)
    output = EngineOutput(request.request_id, index, token_ids)
    if not request.max_tokens:  # vLLM draws at least one token, which was not requested
        output.token_ids = []
    elif piece.logprobs is not None:
        rows = list(piece.logprobs)
        output.logprobs = [
            max(row[token_id].logprob, LOWEST_LOGPROB) for token_id, row in zip(token_ids, rows, strict=True)
        ]
        output.top_logprobs = [top_of(row, request.sampling.logprobs or 0) for row in rows]
    if piece.finish_reason is not None:
        last_id = token_ids[-1] if token_ids else -1
        reason = finish_reason_of(request, piece.finish_reason, last_id)
        output.finish_reason = reason if request.max_tokens else FinishReason.LENGTH
        output.cumulative_logprob = piece.cumulative_logprob if request.max_tokens else None
    return output


def cut_at_stop(output: EngineOutput, end: SequenceEnd) -> bool:
    """True if a stop string ends the sequence, unless it ends by itself there; the rest of the output is dropped."""
    is_own_end = output.finish_reason not in (None, FinishReason.LENGTH)
    size, reason = end.find(output.token_ids[:-1] if is_own_end else output.token_ids)
    if reason is None:
        return False
    output.finish_reason = reason
    del output.token_ids[size:]
    if output.logprobs is not None and output.top_logprobs is not None:
        del output.logprobs[size:], output.top_logprobs[size:]
    return True
