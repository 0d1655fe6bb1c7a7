"""Encodes completions: choices, their logprobs, chunks, usage.

Does: everything the answer shows, for whole answers and streams alike, on `/v1`, `/v3` and `/invocations`.
Does not: parse. One encoder per call, on the event loop; `event` runs once per step and sequence, so it stays cheap.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import ServerError
from dragoman.server.api import JSONLINES_MEDIA_TYPE, SSE_MEDIA_TYPE, Head, HttpCall, IndexedEvent, Reply
from dragoman.server.apis.openai_wire.common import (
    TextChunk,
    Usage,
    UsageCounter,
    Wire,
    json_logprob,
    prompt_logprobs,
    usage_of,
)
from dragoman.server.apis.openai_wire.completions.schema import (
    Completion,
    CompletionBody,
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
)
from dragoman.server.apis.openai_wire.profile import OPENAI_FINISH
from dragoman.server.apis.openai_wire.sampling import Reading, has_continuous_usage, tells_usage
from dragoman.server.progress import ToldProgress
from dragoman.server.timings import NO_TIMINGS, ShownTimings
from dragoman.types import (
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    PromptInfo,
    TextPrompt,
    TokenOutput,
)


class _Part(msgspec.Struct, frozen=True):
    """A part of one choice: new text and tokens, and the prompt where this part is the choice's first."""

    text: str
    tokens: Sequence[TokenOutput]
    finish_reason: FinishReason | None
    prompt: PromptInfo | None


class CompletionEncoder:
    """Implements `Encoder` for completions."""

    def __init__(
        self,
        body: CompletionBody,
        requests: tuple[GenerationRequest, ...],
        reading: Reading,
        http: HttpCall,
        created_s: int,
    ) -> None:
        """`requests`: those of `body`, in the order of the prompts, all with the same `n`."""
        profile, options = reading.profile, reading.options
        self._body = body
        self._requests = requests
        self._id = f"cmpl-{http.request_id}"
        self._created_s = created_s
        self._model = options.names.answering(profile, body.model)
        self._fingerprint = options.system_fingerprint
        self._chunk_object = profile.chunk_object
        self._is_sse = profile.name != "lmi" or SSE_MEDIA_TYPE in http.accept
        self._wire = Wire(profile.errors, is_sse=self._is_sse)
        self._has_details = profile.name == "v1"
        self._usage = UsageCounter(has_details=self._has_details)
        self._prompts: dict[int, PromptInfo] = {}  # by request
        self._offsets: dict[int, int] = {}  # by choice: where its next token's text begins; absent = not begun
        self._shows_text = body.detokenize is not False
        self._shows_ids = bool(body.return_token_ids) or not self._shows_text
        self._needs_tokens = body.logprobs is not None or self._shows_ids
        self._needs_prompt = bool(body.echo) or body.prompt_logprobs is not None or self._shows_ids
        self._has_continuous_usage = has_continuous_usage(body)
        self._is_text_only = self._shows_text and not (
            self._needs_tokens or self._needs_prompt or self._has_continuous_usage
        )
        self._text_chunks: dict[int, TextChunk] = {}  # by choice
        self._tells_usage = tells_usage(body)
        self._chunk_usage = None if self._tells_usage else UNSET
        self._timings = NO_TIMINGS

    def show_timings(self, timings: ShownTimings) -> bool:
        """They stand in a whole answer and in a stream's last chunk."""
        self._timings = timings
        return True

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        """All choices, prompt by prompt, and the usage."""
        choices = []
        for request_index, result in enumerate(results):
            for sequence in result.sequences:
                part = _Part(sequence.text, sequence.tokens, sequence.finish_reason, result.prompt)
                choices.append(self._choice(request_index, sequence.index, part))
        answer = Completion(
            self._id,
            "text_completion",
            self._created_s,
            self._model,
            self._fingerprint,
            choices,
            usage_of(results, has_details=self._has_details),
            self._timings.of(),
        )
        return self._wire.reply(answer)

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        """200 and the framing's media type."""
        return Head(SSE_MEDIA_TYPE if self._is_sse else JSONLINES_MEDIA_TYPE)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        """One chunk; b"" while there is nothing to tell, as inside a character of several tokens."""
        self._usage.add(event.prompt, len(event.tokens), event.num_cached_tokens)
        if self._is_text_only and event.text and event.finish_reason is None:  # nearly every event of nearly every call
            return self._text_chunk(self._choice_index(request_index, event.index)).frame(event.text)
        prompt = self._first_prompt(request_index, event) if self._needs_prompt else None
        has_news = event.text or event.finish_reason is not None or prompt is not None
        if not has_news and not (self._needs_tokens and event.tokens):
            return b""
        part = _Part(event.text, event.tokens, event.finish_reason, prompt)
        usage = self._usage.usage() if self._has_continuous_usage else self._chunk_usage
        chunk = self._chunk([self._choice(request_index, event.index, part)], usage)
        if event.finish_reason is not None and self._timings is not NO_TIMINGS and not self._tells_usage:
            chunk.timings = self._timings.sequence_ended()
        return self._wire.frame(chunk)

    def end(self) -> bytes:
        """The usage chunk, if asked for, and the end mark."""
        usage = b""
        if self._tells_usage:
            chunk = self._chunk([], self._usage.usage())
            chunk.timings = self._timings.of()
            usage = self._wire.frame(chunk)
        return usage + self._wire.done()

    def stream_error(self, error: ServerError) -> bytes:
        """The error as the stream's last event."""
        return self._wire.error(error)

    def trailers(self) -> Sequence[tuple[str, str]]:
        """None."""
        return ()

    def progress(self, told: ToldProgress) -> bytes:
        """A chunk that says nothing yet, as llama.cpp has it."""
        chunk = self._chunk([CompletionChoice(0, "")], self._chunk_usage)
        chunk.prompt_progress = told
        return self._wire.frame(chunk)

    def _text_chunk(self, index: int) -> TextChunk:
        chunk = self._text_chunks.get(index)
        if chunk is None:
            chunk = self._text_chunks[index] = TextChunk(lambda text: self._frame_text(index, text))
        return chunk

    def _frame_text(self, index: int, text: str) -> bytes:
        choice = CompletionChoice(index, text)
        return self._wire.frame(self._chunk([choice], self._chunk_usage))

    def _first_prompt(self, request_index: int, event: GenerationEvent) -> PromptInfo | None:
        """The prompt if this is the choice's first event. Only the request's first event brings it: it is kept here."""
        if event.prompt is not None:
            self._prompts[request_index] = event.prompt
        is_first = self._choice_index(request_index, event.index) not in self._offsets
        return self._prompts.get(request_index) if is_first else None

    def _choice_index(self, request_index: int, sequence_index: int) -> int:
        return request_index * self._requests[request_index].sampling.n + sequence_index

    def _choice(self, request_index: int, sequence_index: int, part: _Part) -> CompletionChoice:
        index = self._choice_index(request_index, sequence_index)
        reason = None if part.finish_reason is None else OPENAI_FINISH[part.finish_reason]
        choice = CompletionChoice(index, part.text if self._shows_text else "", None, reason)
        if self._needs_tokens or self._needs_prompt:
            self._add_details(choice, self._requests[request_index], part)
        return choice

    def _add_details(self, choice: CompletionChoice, request: GenerationRequest, part: _Part) -> None:
        body = self._body
        echoed = part.prompt if body.echo else None
        if body.logprobs is not None:
            choice.logprobs = self._logprobs(choice.index, request, part, echoed)
        else:
            self._offsets[choice.index] = 0
        if echoed is not None and self._shows_text:
            choice.text = _echo_text(request, echoed) + part.text
        if part.prompt is not None and body.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(part.prompt, body.prompt_logprobs)
        if self._shows_ids:
            choice.token_ids = [token.id for token in part.tokens]
            if part.prompt is not None:
                choice.prompt_token_ids = list(part.prompt.token_ids)

    def _logprobs(
        self, index: int, request: GenerationRequest, part: _Part, echoed: PromptInfo | None
    ) -> CompletionLogprobs:
        """Rows for the echoed prompt, if any, then for the new tokens. Mutates: the choice's offset."""
        rows = CompletionLogprobs()
        offset = self._offsets.get(index, 0)
        if echoed is not None:
            text = _echo_text(request, echoed)
            self._add_rows(rows, echoed.tokens)
            rows.text_offset += _offsets_in(text, echoed.tokens)
            offset = len(text)
        self._add_rows(rows, part.tokens)
        for token in part.tokens:
            rows.text_offset.append(offset)
            offset += len(token.text)
        self._offsets[index] = offset
        return rows

    def _add_rows(self, rows: CompletionLogprobs, tokens: Sequence[TokenOutput]) -> None:
        top_n, names_by_id = self._body.logprobs or 0, bool(self._body.return_tokens_as_token_ids)
        for token in tokens:
            rows.tokens.append(f"token_id:{token.id}" if names_by_id else token.token_text)
            rows.token_logprobs.append(json_logprob(token.logprob))
            rows.top_logprobs.append(_top_logprobs(token, top_n, names_by_id=names_by_id))

    def _chunk(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> CompletionChunk:
        return CompletionChunk(
            self._id, self._chunk_object, self._created_s, self._model, self._fingerprint, choices, usage
        )


def _echo_text(request: GenerationRequest, prompt: PromptInfo) -> str:
    """The prompt as the answer repeats it: without the marks that a fill-in-the-middle prompt is wrapped in."""
    if isinstance(request.prompt, TextPrompt) and request.prompt.suffix is not None:
        return request.prompt.text
    return prompt.text


def _offsets_in(text: str, tokens: Sequence[TokenOutput]) -> list[int]:
    """The index in the text where each token of a prompt begins; special tokens that were added take no room in it."""
    offsets, offset = [], 0
    for token in tokens:
        offsets.append(offset)
        if not token.special or text.startswith(token.text, offset):
            offset = min(offset + len(token.text), len(text))
    return offsets


def _top_logprobs(token: TokenOutput, top_n: int, *, names_by_id: bool) -> dict[str, float | None] | None:
    """Candidates by text (or id), best first, and the token itself even where it is none of them.

    Different tokens can have the same text (halves of a character all read U+FFFD): the most likely one keeps the place.
    Else a client that compares the token with the maximum would take an unlikely token for the most likely one.
    """
    if token.logprob is None:
        return None
    candidates: dict[str, float | None] = {}
    for top in token.top[:top_n]:
        candidates.setdefault(f"token_id:{top.id}" if names_by_id else top.text, json_logprob(top.logprob))
    candidates.setdefault(f"token_id:{token.id}" if names_by_id else token.token_text, json_logprob(token.logprob))
    return candidates
