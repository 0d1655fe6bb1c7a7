"""Encodes completions, whole answers and streams. One encoder per call, on the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from msgspec import UnsetType

from dragoman.server.api import SSE_MEDIA_TYPE, HttpCall, Reply
from dragoman.server.apis.openai_wire.common import OpenAiEncoder, Reading, Usage, json_logprob
from dragoman.server.apis.openai_wire.completions.schema import (
    Completion,
    CompletionBody,
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
)
from dragoman.server.apis.openai_wire.profile import OPENAI_FINISH
from dragoman.types import (
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    PromptInfo,
    SequenceResult,
    TextPrompt,
    TokenOutput,
)

Part = SequenceResult | GenerationEvent
"""A whole choice, or the next part of one."""


class CompletionEncoder(OpenAiEncoder[CompletionChunk]):
    def __init__(
        self,
        body: CompletionBody,
        requests: tuple[GenerationRequest, ...],
        reading: Reading,
        http: HttpCall,
        created_s: int,
    ) -> None:
        """`requests`: those of `body`, in the order of the prompts, all with the same `n`."""
        self._shows_text = body.detokenize is not False
        super().__init__(
            body,
            reading,
            f"cmpl-{http.request_id}",
            is_sse=reading.profile.name != "lmi" or SSE_MEDIA_TYPE in http.accept,
            has_reasoning=False,
            shows_ids=bool(body.return_token_ids) or not self._shows_text,
            num_prompt_logprobs=body.prompt_logprobs,
        )
        self._body = body
        self._requests = requests
        self._created_s = created_s
        self._fingerprint = reading.model.system_fingerprint
        self._chunk_object = reading.profile.chunk_object
        self._prompts: dict[int, PromptInfo] = {}  # by request
        self._offsets: dict[int, int] = {}  # by choice: where its next token's text begins; absent = not begun
        self._needs_tokens = body.logprobs is not None or self._shows_ids
        self._needs_prompt = bool(body.echo) or body.prompt_logprobs is not None or self._shows_ids
        self._is_text_only = self._shows_text and not (
            self._needs_tokens or self._needs_prompt or self._has_continuous_usage
        )

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        choices = []
        for request_index, result in enumerate(results):
            for sequence in result.sequences:
                choices.append(self._choice(request_index, sequence, result.prompt))
        answer = Completion(
            self._id,
            "text_completion",
            self._created_s,
            self._model,
            self._fingerprint,
            choices,
            self._usage.of(results),
            self._timings.of(),
        )
        return self._reply(answer)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        """Runs once per step and sequence, so it stays cheap; b"" while there is nothing to tell."""
        self._usage.add(event)
        if self._is_text_only and event.text and event.finish_reason is None:  # nearly every event of nearly every call
            return self._more_text(self._choice_index(request_index, event.index), event.text)
        prompt = self._first_prompt(request_index, event) if self._needs_prompt else None
        has_news = event.text or event.finish_reason is not None or prompt is not None
        if not has_news and not (self._needs_tokens and event.tokens):
            return b""
        return self._frame(self._event_chunk(self._choice(request_index, event, prompt), event))

    def _text_choice(self, index: int, text: str) -> CompletionChoice:
        return CompletionChoice(index, text)

    def _silent_choice(self) -> CompletionChoice:
        return CompletionChoice(0, "")

    def _first_prompt(self, request_index: int, event: GenerationEvent) -> PromptInfo | None:
        """The prompt if this is the choice's first event. Only the request's first event brings it."""
        if event.prompt is not None:
            self._prompts[request_index] = event.prompt
        is_first = self._choice_index(request_index, event.index) not in self._offsets
        return self._prompts.get(request_index) if is_first else None

    def _choice_index(self, request_index: int, sequence_index: int) -> int:
        return request_index * self._requests[request_index].sampling.n + sequence_index

    def _choice(self, request_index: int, part: Part, prompt: PromptInfo | None) -> CompletionChoice:
        """`prompt`: where this part is the choice's first."""
        index = self._choice_index(request_index, part.index)
        reason = None if part.finish_reason is None else OPENAI_FINISH[part.finish_reason]
        choice = CompletionChoice(index, part.text if self._shows_text else "", None, reason)
        if not (self._needs_tokens or self._needs_prompt):
            return choice
        echoed = prompt if self._body.echo else None
        echo = "" if echoed is None else _echo_text(self._requests[request_index], echoed)
        begin = self._offsets.get(index, 0) if echoed is None else len(echo)
        self._offsets[index] = begin + sum(len(token.text) for token in part.tokens)
        if self._body.logprobs is not None:
            rows = choice.logprobs = CompletionLogprobs()
            if echoed is not None:
                self._add_rows(rows, echoed.tokens, _offsets_in(echo, echoed.tokens))
            self._add_rows(rows, part.tokens, accumulate((len(token.text) for token in part.tokens), initial=begin))
        if self._shows_text:
            choice.text = echo + part.text
        choice.prompt_logprobs = self._prompt_logprobs(prompt)
        choice.token_ids = self._token_ids(part.tokens)
        choice.prompt_token_ids = self._prompt_ids(prompt)
        return choice

    def _add_rows(self, rows: CompletionLogprobs, tokens: Sequence[TokenOutput], offsets: Iterable[int]) -> None:
        top_n, names_by_id = self._body.logprobs or 0, bool(self._body.return_tokens_as_token_ids)
        for token, offset in zip(tokens, offsets, strict=False):  # the last offset may be the next token's
            rows.tokens.append(f"token_id:{token.id}" if names_by_id else token.token_text)
            rows.token_logprobs.append(json_logprob(token.logprob))
            rows.top_logprobs.append(_top_logprobs(token, top_n, names_by_id=names_by_id))
            rows.text_offset.append(offset)

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
    """Candidates by text (or id), best first, and the token itself even where it is none of them."""
    if token.logprob is None:
        return None
    candidates: dict[str, float | None] = {}
    # Different tokens can have the same text (halves of a character all read U+FFFD): the most likely one keeps the place.
    for top in token.top[:top_n]:
        candidates.setdefault(f"token_id:{top.id}" if names_by_id else top.text, json_logprob(top.logprob))
    candidates.setdefault(f"token_id:{token.id}" if names_by_id else token.token_text, json_logprob(token.logprob))
    return candidates
