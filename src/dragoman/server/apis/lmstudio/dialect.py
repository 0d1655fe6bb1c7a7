"""LM Studio's conversations and completions: OpenAI's, with a block of statistics, of the model and of what it runs on.

Does: put the block into an answer, take LM Studio's `max_tokens: -1`. Does not: read the rest of a body, or write the rest
of an answer: OpenAI's dialect, which it wraps, does. Set up for each served model; called on the event loop.
Source: LM Studio's documentation, REST API v0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from dragoman import __version__
from dragoman.errors import ServerError
from dragoman.server.api import (
    SSE_DONE,
    Call,
    Dialect,
    Encoder,
    Head,
    HttpCall,
    IndexedEvent,
    ModelProfile,
    Opening,
    Reply,
    sse,
)
from dragoman.server.apis.lmstudio.schema import LmDetails, LmModelInfo, LmRuntime, LmStats, StopReason
from dragoman.server.observation.measured import measure_of
from dragoman.server.observation.record import current_call
from dragoman.server.progress import ProgressEncoder, ToldProgress
from dragoman.server.timings import Measure, ShownTimings, TimedEncoder
from dragoman.types import FinishReason, GenerationEvent, GenerationRequest, GenerationResult

RUNTIME = LmRuntime("dragoman", __version__, ["gguf", "safetensors", "openvino"])
_STOPS: Mapping[FinishReason, StopReason] = {
    FinishReason.EOS: "eosFound",
    FinishReason.STOP_TOKEN: "eosFound",
    FinishReason.STOP_STRING: "stopStringFound",
    FinishReason.LENGTH: "maxPredictedTokensReached",
    FinishReason.REPETITION: "stopStringFound",  # the nearest word: what a request has asked to end at
    FinishReason.ABORT: "userStopped",
}


def arch_of(profile: ModelProfile) -> str:
    """The `model_type` of the model's configuration, "" if it has none."""
    kind = profile.card.config.get("model_type")
    return kind if isinstance(kind, str) else ""


class StatsDialect:
    """A dialect of OpenAI's wire format, for one model."""

    def __init__(self, inner: Dialect, profile: ModelProfile) -> None:
        self._inner = inner
        self._profile = profile

    def open(self, http: HttpCall) -> Opening:
        """The call as OpenAI's, with another encoder."""
        body = http.field("max_tokens")
        if body == -1 and isinstance(sent := http.json(), dict):  # as many as there is room for
            kept = {name: value for name, value in sent.items() if name != "max_tokens"}
            http = msgspec.structs.replace(http, _decoded=[kept])
        opening = self._inner.open(http)
        return msgspec.structs.replace(opening, parse=partial(self._parse, opening))

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """OpenAI's."""
        return self._inner.error_reply(error, http)

    def _parse(self, opening: Opening) -> Call:
        call = opening.parse()
        record = current_call()
        measure = None if record is None else measure_of(record, [request.request_id for request in call.requests])
        info = LmModelInfo(
            arch_of(self._profile), self._profile.dtype, self._profile.card.format, self._profile.max_model_len
        )
        return msgspec.structs.replace(call, encoder=_StatsEncoder(call.encoder, call.requests, info, measure))


class _StatsEncoder(Encoder):
    """OpenAI's encoder, and the block at the end."""

    def __init__(
        self, inner: Encoder, requests: Sequence[GenerationRequest], info: LmModelInfo, measure: Measure | None
    ) -> None:
        self._inner = inner
        self._requests = requests
        self._info = info
        self._measure = measure
        self._num_tokens = 0
        self._end = FinishReason.ABORT
        self._calls_tools = False

    def show_timings(self, timings: ShownTimings) -> bool:
        """As OpenAI's encoder does."""
        return isinstance(self._inner, TimedEncoder) and self._inner.show_timings(timings)

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        """The whole answer, and the block."""
        sequence = results[0].sequences[0]
        self._end, self._num_tokens = sequence.finish_reason, len(sequence.tokens)
        self._calls_tools = bool(sequence.tool_calls)
        reply = self._inner.full(results)
        block = msgspec.json.encode(self._details())
        return msgspec.structs.replace(reply, body=reply.body.rstrip()[:-1] + b"," + block[1:])

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        """OpenAI's."""
        return self._inner.head(events)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        """OpenAI's, of which it remembers how it ends."""
        if request_index == event.index == 0:
            self._num_tokens += len(event.tokens)
            self._end = event.finish_reason or self._end
            self._calls_tools |= bool(event.tool_calls)
        return self._inner.event(request_index, event)

    def progress(self, told: ToldProgress) -> bytes:
        """OpenAI's."""
        return self._inner.progress(told) if isinstance(self._inner, ProgressEncoder) else b""

    def end(self) -> bytes:
        """The block, before OpenAI's end mark."""
        last = self._inner.end()
        return last.removesuffix(SSE_DONE) + sse(msgspec.json.encode(self._details())) + SSE_DONE

    def stream_error(self, error: ServerError) -> bytes | None:
        """OpenAI's."""
        return self._inner.stream_error(error)

    def trailers(self) -> Sequence[tuple[str, str]]:
        """OpenAI's."""
        return self._inner.trailers()

    def _details(self) -> LmDetails:
        timings = None if self._measure is None else self._measure(0)
        wanted = self._requests[0].max_tokens
        stop = _STOPS[self._end]
        if self._end is FinishReason.LENGTH and (wanted is None or self._num_tokens < wanted):
            stop = "contextLengthReached"
        stats = LmStats(
            tokens_per_second=None if timings is None else timings.predicted_per_second,
            time_to_first_token=None if timings is None else ((timings.queue_ms or 0.0) + timings.prompt_ms) / 1000,
            generation_time=None if timings is None else timings.predicted_ms / 1000,
            stop_reason="toolCalls" if self._calls_tools else stop,
        )
        return LmDetails(stats, self._info, RUNTIME)
