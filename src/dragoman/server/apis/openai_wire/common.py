"""Usage, the model's name, and the frame of answers: shared by the APIs of OpenAI's shape. On the event loop."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.errors import ServerError
from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    JSONLINES_MEDIA_TYPE,
    SSE_DONE,
    SSE_MEDIA_TYPE,
    Encoder,
    Head,
    IndexedEvent,
    ModelProfile,
    Reply,
    jsonline,
    sse,
)
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.registry import PLACEHOLDER_MODELS
from dragoman.server.timings import NO_TIMINGS, ShownTimings, Timings, ToldProgress
from dragoman.types import LOWEST_LOGPROB, GenerationEvent, GenerationResult, PromptInfo, SequenceResult, TokenOutput

Created = Annotated[int, Meta(description="Unix time in seconds")]

_ENCODER = msgspec.json.Encoder()


def requested_model(name: str | None) -> str | None:
    """The model a client means by `model`: None for the default one."""
    return None if name is None or name in PLACEHOLDER_MODELS else name


class CachedTokens(msgspec.Struct):
    """Prompt tokens that were found in the prefix cache.

    `cache_write_tokens`: those that are kept there since the request asked for it.
    """

    cached_tokens: int
    cache_write_tokens: int | UnsetType = UNSET


class ReasoningTokens(msgspec.Struct):
    """Completion tokens that it took to write the reasoning, with what marks it."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Token counts of one call: prompts once each, completions of all returned choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens | UnsetType = UNSET
    completion_tokens_details: ReasoningTokens | UnsetType = UNSET


class UsageCounter:
    """Counts the tokens of one call, with the cached ones (`has_details`) and those of reasoning (`has_reasoning`)."""

    def __init__(self, *, has_details: bool, has_reasoning: bool = False) -> None:
        self._has_details = has_details
        self._has_reasoning = has_reasoning
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_kept_tokens = 0
        self.num_completion_tokens = 0
        self._counted: dict[int, int] = {}  # by sequence: all of its tokens, where reasoning is counted
        self._reasoning: dict[int, int] = {}  # by sequence

    @property
    def num_written_tokens(self) -> int:
        """Tokens of the prompts that are kept since this call; those that were found in the cache are not."""
        return max(0, self.num_kept_tokens - self.num_cached_tokens)

    @property
    def num_reasoning_tokens(self) -> int:
        return sum(self._reasoning.values())

    def add(self, event: GenerationEvent) -> None:
        num_tokens = len(event.tokens)
        self.num_completion_tokens += num_tokens
        if event.num_cached_tokens:
            self.num_cached_tokens += event.num_cached_tokens
        if event.prompt is not None:
            self._add_prompt(event.prompt)
        if self._has_reasoning:
            self._counted[event.index] = counted = self._counted.get(event.index, 0) + num_tokens
            if event.reasoning:
                self._reasoning[event.index] = counted

    def of(self, results: Sequence[GenerationResult]) -> Usage:
        """The usage of a call that does not stream."""
        for result in results:
            self.num_completion_tokens += result.num_completion_tokens
            self._add_prompt(result.prompt)
            if self._has_reasoning:
                for sequence in result.sequences:
                    self._reasoning[sequence.index] = _num_reasoning_tokens(sequence)
        return self.usage()

    def usage(self) -> Usage:
        written = self.num_written_tokens if self.num_kept_tokens else UNSET
        return Usage(
            self.num_prompt_tokens,
            self.num_completion_tokens,
            self.num_prompt_tokens + self.num_completion_tokens,
            CachedTokens(self.num_cached_tokens, written) if self._has_details else UNSET,
            ReasoningTokens(self.num_reasoning_tokens) if self._has_reasoning else UNSET,
        )

    def _add_prompt(self, prompt: PromptInfo) -> None:
        self.num_prompt_tokens += len(prompt.token_ids)
        self.num_cached_tokens += prompt.num_cached_tokens
        self.num_kept_tokens += prompt.num_kept_tokens


def _num_reasoning_tokens(sequence: SequenceResult) -> int:
    if not sequence.reasoning:
        return 0
    end = end_of(sequence.text, sequence.reasoning)
    return len(sequence.tokens) if end is None else num_tokens_within(sequence.tokens, end)


def end_of(text: str, part: str) -> int | None:
    begin = text.find(part)
    return None if begin < 0 else begin + len(part)


def num_tokens_within(tokens: Sequence[TokenOutput], num_chars: int) -> int:
    """Number of tokens, from the first, that write at least `num_chars` characters; all if they write fewer."""
    written = 0
    for count, token in enumerate(tokens):
        if written >= num_chars:
            return count
        written += len(token.text)
    return len(tokens)


def json_logprob(logprob: float | None) -> float | None:
    if logprob is None or math.isnan(logprob):
        return None
    return max(logprob, LOWEST_LOGPROB)


class PromptLogprobEntry(msgspec.Struct):
    """One candidate at a prompt position. `rank` counts from 1; None = the engine does not tell that of this token."""

    logprob: float | None
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprobEntry] | None]


def prompt_logprobs(prompt: PromptInfo, top_n: int) -> PromptLogprobs:
    """By token id, the token itself first; None where there is no probability. Source: vLLM's `prompt_logprobs`."""
    return [_prompt_candidates(token, top_n) for token in prompt.tokens]


def _prompt_candidates(token: TokenOutput, top_n: int) -> dict[str, PromptLogprobEntry] | None:
    if token.logprob is None:
        return None
    ranks = {top.id: rank for rank, top in enumerate(token.top, start=1)}
    entry = PromptLogprobEntry(json_logprob(token.logprob), ranks.get(token.id, token.rank), token.token_text)
    candidates = {str(token.id): entry}
    for top in token.top[:top_n]:
        candidates.setdefault(str(top.id), PromptLogprobEntry(json_logprob(top.logprob), ranks[top.id], top.text))
    return candidates


class TextChunk:
    """A chunk with nothing but text: all other bytes are made once. `frame`: text -> the whole chunk, framed."""

    __slots__ = ("_after", "_before")

    def __init__(self, frame: Callable[[str], bytes]) -> None:
        # Random, so that no name or id that a client chose can hold it.
        placeholder = secrets.token_hex(16)
        self._before, self._after = frame(placeholder).split(_ENCODER.encode(placeholder))

    def frame(self, text: str) -> bytes:
        return self._before + _ENCODER.encode(text) + self._after


class Reading(msgspec.Struct, frozen=True):
    """The profile by which a dialect reads one body, and the model that answers."""

    profile: Profile
    model: ModelProfile


def knows_name(model: ModelProfile, named: str | None) -> bool:
    """True if `named` can mean this model; nothing and placeholders can."""
    wanted = requested_model(named)
    return wanted is None or wanted == model.name or wanted in model.aliases or wanted in model.adapter_names()


def name_in_answer(reading: Reading, named: str | None) -> str:
    """The name as the client wrote it if that chose the model, else the served one."""
    has_chosen = knows_name(reading.model, named) or not reading.profile.ignores_model
    return (requested_model(named) if has_chosen else None) or reading.model.name


class StreamOptions(msgspec.Struct, kw_only=True):
    """`stream_options`. Other keys are tolerated and reported as without effect."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None

    @property
    def is_continuous(self) -> bool:
        """True if every chunk holds the usage so far; as in vLLM, only where the last one holds it as well."""
        return bool(self.include_usage and self.continuous_usage_stats)


class StreamedBody(Protocol):
    model: str | None
    stream_options: StreamOptions | None


class Chunk(Protocol):
    timings: Timings | UnsetType
    prompt_progress: ToldProgress | UnsetType


ChunkT = TypeVar("ChunkT", bound=Chunk)


class OpenAiEncoder(Encoder, Generic[ChunkT]):
    def __init__(
        self,
        body: StreamedBody,
        reading: Reading,
        call_id: str,
        *,
        is_sse: bool,
        has_reasoning: bool,
        shows_ids: bool,
        num_prompt_logprobs: int | None,
    ) -> None:
        """`has_reasoning`: the usage tells the tokens of reasoning. `num_prompt_logprobs` None = none are shown."""
        has_details = reading.profile.name == "v1"
        self._id = call_id
        self._model = name_in_answer(reading, body.model)
        self._errors = reading.profile.errors
        self._is_sse = is_sse
        self._shows_ids = shows_ids
        self._num_prompt_logprobs = num_prompt_logprobs
        self._usage = UsageCounter(has_details=has_details, has_reasoning=has_details and has_reasoning)
        stream_options = body.stream_options
        self._tells_usage = stream_options is not None and bool(stream_options.include_usage)
        self._has_continuous_usage = stream_options is not None and stream_options.is_continuous
        self._chunk_usage: UnsetType | None = None if self._tells_usage else UNSET
        self._text_chunks: dict[int, TextChunk] = {}  # by choice
        self._timings = NO_TIMINGS

    def show_timings(self, timings: ShownTimings) -> bool:
        self._timings = timings
        return True

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        return Head(SSE_MEDIA_TYPE if self._is_sse else JSONLINES_MEDIA_TYPE)

    def progress(self, progress: ToldProgress) -> bytes:
        """A chunk that says nothing yet, as llama.cpp has it."""
        chunk = self._chunk([self._silent_choice()], self._chunk_usage)
        chunk.prompt_progress = progress
        return self._frame(chunk)

    def end(self) -> bytes:
        usage = b""
        if self._tells_usage:
            chunk = self._chunk([], self._usage.usage())
            chunk.timings = self._timings.of()
            usage = self._frame(chunk)
        return usage + (SSE_DONE if self._is_sse else b"")

    def stream_error(self, error: ServerError) -> bytes:
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
        chunk = self._text_chunks.get(index)
        if chunk is None:
            chunk = self._text_chunks[index] = TextChunk(
                lambda text: self._frame(self._chunk([self._text_choice(index, text)], self._chunk_usage))
            )
        return chunk.frame(text)

    def _event_chunk(self, choice: msgspec.Struct, event: GenerationEvent) -> ChunkT:
        """The chunk of an event, with usage and timings where it is to have them."""
        chunk = self._chunk([choice], self._usage.usage() if self._has_continuous_usage else self._chunk_usage)
        if event.finish_reason is not None and self._timings is not NO_TIMINGS and not self._tells_usage:
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
