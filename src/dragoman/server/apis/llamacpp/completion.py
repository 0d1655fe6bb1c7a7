"""`/completion` and `/infill`: answers, their encoder, and the dialects. On the event loop.

Source: llama.cpp, tools/server/README.md, and its server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import ServerError, UnsupportedFeature
from dragoman.server.api import (
    SSE_MEDIA_TYPE,
    Call,
    Encoder,
    Head,
    HttpCall,
    IndexedEvent,
    ModelProfile,
    PureDialect,
    Reply,
    json_reply,
    sse,
)
from dragoman.server.apis.llamacpp.request import (
    ERRORS,
    WORDS,
    LlamaCompletionBody,
    LlamaInfillBody,
    LlamaSharedBody,
    error_body,
    max_tokens_of,
    read_parameters,
    tells_progress,
)
from dragoman.server.apis.openai_wire.common import Reading, json_logprob
from dragoman.server.apis.openai_wire.fields import check_count, decode_object, is_token_id, read_struct
from dragoman.server.observation.record import current_measure
from dragoman.server.timings import ShownTimings, Timings, ToldProgress
from dragoman.types import (
    LOWEST_LOGPROB,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    InfillPrompt,
    Limits,
    MixedPrompt,
    Prompt,
    PromptInfo,
    SequenceResult,
    TokenOutput,
)

# --- answers ----------------------------------------------------------------------------------------------------------


StopType = Literal["none", "eos", "limit", "word"]


class LlamaTopToken(msgspec.Struct):
    """One of the most likely tokens: its log-probability, or the probability that it is drawn with."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | UnsetType = UNSET
    prob: float | UnsetType = UNSET


class LlamaToken(msgspec.Struct):
    """A token of the answer, and what was most likely in its place; as above."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | UnsetType = UNSET
    top_logprobs: list[LlamaTopToken] | UnsetType = UNSET
    prob: float | UnsetType = UNSET
    top_probs: list[LlamaTopToken] | UnsetType = UNSET


class LlamaPiece(msgspec.Struct, kw_only=True):
    """A piece of a streamed answer."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False] = False
    id_slot: int = -1
    tokens_predicted: int
    tokens_evaluated: int
    timings: Timings | UnsetType = UNSET
    prompt_progress: ToldProgress | UnsetType = UNSET
    completion_probabilities: list[LlamaToken] | UnsetType = UNSET


class LlamaAnswer(msgspec.Struct, kw_only=True):
    """The answer to one prompt, or the end of its stream, which has no `content`. `id_slot`: there are no slots."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int = -1
    stop: Literal[True] = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: StopType
    stopping_word: str
    tokens_cached: int
    timings: Timings | UnsetType = UNSET
    completion_probabilities: list[LlamaToken] | UnsetType = UNSET


# --- encoder ----------------------------------------------------------------------------------------------------------

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

    def progress(self, progress: ToldProgress) -> bytes:
        piece = LlamaPiece(
            index=0,
            content="",
            tokens=[],
            tokens_predicted=0,
            tokens_evaluated=progress.processed,
            prompt_progress=progress,
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
    name, tops = ("prob", "top_probs") if is_drawn else ("logprob", "top_logprobs")
    number = _chance if is_drawn else _logprob
    top = [
        LlamaTopToken(candidate.id, candidate.text, list(candidate.bytes), **{name: number(candidate.logprob)})
        for candidate in token.top[:num_probs]
    ]
    made = LlamaToken(token.id, token.token_text, list(token.bytes))
    setattr(made, name, number(token.logprob))
    setattr(made, tops, top)
    return made


def _chance(logprob: float | None) -> float:
    return math.exp(logprob or 0.0)


def _logprob(logprob: float | None) -> float:
    """A number for JSON, which cannot say minus infinity."""
    number_or_none = json_logprob(logprob)
    return LOWEST_LOGPROB if number_or_none is None else number_or_none


# --- dialects ---------------------------------------------------------------------------------------------------------


class AppliedAdapter:
    """The adapter for calls that name none; None = as the model's name says."""

    name: str | None = None


class _Dialect(PureDialect):
    errors = ERRORS

    def __init__(self, profile: ModelProfile, applied: AppliedAdapter) -> None:
        self._profile = profile
        self._reading = Reading(WORDS, profile)
        self.applied = applied

    def _call(
        self, http: HttpCall, raw: Mapping[str, Any], body: LlamaSharedBody, prompts: Sequence[Prompt], *, is_list: bool
    ) -> Call:
        found = read_parameters(raw, body, self._profile, self._reading, self.applied.name, http.request_id)
        request = found.request
        ids = [http.request_id] if len(prompts) == 1 else [f"{http.request_id}-{i}" for i in range(len(prompts))]
        requests = tuple(
            msgspec.structs.replace(
                request, request_id=request_id, prompt=prompt, cache_salt=request_id if request.cache_salt else ""
            )
            for request_id, prompt in zip(ids, prompts, strict=True)
        )
        return Call(
            requests,
            LlamaEncoder(requests, body, self._profile, found.settings, is_list=is_list),
            stream=bool(body.stream),
            idle=found.idle,
            wants_progress=tells_progress(body, self._profile),
        )


class CompletionDialect(_Dialect):
    def parse(self, http: HttpCall) -> Call:
        raw = decode_object(http, WORDS)
        body = read_struct(raw, LlamaCompletionBody, WORDS)
        prompts, is_list = read_prompts(body.prompt, self._profile.limits)
        return self._call(http, raw, body, prompts, is_list=is_list)


class InfillDialect(_Dialect):
    def parse(self, http: HttpCall) -> Call:
        raw = decode_object(http, WORDS)
        body = read_struct(raw, LlamaInfillBody, WORDS)
        files = body.input_extra or []
        check_count("input_extra", len(files), self._profile.limits.max_messages, WORDS)
        prompt = InfillPrompt(
            before=body.input_prefix,
            behind=body.input_suffix,
            begun=body.prompt or "",
            files=tuple((file.filename, file.text) for file in files),
            num_answer_tokens=max_tokens_of(body) or 0,
        )
        return self._call(http, raw, body, [prompt], is_list=False)


# --- prompts -----------------------------------------------------------------------------------------------------------

_ALLOWED = "a text, an array of texts and token ids, an object with prompt_string, or an array of these"


def read_prompts(value: Any, limits: Limits) -> tuple[list[MixedPrompt], bool]:
    """The prompts, and whether they came as a list of several. Raises: InvalidRequest."""
    if value is None:
        raise WORDS.missing("prompt", _ALLOWED)
    if not isinstance(value, list) or any(map(is_token_id, value)):
        return [_prompt("prompt", value, limits)], False
    if not value:
        raise WORDS.fault("prompt", "empty", "prompt must hold at least one prompt, got []")
    check_count("prompt", len(value), limits.max_prompts, WORDS)
    return [_prompt(f"prompt[{position}]", prompt, limits) for position, prompt in enumerate(value)], True


def _prompt(name: str, value: Any, limits: Limits) -> MixedPrompt:
    if isinstance(value, str):
        return MixedPrompt((value,))
    if isinstance(value, dict):
        return _wrapped(name, value)
    if not isinstance(value, list):
        raise WORDS.wrong(name, _ALLOWED, value)
    return MixedPrompt(_parts(name, value, limits))


def _wrapped(name: str, value: dict[str, Any]) -> MixedPrompt:
    text = value.get("prompt_string")
    if not isinstance(text, str):
        raise WORDS.wrong(f"{name}.prompt_string", "a text", text)
    if value.get("multimodal_data"):
        raise UnsupportedFeature(
            f"{name}.multimodal_data is not supported: send pictures in messages to /v1/chat/completions",
            param=f"{name}.multimodal_data",
        )
    return MixedPrompt((text,))


def _parts(name: str, values: Sequence[Any], limits: Limits) -> tuple[str | int, ...]:
    check_count(name, len(values), limits.max_token_ids, WORDS)
    if not values:
        raise WORDS.fault(name, "empty", f"{name} must hold at least one token id or text, got []")
    for position, entry in enumerate(values):
        if not (isinstance(entry, str) or (is_token_id(entry) and entry >= 0)):
            raise WORDS.wrong(f"{name}[{position}]", "a token id or a text", entry)
    return tuple(values)
