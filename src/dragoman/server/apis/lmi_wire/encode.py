"""Encodes LMI and TGI answers: whole bodies, streams with one object per token, `outputs` lines of dynamic batches.

One encoder per call, on the event loop. The JSON is compact: its spaces mean nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

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
from dragoman.server.apis.lmi_wire.objects import (
    NO_TOKEN,
    Line,
    LmiBatch,
    LmiLine,
    LmiOutputsLine,
    LmiResult,
    LmiToken,
    ObjectBuilder,
    Shape,
    TgiLine,
    best_first,
)
from dragoman.server.apis.lmi_wire.request import AnswerPlan
from dragoman.server.timings import NO_TIMINGS, ShownTimings
from dragoman.types import FinishReason, GenerationEvent, GenerationResult, PromptInfo, TokenOutput

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
        self, framing: Framing, stream_error: ErrorObject, shape: Shape, answer: AnswerPlan, *, is_list: bool
    ) -> None:
        super().__init__(framing, stream_error)
        self._shape = shape
        self._answer = answer
        self._build = ObjectBuilder(shape, answer)
        self._token = self._build.token
        self._is_list = is_list
        self._prompt_text = answer.prompts.texts[0]
        self._prompt = PromptInfo(self._prompt_text, ())
        self._texts: list[str] = []
        self._top_tokens: list[list[LmiToken]] = []
        self._num_tokens = 0

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        texts = self._answer.prompts.texts
        bodies = [
            self._build.result(text, result.prompt, result.sequences)
            for text, result in zip(texts, results, strict=True)
        ]
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
        if self._shape.is_tgi:
            return self._tgi_line(token)
        if self._answer.has_top_tokens:
            self._top_tokens.append(self._build.top_tokens(token))
        return LmiLine(self._token(token))

    def _tgi_line(self, token: TokenOutput) -> Line:
        made = self._token(token)
        top_tokens: list[LmiToken] | UnsetType = UNSET
        if self._answer.has_top_tokens:
            top_tokens = self._build.top_tokens(token)
            self._top_tokens.append(top_tokens)
        if not self._shape.is_tgi_route:
            return LmiLine(made, top_tokens)
        return TgiLine(index=self._num_tokens, token=made, top_tokens=top_tokens, generated_text=None, details=None)

    def _last_line(self, token: TokenOutput | None, finish_reason: FinishReason) -> Line:
        """A stream without any token still ends with one, which does not count."""
        line = self._line(token or NO_TOKEN)
        if token is None:
            self._num_tokens -= 1
        line.generated_text = self._build.text(self._prompt_text, "".join(self._texts))
        line.timings = self._timings.of()
        if self._answer.has_details:
            line.details = self._build.stream_details(
                finish_reason, self._num_tokens, self._prompt_text, self._prompt, self._top_tokens
            )
        return line


class OutputsEncoder(LmiEncoder):
    """Answers of dynamic batches, and streams of several prompts: line N has the N-th token's text of each prompt."""

    def __init__(
        self,
        framing: Framing,
        stream_error: ErrorObject,
        answer: AnswerPlan,
        *,
        is_v026: bool,
    ) -> None:
        super().__init__(framing, stream_error)
        self._answer = answer
        self._is_v026 = is_v026
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
