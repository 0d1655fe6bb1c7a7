"""The answers of LMI and TGI as JSON: the objects, how they are made from neutral results, and the encoders of calls.

Whole bodies, streams with one object per token, `outputs` lines of dynamic batches. One encoder per call, on the event
loop. The JSON is compact: its spaces mean nothing.
Source of names and order: the LMI schema pages v0.31 and v0.26, the TGI API.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.errors import ServerError
from dragoman.server.api import (
    JSONLINES_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    Encoder,
    Head,
    IndexedEvent,
    Reply,
    json_reply,
    jsonline,
    sse,
)
from dragoman.server.apis.lmi_wire.parameters import LmiOptions
from dragoman.server.apis.lmi_wire.request import AnswerPlan
from dragoman.server.timings import NO_TIMINGS, ShownTimings, Timings
from dragoman.types import (
    LOWEST_LOGPROB,
    FinishReason,
    GenerationEvent,
    GenerationResult,
    PromptInfo,
    SequenceResult,
    TokenOutput,
)

LMI_FINISH: Mapping[FinishReason, str] = {
    FinishReason.EOS: "eos_token",
    FinishReason.STOP_TOKEN: "eos_token",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.LENGTH: "length",
    FinishReason.REPETITION: "repetition",
    FinishReason.ABORT: "abort",
}

FinishWord = Annotated[str, Meta(extra_json_schema={"enum": sorted({*LMI_FINISH.values(), "error"})})]
TgiSeed = Annotated[int | UnsetType | None, Meta(description="with tgi_compat")]

NO_TOKEN = TokenOutput(id=-1, text="")


class LmiToken(msgspec.Struct):
    """A token. `logprob` and `special` are TGI's, with `tgi_compat`; `special_token` is there with `lmi_version=0.26`."""

    id: int
    text: str
    logprob: float | UnsetType = UNSET
    log_prob: float | None = None
    special: bool | UnsetType = UNSET
    special_token: bool | UnsetType = UNSET


class LmiPromptToken(msgspec.Struct):
    """A token of the prompt; the first one has no log-probability."""

    id: int
    text: str
    logprob: float | UnsetType | None = UNSET
    log_prob: float | None = None
    top_tokens: list[LmiToken] | UnsetType = UNSET


class LmiSequence(msgspec.Struct, kw_only=True):
    """One sequence beside the best one."""

    finish_reason: FinishWord
    generated_tokens: int
    tokens: list[LmiToken]
    prefill: list[LmiPromptToken] | UnsetType = UNSET
    top_tokens: list[list[LmiToken]] | UnsetType = UNSET
    seed: TgiSeed = UNSET
    generated_text: str


class LmiDetails(msgspec.Struct, kw_only=True):
    """The way an answer came about; inside a stream without the tokens, which were sent already."""

    finish_reason: FinishWord
    generated_tokens: int | UnsetType = UNSET
    inputs: str | UnsetType = UNSET
    tokens: list[LmiToken] | UnsetType = UNSET
    prefill: list[LmiPromptToken] | UnsetType = UNSET
    top_tokens: list[list[LmiToken]] | UnsetType = UNSET
    seed: TgiSeed = UNSET
    input_length: Annotated[int | UnsetType, Meta(description="with tgi_compat, in streams")] = UNSET
    best_of_sequences: list[LmiSequence] | UnsetType = UNSET


class LmiDetailsOfSeveral(msgspec.Struct, kw_only=True):
    """The same where several sequences were asked for: the order of the fields is another one."""

    inputs: str
    finish_reason: FinishWord
    generated_tokens: int
    tokens: list[LmiToken]
    prefill: list[LmiPromptToken] | UnsetType = UNSET
    top_tokens: list[list[LmiToken]] | UnsetType = UNSET
    seed: TgiSeed = UNSET
    best_of_sequences: list[LmiSequence] | UnsetType = UNSET


class LmiResult(msgspec.Struct):
    """The answer to one prompt. `token`: the tokens again, with `lmi_version=0.26`."""

    generated_text: str
    details: LmiDetails | UnsetType = UNSET
    token: list[LmiToken] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class LmiResultOfSeveral(msgspec.Struct):
    """The answer to one prompt of which several sequences were asked for."""

    generated_text: str
    details: LmiDetailsOfSeveral
    timings: Timings | UnsetType = UNSET


class LmiBatch(msgspec.Struct):
    """The answer to a dynamic batch of several prompts with `lmi_version=0.26`."""

    generated_text: list[str]
    timings: Timings | UnsetType = UNSET


class LmiLine(msgspec.Struct):
    """One object of a stream: a token; text and details with the last one. `top_tokens` with `tgi_compat`."""

    token: LmiToken
    top_tokens: list[LmiToken] | UnsetType = UNSET
    generated_text: str | UnsetType = UNSET
    details: LmiDetails | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class TgiLine(msgspec.Struct, kw_only=True):
    """The same on TGI's routes. `index` counts from 1; text and details are null until the last token."""

    index: int
    token: LmiToken
    top_tokens: list[LmiToken] | UnsetType = UNSET
    generated_text: str | None
    details: LmiDetails | None
    timings: Timings | UnsetType = UNSET


class LmiOutputsLine(msgspec.Struct):
    """The text that each prompt of a dynamic batch gained in one step."""

    outputs: Sequence[str]
    timings: Timings | UnsetType = UNSET


Result = LmiResult | LmiResultOfSeveral
Line = LmiLine | TgiLine
LMI_RESULTS = (LmiResult, LmiResultOfSeveral)


def finite(logprob: float | None) -> float | None:
    if logprob is None or logprob >= LOWEST_LOGPROB:
        return logprob
    return LOWEST_LOGPROB  # minus infinity, and NaN, which compares false with everything


def best_first(sequences: Sequence[SequenceResult], *, is_ranked: bool) -> list[SequenceResult]:
    """The sequences by their log-probability, the highest first; beams come ranked already."""
    if is_ranked or any(sequence.cumulative_logprob is None for sequence in sequences):
        return list(sequences)
    return sorted(sequences, key=lambda sequence: sequence.cumulative_logprob or 0.0, reverse=True)


def _lmi_token(token: TokenOutput) -> LmiToken:
    return LmiToken(token.id, token.text, UNSET, finite(token.logprob))


def _v026_token(token: TokenOutput) -> LmiToken:
    return LmiToken(token.id, token.text, UNSET, finite(token.logprob), UNSET, token.special)


def _tgi_token(token: TokenOutput) -> LmiToken:
    logprob = finite(token.logprob) or 0.0  # always a float: clients check the type
    return LmiToken(token.id, token.text, logprob, logprob, token.special)


Framing = Literal["jsonlines", "sse"]
ErrorObject = Callable[[ServerError], msgspec.Struct]

to_json = msgspec.json.encode  # NaN and infinities become null, non-ASCII stays as it is


class LmiEncoder(Encoder):
    def __init__(self, framing: Framing, stream_error: ErrorObject) -> None:
        self._frame = sse if framing == "sse" else jsonline
        self._media_type = SSE_MEDIA_TYPE if framing == "sse" else JSONLINES_MEDIA_TYPE
        self._stream_error = stream_error
        self._timings = NO_TIMINGS

    def show_timings(self, timings: ShownTimings) -> bool:
        self._timings = timings
        return True

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        return Head(self._media_type)

    def stream_error(self, error: ServerError) -> bytes:
        return self._frame(to_json(self._stream_error(error)))


class TokenEncoder(LmiEncoder):
    """Answers of rolling batches: one object per prompt, or one object per token of the first sequence."""

    def __init__(
        self, framing: Framing, stream_error: ErrorObject, options: LmiOptions, answer: AnswerPlan, *, is_list: bool
    ) -> None:
        super().__init__(framing, stream_error)
        self._answer = answer
        self._is_list = is_list
        self._is_tgi = options.is_tgi
        self._is_tgi_route = options.is_tgi_route
        self._is_plain_v026 = options.is_v026 and not options.is_tgi
        self._token: Callable[[TokenOutput], LmiToken] = _lmi_token
        if options.is_tgi:
            self._token = _tgi_token
        elif options.is_v026:
            self._token = _v026_token
        self._prompt_text = answer.prompts.texts[0]
        self._prompt = PromptInfo(self._prompt_text, ())
        self._texts: list[str] = []
        self._top_tokens: list[list[LmiToken]] = []
        self._num_tokens = 0

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        texts = self._answer.prompts.texts
        bodies = [self._result(text, result) for text, result in zip(texts, results, strict=True)]
        for index, body in enumerate(bodies):
            body.timings = self._timings.of(index)
        return json_reply(200, bodies if self._is_list else bodies[0])

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        if event.index:
            return b""
        if event.prompt is not None:
            self._prompt = event.prompt
        self._texts.append(event.text)
        if event.finish_reason is None:
            return b"".join([self._frame(to_json(self._line(token))) for token in event.tokens])
        *tokens, last = event.tokens or (None,)
        lines = [self._line(token) for token in tokens if token is not None]
        lines.append(self._last_line(last, event.finish_reason))
        return b"".join([self._frame(to_json(line)) for line in lines])

    def _line(self, token: TokenOutput) -> Line:
        self._num_tokens += 1
        made = self._token(token)
        shown: list[LmiToken] | UnsetType = UNSET
        if self._answer.has_top_tokens:
            self._top_tokens.append(self._alternatives(token))
            if self._is_tgi:
                shown = self._top_tokens[-1]
        if self._is_tgi_route:
            return TgiLine(index=self._num_tokens, token=made, top_tokens=shown, generated_text=None, details=None)
        return LmiLine(made, shown)

    def _last_line(self, token: TokenOutput | None, finish_reason: FinishReason) -> Line:
        """A stream without any token still ends with one, which does not count."""
        line = self._line(token or NO_TOKEN)
        if token is None:
            self._num_tokens -= 1
        line.generated_text = self._text(self._prompt_text, "".join(self._texts))
        line.timings = self._timings.of()
        if self._answer.has_details:
            line.details = self._details(finish_reason)
        return line

    def _result(self, prompt_text: str, result: GenerationResult) -> Result:
        best, *others = best_first(result.sequences, is_ranked=self._answer.is_beam_search)
        text = self._text(prompt_text, best.text)
        if not (self._answer.has_details or self._answer.is_several):
            return LmiResult(text)
        named = self._sequence(best, result.prompt)
        if others:
            named["best_of_sequences"] = [
                LmiSequence(generated_text=self._text(prompt_text, other.text), **self._sequence(other, result.prompt))
                for other in others
            ]
        if self._is_plain_v026:
            del named["generated_tokens"]
            return LmiResult(text, LmiDetails(**named), named["tokens"])
        if self._answer.is_several:
            return LmiResultOfSeveral(text, LmiDetailsOfSeveral(inputs=prompt_text, **named))
        return LmiResult(text, LmiDetails(inputs=prompt_text, **named))

    def _text(self, prompt_text: str, text: str) -> str:
        return prompt_text + text if self._answer.has_full_text else text

    def _details(self, finish_reason: FinishReason) -> LmiDetails:
        """The details of a stream, without the tokens, which were sent already."""
        shows_top_tokens = self._answer.has_top_tokens and not self._is_tgi_route  # TGI: on every event only
        return LmiDetails(
            finish_reason=LMI_FINISH[finish_reason],
            generated_tokens=UNSET if self._is_plain_v026 else self._num_tokens,
            inputs=UNSET if self._is_plain_v026 else self._prompt_text,
            prefill=self._prefill(self._prompt),
            top_tokens=self._top_tokens if shows_top_tokens else UNSET,
            seed=self._seed(self._prompt),
            input_length=len(self._prompt.token_ids) if self._is_tgi else UNSET,
        )

    def _sequence(self, sequence: SequenceResult, prompt: PromptInfo) -> dict[str, Any]:
        has_top_tokens = self._answer.has_top_tokens
        return {
            "finish_reason": LMI_FINISH[sequence.finish_reason],
            "generated_tokens": len(sequence.tokens),
            "tokens": [self._token(token) for token in sequence.tokens],
            "prefill": self._prefill(prompt),
            "top_tokens": [self._alternatives(token) for token in sequence.tokens] if has_top_tokens else UNSET,
            "seed": self._seed(prompt),
        }

    def _seed(self, prompt: PromptInfo) -> int | UnsetType | None:
        """TGI tells it: null where nothing was drawn."""
        if not self._is_tgi:
            return UNSET
        return prompt.seed if self._answer.is_sampling else None

    def _prefill(self, prompt: PromptInfo) -> list[LmiPromptToken] | UnsetType:
        """TGI's clients expect the field in any case."""
        if self._answer.has_prefill:
            return [self._prompt_token(token) for token in prompt.tokens]
        return [] if self._is_tgi else UNSET

    def _prompt_token(self, token: TokenOutput) -> LmiPromptToken:
        logprob = finite(token.logprob)
        return LmiPromptToken(
            id=token.id,
            text=token.token_text or token.text,
            logprob=logprob if self._is_tgi else UNSET,
            log_prob=logprob,
            top_tokens=self._alternatives(token) if self._answer.has_prompt_top_tokens else UNSET,
        )

    def _alternatives(self, token: TokenOutput) -> list[LmiToken]:
        return [
            self._token(
                TokenOutput(top.id, top.text, logprob=top.logprob, special=token.special and top.id == token.id)
            )
            for top in token.top
        ]


class OutputsEncoder(LmiEncoder):
    """Answers of dynamic batches, and streams of several prompts: line N has the N-th token's text of each prompt."""

    def __init__(self, framing: Framing, stream_error: ErrorObject, options: LmiOptions, answer: AnswerPlan) -> None:
        super().__init__(framing, stream_error)
        self._answer = answer
        self._is_v026 = options.is_v026
        self._pending: list[deque[str]] = [deque() for _ in answer.prompts.texts]
        self._is_running = [True for _ in answer.prompts.texts]
        self._has_begun = [False for _ in answer.prompts.texts]
        self._has_sent_prompts = not answer.has_full_text

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        """In 0.26 one answer, with a list where the prompts were one."""
        prefix = self._answer.prompts.texts if self._answer.has_full_text else [""] * len(results)
        is_ranked = self._answer.is_beam_search
        texts = [
            start + best_first(result.sequences, is_ranked=is_ranked)[0].text
            for start, result in zip(prefix, results, strict=True)
        ]
        if not self._is_v026:
            bodies = [LmiResult(text, timings=self._timings.of(index)) for index, text in enumerate(texts)]
            return json_reply(200, bodies)
        timings = self._timings.of()
        is_array = self._answer.prompts.is_array
        return json_reply(200, LmiBatch(texts, timings) if is_array else LmiResult(texts[0], timings=timings))

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        if event.index:
            return b""
        if event.tokens or not self._has_begun[request_index]:
            self._has_begun[request_index] = True
            self._pending[request_index] += [token.text for token in event.tokens] or [event.text]
        if event.finish_reason is not None:
            self._is_running[request_index] = False
        lines = []
        while self._is_step_over():
            lines.append(self._outputs())
        return b"".join(lines)

    def end(self) -> bytes:
        lines = []
        while any(self._pending):
            lines.append(self._outputs())
        return b"".join(lines)

    def _is_step_over(self) -> bool:
        waits = any(running and not texts for running, texts in zip(self._is_running, self._pending, strict=True))
        return not waits and any(self._pending)

    def _outputs(self) -> bytes:
        made = LmiOutputsLine([texts.popleft() if texts else "" for texts in self._pending])
        if not any(self._is_running) and not any(self._pending):
            made.timings = self._timings.of()
        line = self._frame(to_json(made))
        if self._has_sent_prompts:
            return line
        self._has_sent_prompts = True
        return self._frame(to_json(LmiOutputsLine(self._answer.prompts.texts))) + line
