"""OpenAI's dialects with statistics and `max_tokens: -1`. Source: LM Studio's documentation, REST API v0."""

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
    ModelCard,
    ModelProfile,
    Opening,
    Reply,
    TellsErrors,
    sse,
)
from dragoman.server.apis.lmstudio.schema import LmDetails, LmModelInfo, LmRuntime, LmStats, StopReason
from dragoman.server.observation.measured import current_measure
from dragoman.server.progress import ProgressEncoder, ToldProgress
from dragoman.server.timings import ShownTimings, TimedEncoder
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


def arch_of(card: ModelCard) -> str:
    kind = card.config.get("model_type")
    return kind if isinstance(kind, str) else ""


class StatsDialect(TellsErrors):
    def __init__(self, inner: Dialect, profile: ModelProfile) -> None:
        self._inner = self.errors = inner
        self._info = LmModelInfo(arch_of(profile.card), profile.dtype, profile.card.format, profile.max_model_len)

    def open(self, http: HttpCall) -> Opening:
        body = http.field("max_tokens")
        if body == -1 and isinstance(sent := http.json(), dict):  # as many as there is room for
            kept = {name: value for name, value in sent.items() if name != "max_tokens"}
            http = msgspec.structs.replace(http, _decoded=[kept])
        opening = self._inner.open(http)
        return msgspec.structs.replace(opening, parse=partial(self._parse, opening))

    def _parse(self, opening: Opening) -> Call:
        call = opening.parse()
        return msgspec.structs.replace(call, encoder=_StatsEncoder(call.encoder, call.requests, self._info))


class _StatsEncoder(Encoder):
    def __init__(self, inner: Encoder, requests: Sequence[GenerationRequest], info: LmModelInfo) -> None:
        self._inner = inner
        self._max_tokens = requests[0].max_tokens
        self._info = info
        self._measure = current_measure([request.request_id for request in requests])
        self._num_tokens = 0
        self._end = FinishReason.ABORT
        self._calls_tools = False

    def show_timings(self, timings: ShownTimings) -> bool:
        return isinstance(self._inner, TimedEncoder) and self._inner.show_timings(timings)

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        sequence = results[0].sequences[0]
        self._end, self._num_tokens = sequence.finish_reason, len(sequence.tokens)
        self._calls_tools = bool(sequence.tool_calls)
        reply = self._inner.full(results)
        block = msgspec.json.encode(self._details())
        return msgspec.structs.replace(reply, body=reply.body.rstrip()[:-1] + b"," + block[1:])

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        return self._inner.head(events)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        if request_index == event.index == 0:
            self._num_tokens += len(event.tokens)
            self._end = event.finish_reason or self._end
            self._calls_tools |= bool(event.tool_calls)
        return self._inner.event(request_index, event)

    def progress(self, told: ToldProgress) -> bytes:
        return self._inner.progress(told) if isinstance(self._inner, ProgressEncoder) else b""

    def end(self) -> bytes:
        last = self._inner.end()
        return last.removesuffix(SSE_DONE) + sse(msgspec.json.encode(self._details())) + SSE_DONE

    def stream_error(self, error: ServerError) -> bytes | None:
        return self._inner.stream_error(error)

    def trailers(self) -> Sequence[tuple[str, str]]:
        return self._inner.trailers()

    def _details(self) -> LmDetails:
        wanted, stop = self._max_tokens, _STOPS[self._end]
        if self._end is FinishReason.LENGTH and (wanted is None or self._num_tokens < wanted):
            stop = "contextLengthReached"
        stats = LmStats(
            tokens_per_second=None,
            time_to_first_token=None,
            generation_time=None,
            stop_reason="toolCalls" if self._calls_tools else stop,
        )
        if self._measure is not None:
            timings = self._measure(0)
            stats.tokens_per_second = timings.predicted_per_second
            stats.time_to_first_token = ((timings.queue_ms or 0.0) + timings.prompt_ms) / 1000
            stats.generation_time = timings.predicted_ms / 1000
        return LmDetails(stats, self._info, RUNTIME)
