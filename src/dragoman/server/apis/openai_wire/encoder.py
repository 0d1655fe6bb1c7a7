"""The common part of the encoders of completions and of conversations: framing, usage, timings, tokens by id.

Does: begin and end answers, and write chunks that have only text. Does not: know choices; each encoder makes its own.
On the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import ServerError
from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    JSONLINES_MEDIA_TYPE,
    SSE_DONE,
    SSE_MEDIA_TYPE,
    Encoder,
    Head,
    IndexedEvent,
    Reply,
    jsonline,
    sse,
)
from dragoman.server.apis.openai_wire.common import PromptLogprobs, TextChunk, Usage, UsageCounter, prompt_logprobs
from dragoman.server.apis.openai_wire.sampling import Reading, SharedBody, has_continuous_usage, tells_usage
from dragoman.server.progress import ToldProgress
from dragoman.server.timings import NO_TIMINGS, ShownTimings, Timings
from dragoman.types import GenerationEvent, PromptInfo, TokenOutput

_ENCODER = msgspec.json.Encoder()


class Chunk(Protocol):
    """A chunk of either kind."""

    timings: Timings | UnsetType
    prompt_progress: ToldProgress | UnsetType


ChunkT = TypeVar("ChunkT", bound=Chunk)


class OpenAiEncoder(Encoder, Generic[ChunkT]):
    """An encoder of OpenAI's shape."""

    def __init__(
        self,
        body: SharedBody,
        reading: Reading,
        call_id: str,
        *,
        is_sse: bool,
        has_reasoning: bool,
        shows_ids: bool,
        num_prompt_logprobs: int | None,
    ) -> None:
        """`has_reasoning`: the usage tells the tokens of reasoning. `num_prompt_logprobs` None = none are shown."""
        profile, options = reading.profile, reading.options
        has_details = profile.name == "v1"
        self._id = call_id
        self._model = options.names.answering(profile, body.model)
        self._errors = profile.errors
        self._is_sse = is_sse
        self._shows_ids = shows_ids
        self._num_prompt_logprobs = num_prompt_logprobs
        self._usage = UsageCounter(has_details=has_details, has_reasoning=has_details and has_reasoning)
        self._tells_usage = tells_usage(body)
        self._has_continuous_usage = has_continuous_usage(body)
        self._chunk_usage: UnsetType | None = None if self._tells_usage else UNSET
        self._text_chunks: dict[int, TextChunk] = {}  # by choice
        self._timings = NO_TIMINGS

    def show_timings(self, timings: ShownTimings) -> bool:
        """They stand in a whole answer and in a stream's last chunk."""
        self._timings = timings
        return True

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        """200 and the framing's media type."""
        return Head(SSE_MEDIA_TYPE if self._is_sse else JSONLINES_MEDIA_TYPE)

    def progress(self, told: ToldProgress) -> bytes:
        """A chunk that says nothing yet, as llama.cpp has it."""
        chunk = self._chunk([self._silent_choice()], self._chunk_usage)
        chunk.prompt_progress = told
        return self._frame(chunk)

    def end(self) -> bytes:
        """The usage chunk, if asked for, and the end mark; JSON lines have none."""
        usage = b""
        if self._tells_usage:
            chunk = self._chunk([], self._usage.usage())
            chunk.timings = self._timings.of()
            usage = self._frame(chunk)
        return usage + (SSE_DONE if self._is_sse else b"")

    def stream_error(self, error: ServerError) -> bytes:
        """The error as the stream's last event."""
        return self._errors.last_bytes(error, is_sse=self._is_sse)

    # --- for subclasses -----------------------------------------------------------------------------------------------

    def _chunk(self, choices: list[Any], usage: Usage | UnsetType | None) -> ChunkT:
        raise NotImplementedError

    def _silent_choice(self) -> msgspec.Struct:
        raise NotImplementedError

    def _text_choice(self, index: int, text: str) -> msgspec.Struct:
        raise NotImplementedError

    def _frame(self, value: object) -> bytes:
        payload = _ENCODER.encode(value)
        return sse(payload) if self._is_sse else jsonline(payload)

    def _more_text(self, index: int, text: str) -> bytes:
        """A chunk with nothing but text."""
        chunk = self._text_chunks.get(index)
        if chunk is None:
            chunk = self._text_chunks[index] = TextChunk(
                lambda text: self._frame(self._chunk([self._text_choice(index, text)], self._chunk_usage))
            )
        return chunk.frame(text)

    def _event_chunk(self, choice: msgspec.Struct, event: GenerationEvent) -> ChunkT:
        """The chunk of an event, with usage and timings where it is to have them."""
        chunk = self._chunk([choice], self._usage.usage() if self._has_continuous_usage else self._chunk_usage)
        if event.finish_reason is not None and not self._tells_usage:
            chunk.timings = self._timings.sequence_ended()
        return chunk

    @staticmethod
    def _reply(answer: msgspec.Struct) -> Reply:
        return Reply(200, _ENCODER.encode(answer), JSON_MEDIA_TYPE)

    def _prompt_logprobs(self, prompt: PromptInfo | None) -> PromptLogprobs | UnsetType:
        if prompt is None or self._num_prompt_logprobs is None:
            return UNSET
        return prompt_logprobs(prompt, self._num_prompt_logprobs)

    def _token_ids(self, tokens: Sequence[TokenOutput]) -> list[int] | UnsetType:
        return [token.id for token in tokens] if self._shows_ids else UNSET

    def _prompt_ids(self, prompt: PromptInfo | None) -> list[int] | UnsetType:
        return list(prompt.token_ids) if prompt is not None and self._shows_ids else UNSET
