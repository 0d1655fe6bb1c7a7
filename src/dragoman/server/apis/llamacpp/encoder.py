"""Encodes llama.cpp's answers. On the event loop. Source: llama.cpp, tools/server/README.md, "Response format"."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import ServerError
from dragoman.server.api import SSE_MEDIA_TYPE, Encoder, Head, IndexedEvent, ModelProfile, Reply, json_reply, sse
from dragoman.server.apis.llamacpp.errors import error_body
from dragoman.server.apis.llamacpp.schema import (
    LlamaAnswer,
    LlamaPiece,
    LlamaSharedBody,
    LlamaToken,
    LlamaTopToken,
)
from dragoman.server.apis.openai_wire.common import json_logprob
from dragoman.server.observation.measured import current_measure
from dragoman.server.progress import ToldProgress
from dragoman.server.timings import ShownTimings, Timings
from dragoman.types import (
    LOWEST_LOGPROB,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    PromptInfo,
    SequenceResult,
    TokenOutput,
)

StopType = Literal["none", "eos", "limit", "word"]

_ENDS: Mapping[FinishReason, StopType] = {
    FinishReason.EOS: "eos",
    FinishReason.STOP_TOKEN: "eos",
    FinishReason.STOP_STRING: "word",
    FinishReason.LENGTH: "limit",
    FinishReason.REPETITION: "limit",
    FinishReason.ABORT: "none",
}
_ENCODER = msgspec.json.Encoder()
_NO_PROMPT = PromptInfo("", ())


@dataclass(slots=True)
class _Progress:
    num_tokens: int = 0
    has_new_line: bool = False


class LlamaEncoder(Encoder):
    """Writes the answers to all prompts of a call. `settings`: as answers report them, without the seed."""

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        body: LlamaSharedBody,
        profile: ModelProfile,
        settings: Mapping[str, Any],
        *,
        is_list: bool,
    ) -> None:
        self._body = body
        self._model = profile.name if body.model is None else body.model
        self._settings = settings
        self._sampling = requests[0].sampling
        self._max_tokens = requests[0].max_tokens
        self._context = profile.max_model_len
        self._is_list = is_list or self._sampling.n > 1
        self._measure = current_measure([request.request_id for request in requests])
        self._prompts: dict[int, PromptInfo] = {}
        self._answers: dict[int, _Progress] = {}

    def show_timings(self, timings: ShownTimings) -> bool:
        return True

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        answers = []
        for request_index, result in enumerate(results):
            self._prompts[request_index] = result.prompt
            answers += [self._chosen(self._whole(request_index, sequence)) for sequence in result.sequences]
        return json_reply(200, answers if self._is_list else answers[0])

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        return Head(SSE_MEDIA_TYPE)

    def progress(self, told: ToldProgress) -> bytes:
        piece = LlamaPiece(
            index=0, content="", tokens=[], tokens_predicted=0, tokens_evaluated=told.processed, prompt_progress=told
        )
        return sse(_ENCODER.encode(piece))

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        if event.prompt is not None:
            self._prompts[request_index] = event.prompt
        index = self._index(request_index, event.index)
        progress = self._answers.setdefault(index, _Progress())
        progress.has_new_line |= "\n" in event.text
        shown = event.tokens[: len(event.tokens) - (event.finish_reason in _TOKEN_ENDS)]
        groups = [(token,) for token in shown] if self._sampling.logprobs else [shown]
        made = [self._piece(request_index, index, tokens) for tokens in groups if tokens]
        if event.finish_reason is not None:
            progress.num_tokens += len(event.tokens) - len(shown)
            answer = self._answer(request_index, index, progress, event.finish_reason, event.stop_match)
            answer.tokens_cached = event.num_cached_tokens or answer.tokens_cached
            made.append(sse(_ENCODER.encode(self._chosen(answer))))
        return b"".join(made)

    def stream_error(self, error: ServerError) -> bytes:
        return sse(_ENCODER.encode(error_body(error)))

    def _index(self, request_index: int, sequence_index: int) -> int:
        return request_index * self._sampling.n + sequence_index

    def _prompt(self, request_index: int) -> PromptInfo:
        return self._prompts.get(request_index, _NO_PROMPT)

    def _piece(self, request_index: int, index: int, tokens: Sequence[TokenOutput]) -> bytes:
        progress = self._answers[index]
        progress.num_tokens += len(tokens)
        piece = LlamaPiece(
            index=index,
            content="".join([token.text for token in tokens]),
            tokens=[token.id for token in tokens],
            tokens_predicted=progress.num_tokens,
            tokens_evaluated=len(self._prompt(request_index).token_ids),
            timings=self._timings(request_index) if self._body.timings_per_token else UNSET,
            completion_probabilities=self._probabilities(tokens),
        )
        return sse(_ENCODER.encode(piece))

    def _whole(self, request_index: int, sequence: SequenceResult) -> LlamaAnswer:
        index = self._index(request_index, sequence.index)
        written = _Progress(len(sequence.tokens), "\n" in sequence.text)
        answer = self._answer(request_index, index, written, sequence.finish_reason, sequence.stop_match)
        answer.content = sequence.text
        answer.tokens = [token.id for token in sequence.tokens] if self._body.return_tokens else []
        answer.completion_probabilities = self._probabilities(sequence.tokens)
        return answer

    def _answer(
        self, request_index: int, index: int, written: _Progress, finish: FinishReason, stop_match: str | int | None
    ) -> LlamaAnswer:
        prompt, num_tokens, max_tokens = self._prompt(request_index), written.num_tokens, self._max_tokens
        is_cut = finish is FinishReason.LENGTH and (max_tokens is None or num_tokens < max_tokens)
        num_beyond = len(prompt.token_ids) + num_tokens - self._context
        return LlamaAnswer(
            index=index,
            content="",
            tokens=[],
            model=self._model,
            tokens_predicted=num_tokens,
            tokens_evaluated=len(prompt.token_ids),
            generation_settings={"seed": prompt.seed, **self._settings},
            prompt=prompt.text,
            has_new_line=written.has_new_line,
            truncated=num_beyond > 0 or (is_cut and num_beyond == 0),
            stop_type=_ENDS[finish],
            stopping_word=stop_match if isinstance(stop_match, str) else "",
            tokens_cached=prompt.num_cached_tokens,
            timings=self._timings(request_index),
        )

    def _chosen(self, answer: LlamaAnswer) -> LlamaAnswer | dict[str, Any]:
        """The fields that were asked for, by the paths that named them."""
        if not self._body.response_fields:
            return answer
        whole, chosen = msgspec.to_builtins(answer), {}
        for path in self._body.response_fields:
            value = whole
            for step in path.split("/"):
                value = value.get(step, UNSET) if isinstance(value, dict) else UNSET
            if value is not UNSET:
                chosen[path] = value
        return chosen

    def _timings(self, request_index: int) -> Timings | UnsetType:
        return UNSET if self._measure is None else self._measure(request_index)

    def _probabilities(self, tokens: Sequence[TokenOutput]) -> list[LlamaToken] | UnsetType:
        num_probs, is_drawn = self._sampling.logprobs, self._sampling.post_sampling_probs
        return [_token(token, num_probs, is_drawn=is_drawn) for token in tokens] if num_probs and tokens else UNSET


_TOKEN_ENDS = (FinishReason.EOS, FinishReason.STOP_TOKEN)


def _token(token: TokenOutput, num_probs: int, *, is_drawn: bool) -> LlamaToken:
    """A token and the likeliest. `is_drawn`: with probabilities of sampling instead of log-probabilities."""
    told, tops = ("prob", "top_probs") if is_drawn else ("logprob", "top_logprobs")
    number = _chance if is_drawn else _logprob
    top = [
        LlamaTopToken(one.id, one.text, list(one.bytes), **{told: number(one.logprob)}) for one in token.top[:num_probs]
    ]
    made = LlamaToken(token.id, token.token_text, list(token.bytes))
    setattr(made, told, number(token.logprob))
    setattr(made, tops, top)
    return made


def _chance(logprob: float | None) -> float:
    return math.exp(logprob or 0.0)


def _logprob(logprob: float | None) -> float:
    """A number for JSON, which cannot say minus infinity."""
    told = json_logprob(logprob)
    return LOWEST_LOGPROB if told is None else told
