"""Encodes answers of `/completion` and `/infill`: one object, or a list of them, or server-sent events.

Does: pieces, ends, log-probabilities, settings, timings, the choice of fields. Does not: parse. One encoder per call, on the
event loop.
Source: llama.cpp, tools/server/README.md, "Response format".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import ServerError
from dragoman.server.api import SSE_MEDIA_TYPE, Encoder, Head, IndexedEvent, Reply, json_reply, sse
from dragoman.server.apis.llamacpp.errors import error_body
from dragoman.server.apis.llamacpp.schema import (
    LlamaAnswer,
    LlamaPiece,
    LlamaToken,
    LlamaTopToken,
)
from dragoman.server.apis.openai_wire.common import json_logprob
from dragoman.server.progress import ToldProgress
from dragoman.server.timings import Measure, ShownTimings, Timings
from dragoman.types import (
    LOWEST_LOGPROB,
    FinishReason,
    GenerationEvent,
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


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Facts about a call that the encoder needs.

    `settings`: as in the answer, without the seed. `num_answers`: to each prompt. `is_list`: a whole answer is a list.
    `measure`: returns the times of each request, None = not measured. `fields`: of the answer, () = all. `are_drawn`:
    probabilities are those of sampling.
    """

    model: str
    settings: Mapping[str, Any]
    num_answers: int = 1
    max_tokens: int | None = None
    is_list: bool = False
    is_streamed: bool = False
    measure: Measure | None = None
    num_probs: int = 0
    are_drawn: bool = False
    fields: tuple[str, ...] = ()
    shows_tokens: bool = False
    shows_timings: bool = False


@dataclass(slots=True)
class _Progress:
    """The state of one answer in a stream."""

    num_tokens: int = 0
    has_new_line: bool = False


class LlamaEncoder(Encoder):
    """Implements `Encoder`."""

    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts
        self._prompts: dict[int, PromptInfo] = {}
        self._answers: dict[int, _Progress] = {}

    def show_timings(self, timings: ShownTimings) -> bool:
        """Its answers always have them."""
        return True

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        """The whole answer."""
        answers = [
            self._chosen(self._whole(request_index, result.prompt, sequence))
            for request_index, result in enumerate(results)
            for sequence in result.sequences
        ]
        return json_reply(200, answers if self._facts.is_list else answers[0])

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        """200, server-sent events."""
        return Head(SSE_MEDIA_TYPE)

    def progress(self, told: ToldProgress) -> bytes:
        """A piece without text that tells how far the prompts are."""
        piece = LlamaPiece(
            index=0, content="", tokens=[], tokens_predicted=0, tokens_evaluated=told.processed, prompt_progress=told
        )
        return sse(_ENCODER.encode(piece))

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        """The text of one step, token by token where tokens have probabilities; and the end, if this is the last step."""
        if event.prompt is not None:
            self._prompts[request_index] = event.prompt
        index = request_index * self._facts.num_answers + event.index
        progress = self._answers.setdefault(index, _Progress())
        progress.has_new_line |= "\n" in event.text
        shown = event.tokens[: len(event.tokens) - (event.finish_reason in _TOKEN_ENDS)]
        groups = [(token,) for token in shown] if self._facts.num_probs else [shown]
        made = [self._piece(request_index, index, tokens) for tokens in groups if tokens]
        if event.finish_reason is not None:
            progress.num_tokens += len(event.tokens) - len(shown)
            made.append(self._last(request_index, index, event))
        return b"".join(made)

    def end(self) -> bytes:
        """Nothing: each answer's last event has told its end."""
        return b""

    def stream_error(self, error: ServerError) -> bytes:
        """The error as the stream's last event."""
        return sse(_ENCODER.encode(error_body(error)))

    def trailers(self) -> Sequence[tuple[str, str]]:
        """None."""
        return ()

    def _piece(self, request_index: int, index: int, tokens: Sequence[TokenOutput]) -> bytes:
        facts, progress = self._facts, self._answers[index]
        progress.num_tokens += len(tokens)
        piece = LlamaPiece(
            index=index,
            content="".join([token.text for token in tokens]),
            tokens=[token.id for token in tokens],
            tokens_predicted=progress.num_tokens,
            tokens_evaluated=len(self._prompts.get(request_index, _NO_PROMPT).token_ids),
            timings=self._timings(request_index) if facts.shows_timings else UNSET,
            completion_probabilities=self._probabilities(tokens),
        )
        return sse(_ENCODER.encode(piece))

    def _last(self, request_index: int, index: int, event: GenerationEvent) -> bytes:
        progress, prompt = self._answers[index], self._prompts.get(request_index, _NO_PROMPT)
        assert event.finish_reason is not None
        answer = self._answer(
            request_index,
            index,
            prompt,
            progress.num_tokens,
            event.finish_reason,
            event.stop_match,
            event.num_cached_tokens,
        )
        answer.has_new_line = progress.has_new_line
        return sse(_ENCODER.encode(self._chosen(answer)))

    def _whole(self, request_index: int, prompt: PromptInfo, sequence: SequenceResult) -> LlamaAnswer:
        index = request_index * self._facts.num_answers + sequence.index
        answer = self._answer(
            request_index, index, prompt, len(sequence.tokens), sequence.finish_reason, sequence.stop_match
        )
        answer.content, answer.has_new_line = sequence.text, "\n" in sequence.text
        answer.tokens = [token.id for token in sequence.tokens] if self._facts.shows_tokens else []
        answer.completion_probabilities = self._probabilities(sequence.tokens)
        return answer

    def _answer(
        self,
        request_index: int,
        index: int,
        prompt: PromptInfo,
        num_tokens: int,
        finish: FinishReason,
        stop_match: str | int | None,
        num_cached: int = 0,
    ) -> LlamaAnswer:
        """An answer but for its text and tokens."""
        facts = self._facts
        is_full = finish is FinishReason.LENGTH and (facts.max_tokens is None or num_tokens < facts.max_tokens)
        return LlamaAnswer(
            index=index,
            content="",
            tokens=[],
            model=facts.model,
            tokens_predicted=num_tokens,
            tokens_evaluated=len(prompt.token_ids),
            generation_settings={"seed": prompt.seed, **facts.settings},
            prompt=prompt.text,
            has_new_line=False,
            truncated=is_full,
            stop_type=_ENDS[finish],
            stopping_word=stop_match if isinstance(stop_match, str) else "",
            tokens_cached=num_cached or prompt.num_cached_tokens,
            timings=self._timings(request_index),
        )

    def _chosen(self, answer: LlamaAnswer) -> LlamaAnswer | dict[str, Any]:
        """The fields that were asked for, by the paths that named them."""
        if not self._facts.fields:
            return answer
        whole, chosen = msgspec.to_builtins(answer), {}
        for path in self._facts.fields:
            value = whole
            for step in path.split("/"):
                value = value.get(step, UNSET) if isinstance(value, dict) else UNSET
            if value is not UNSET:
                chosen[path] = value
        return chosen

    def _timings(self, request_index: int) -> Timings | UnsetType:
        return UNSET if self._facts.measure is None else self._facts.measure(request_index)

    def _probabilities(self, tokens: Sequence[TokenOutput]) -> list[LlamaToken] | UnsetType:
        num_probs = self._facts.num_probs
        if not num_probs or not tokens:
            return UNSET
        tell = _chance if self._facts.are_drawn else _token
        return [tell(token, num_probs) for token in tokens]


_TOKEN_ENDS = (FinishReason.EOS, FinishReason.STOP_TOKEN)


def _token(token: TokenOutput, num_probs: int) -> LlamaToken:
    top = [LlamaTopToken(one.id, one.text, list(one.bytes), _logprob(one.logprob)) for one in token.top[:num_probs]]
    return LlamaToken(token.id, token.token_text, list(token.bytes), _logprob(token.logprob), top)


def _chance(token: TokenOutput, num_probs: int) -> LlamaToken:
    """The same with the probabilities of drawing."""
    top = [
        LlamaTopToken(one.id, one.text, list(one.bytes), prob=math.exp(one.logprob)) for one in token.top[:num_probs]
    ]
    chance = math.exp(token.logprob or 0.0)
    return LlamaToken(token.id, token.token_text, list(token.bytes), prob=chance, top_probs=top)


def _logprob(logprob: float | None) -> float:
    """The number; JSON cannot say minus infinity."""
    told = json_logprob(logprob)
    return LOWEST_LOGPROB if told is None else told
