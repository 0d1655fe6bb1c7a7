"""Completions in OpenAI's shape: Structs, encoder and dialect. On the event loop.

Sources: OpenAI API reference, completions; OVMS v2025.0, completions API; vLLM for the extensions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.parameters import UINT32_MAX, Bounds
from dragoman.server.api import SSE_MEDIA_TYPE, Call, HttpCall, ModelProfile, PureDialect, Reply
from dragoman.server.apis.openai_wire.common import Created, OpenAiEncoder, PromptLogprobs, Reading, Usage, json_logprob
from dragoman.server.apis.openai_wire.fields import check_count, check_number, decode_object, read_struct, shown
from dragoman.server.apis.openai_wire.profile import OPENAI_FINISH, ChunkName, Profile
from dragoman.server.apis.openai_wire.sampling import (
    SharedBody,
    check_shared,
    logprob_bounds,
    logprob_count,
    shared_request,
    tells_progress,
    without_effect,
)
from dragoman.server.timings import Timings, ToldProgress
from dragoman.types import (
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    Prompt,
    PromptInfo,
    SequenceResult,
    TextPrompt,
    TokenOutput,
    TokenPrompt,
)

# --- bodies and answers -----------------------------------------------------------------------------------------------


class CompletionBody(SharedBody, kw_only=True):
    """`prompt` is one string, strings, token ids, or lists of token ids."""

    return_progress: bool | None = None
    prompt: str | list[str | int | list[int]] | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None
    n_probs: int | None = None
    detokenize: bool | None = None
    return_token_ids: bool | None = None
    return_tokens: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool | None = None


class CompletionLogprobs(msgspec.Struct):
    """One row per token. `text_offset`: where the token's text begins in `text`, in characters."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] = []
    text_offset: list[int] = []


FinishWord = Annotated[str, Meta(extra_json_schema={"enum": sorted(set(OPENAI_FINISH.values()))})]


class CompletionChoice(msgspec.Struct):
    """One choice of an answer or of a chunk; `finish_reason` is null while the generation continues."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishWord | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct):
    """A whole answer."""

    id: str
    object: Literal["text_completion"]
    created: Created
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: Timings | UnsetType = UNSET


class CompletionChunk(msgspec.Struct):
    """One event or line of a stream; `usage` is null in the chunks of a stream that will tell it at the end."""

    id: str
    object: ChunkName
    created: Created
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: ToldProgress | UnsetType = UNSET


# --- encoder ----------------------------------------------------------------------------------------------------------

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


# --- dialect ----------------------------------------------------------------------------------------------------------

MAX_TOKENS = Bounds(1, UINT32_MAX, note=" (or 0 with echo: true)")


class CompletionsDialect(PureDialect):
    """`clock` returns Unix time in seconds."""

    def __init__(self, model: ModelProfile, profile: Profile, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.errors = profile.errors
        self._reading = Reading(replace(profile, bounds={**profile.bounds, "max_tokens": MAX_TOKENS}), model)

    def parse(self, http: HttpCall) -> Call:
        profile = self._reading.profile
        raw = decode_object(http, profile)
        body = read_struct(raw, CompletionBody, profile)
        only_prompt = body.max_tokens == 0 and body.echo
        check_shared(raw, body, self._reading, exempt=("max_tokens",) if only_prompt else ())
        self._check(body)
        requests = self._requests(body, _prompts(body, self._reading), http.request_id)
        return Call(
            requests=requests,
            encoder=CompletionEncoder(body, requests, self._reading, http, int(self._clock())),
            stream=bool(body.stream),
            idle=without_effect(raw, body, requests[0], self._reading),
            wants_progress=tells_progress(body, self._reading),
        )

    def _check(self, body: CompletionBody) -> None:
        profile = self._reading.profile
        body.prompt_logprobs = logprob_count("prompt_logprobs", body.prompt_logprobs, self._reading)
        if body.n_probs is not None:
            check_number("n_probs", body.n_probs, logprob_bounds(self._reading), profile)
            body.logprobs = body.logprobs if body.logprobs is not None else body.n_probs or None
        if body.logprobs is not None:
            check_number("logprobs", body.logprobs, logprob_bounds(self._reading), profile)
        if body.detokenize is False and body.stop:
            message = f"stop cannot be used with detokenize: false, got {shown(body.stop)}"
            raise profile.fault("stop", "detokenize", message)

    def _requests(
        self, body: CompletionBody, prompts: Sequence[Prompt], request_id: str
    ) -> tuple[GenerationRequest, ...]:
        first = shared_request(
            body,
            self._reading,
            request_id=request_id,
            prompt=prompts[0],
            logprobs=body.logprobs,
            max_tokens=self._reading.profile.default_max_tokens if body.n_predict is None else None,
        )
        if body.echo and body.logprobs is not None:
            count = max(body.logprobs, first.sampling.prompt_logprobs or 0)
            first = msgspec.structs.replace(
                first, sampling=msgspec.structs.replace(first.sampling, prompt_logprobs=count)
            )
        if len(prompts) == 1:
            return (first,)
        return tuple(
            msgspec.structs.replace(first, request_id=f"{request_id}-{number}", prompt=prompt)
            for number, prompt in enumerate(prompts)
        )


def _prompts(body: CompletionBody, reading: Reading) -> list[Prompt]:
    """The prompts in order. A list of integers is one prompt, a list of anything else one prompt per element."""
    prompt, profile = body.prompt, reading.profile
    if prompt is None or prompt == []:
        raise profile.missing("prompt", "text, token ids, or a list of either")
    if isinstance(prompt, str):
        return [_text_prompt(prompt, body, profile)]
    if set(map(type, prompt)) == {int}:
        return [_token_prompt("prompt", prompt, body, profile)]
    check_count("prompt", len(prompt), reading.model.limits.max_prompts, profile)
    prompts: list[Prompt] = []
    for position, element in enumerate(prompt):
        if isinstance(element, str):
            prompts.append(_text_prompt(element, body, profile))
        elif isinstance(element, list):
            prompts.append(_token_prompt(f"prompt[{position}]", element, body, profile))
        else:
            message = f"prompt[{position}] must be of the same kind as the other prompts, got {shown(element)}"
            raise profile.fault("prompt", "mixed", message)
    return prompts


def _text_prompt(text: str, body: CompletionBody, profile: Profile) -> TextPrompt:
    if not text and profile.refuses_empty_prompt:
        raise profile.fault("prompt", "missing", "prompt must not be empty")
    # An empty suffix is what editors send at the end of a file: there is nothing to fill in before it.
    return TextPrompt(text, suffix=body.suffix or None, add_special_tokens=body.add_special_tokens is not False)


def _token_prompt(name: str, ids: Sequence[Any], body: CompletionBody, profile: Profile) -> TokenPrompt:
    if body.suffix:
        message = f"suffix needs a prompt of text, got token ids and suffix {shown(body.suffix)}"
        raise profile.fault("suffix", "token_prompt", message)
    if not ids:
        raise profile.fault("prompt", "missing", f"{name} must hold at least one token id, got []")
    if min(ids) < 0:
        raise profile.fault("prompt", "low", f"{name} must hold token ids of at least 0, got {min(ids)}")
    return TokenPrompt(tuple(ids))
