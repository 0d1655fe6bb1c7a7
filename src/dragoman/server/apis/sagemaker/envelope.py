"""The envelope of SageMaker's runtime around a container's answers, for AWS clients whose `endpoint_url` points here.

Wraps any dialect, for each call, on the event loop. Its errors become ModelErrors; on the streaming operation its bytes
travel in event-stream messages, and a failure in mid-stream is a ModelStreamError. The gate checks signatures.
Source: the SageMaker runtime API reference, InvokeEndpoint, InvokeEndpointWithResponseStream and "Common Errors".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from dragoman.errors import (
    BadSignature,
    Forbidden,
    NotFound,
    RateLimited,
    RequestTimeout,
    ServerError,
    UnknownPath,
    WrongMethod,
)
from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    JSONLINES_MEDIA_TYPE,
    Answerer,
    Call,
    CallSwitches,
    Chunks,
    Dialect,
    Encoder,
    Head,
    HttpCall,
    IndexedEvent,
    Opening,
    Reply,
    StreamedReply,
)
from dragoman.server.apis.lmi.choose import target_of
from dragoman.server.apis.sagemaker.eventstream import EVENTSTREAM_MEDIA_TYPE, exception, payload_parts
from dragoman.server.timings import ShownTimings, TimedEncoder
from dragoman.types import GenerationEvent, GenerationResult

MODEL_ERROR = 424  # InvokeEndpoint's ModelError

STREAM_ACCEPT = "x-amzn-sagemaker-accept"  # the streaming operation's name for Accept
CONTENT_TYPE = "x-amzn-sagemaker-content-type"  # and for Content-Type
TARGET_VARIANT = "x-amzn-sagemaker-target-variant"
INVOKED_VARIANT = "x-amzn-invoked-production-variant"
ONLY_VARIANT = "AllTraffic"  # the name SageMaker's tools give to an endpoint's only variant

# Readers of records wait for a line's end for ever, so these media types never lack their last one.
_LINE_MEDIA_TYPES = (JSON_MEDIA_TYPE, JSONLINES_MEDIA_TYPE)


class SageMakerError(msgspec.Struct, rename="pascal"):
    """ModelError: the container's own error and its status."""

    message: str
    original_status_code: int
    original_message: str


class AwsError(msgspec.Struct, frozen=True, rename="pascal"):
    """The body of an error that was found before a container was asked."""

    message: str


class StreamError(msgspec.Struct, rename="pascal"):
    """ModelStreamError: why a stream broke off."""

    message: str
    error_code: str


FRONT_ERRORS: Mapping[type[ServerError], tuple[int, str]] = {
    BadSignature: (403, "InvalidSignatureException"),
    Forbidden: (403, "AccessDeniedException"),
    RateLimited: (429, "ThrottlingException"),
}
"""Status and name of what AWS's own front door tells."""


@dataclass(frozen=True, slots=True)
class SageMakerDialect:
    """`inner` as SageMaker delivers it. `is_stream`: the operation is InvokeEndpointWithResponseStream."""

    inner: Dialect
    is_stream: bool = False

    def open(self, http: HttpCall) -> Opening:
        inner = self.inner.open(as_container_call(http))
        answer = None if inner.answer is None else partial(self._answer, inner.answer, http)
        return msgspec.structs.replace(inner, parse=partial(self._parse, inner.parse, http), answer=answer)

    def _parse(self, parse: Callable[[], Call], http: HttpCall) -> Call:
        call = parse()
        return msgspec.structs.replace(call, encoder=_Encoder(call.encoder, _invoked(http), self.is_stream))

    async def _answer(self, answer: Answerer, http: HttpCall, switches: CallSwitches) -> Reply | StreamedReply | None:
        made = await answer(switches)
        if made is None:
            return None
        headers = _invoked(http)
        if isinstance(made, StreamedReply):
            return _wrapped_stream(made, headers, is_stream=self.is_stream)
        return model_error(made) if made.status >= 400 else _wrapped_reply(made, headers, is_stream=self.is_stream)

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The container's own error inside a ModelError, except errors that SageMaker finds itself."""
        if isinstance(error, NotFound) and target_of(http):
            return _front_error(400, "ValidationError", error)
        for kind, (status, name) in FRONT_ERRORS.items():
            if isinstance(error, kind):
                return _front_error(status, name, error)
        reply = self.inner.error_reply(error, as_container_call(http))
        return reply if isinstance(error, UnknownPath | WrongMethod) else model_error(reply)


class _Encoder:
    def __init__(self, inner: Encoder, headers: Mapping[str, str], is_stream: bool) -> None:
        self._inner = inner
        self._headers = headers
        self._is_stream = is_stream

    def show_timings(self, timings: ShownTimings) -> bool:
        return isinstance(self._inner, TimedEncoder) and self._inner.show_timings(timings)

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        return _wrapped_reply(self._inner.full(results), self._headers, is_stream=self._is_stream)

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        return _wrapped_head(self._inner.head(events), self._headers, is_stream=self._is_stream)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        return self._framed(self._inner.event(request_index, event))

    def end(self) -> bytes:
        return self._framed(self._inner.end())

    def stream_error(self, error: ServerError) -> bytes | None:
        own = self._inner.stream_error(error)
        return _stream_error(own or b"", error) if self._is_stream else own

    def trailers(self) -> Sequence[tuple[str, str]]:
        return () if self._is_stream else self._inner.trailers()

    def _framed(self, content: bytes) -> bytes:
        return payload_parts(content) if self._is_stream else content


@dataclass(frozen=True, slots=True)
class _FramedChunks:
    inner: Chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self.inner:
            yield payload_parts(chunk)

    async def aclose(self) -> None:
        await self.inner.aclose()


def _wrapped_stream(made: StreamedReply, headers: Mapping[str, str], *, is_stream: bool) -> StreamedReply:
    head = _wrapped_head(made.head, headers, is_stream=is_stream)
    if not is_stream:
        return replace(made, head=head)
    return StreamedReply(head, _FramedChunks(made.chunks), lambda error: _stream_error(made.stream_error(error), error))


def _wrapped_reply(reply: Reply, own: Mapping[str, str], *, is_stream: bool) -> Reply:
    headers = {**reply.headers, **own}
    if not is_stream:
        return msgspec.structs.replace(reply, headers=headers)
    body = payload_parts(_with_line_end(reply.body, reply.media_type))
    return Reply(reply.status, body, EVENTSTREAM_MEDIA_TYPE, {**headers, CONTENT_TYPE: reply.media_type})


def _wrapped_head(head: Head, own: Mapping[str, str], *, is_stream: bool) -> Head:
    headers = {**head.headers, **own}
    if not is_stream:
        return msgspec.structs.replace(head, headers=headers)
    headers.pop("trailer", None)  # the messages have no place for them
    return Head(EVENTSTREAM_MEDIA_TYPE, head.status, {**headers, CONTENT_TYPE: head.media_type})


def _stream_error(own: bytes, error: ServerError) -> bytes:
    """The dialect's own last words, then the exception that AWS clients raise."""
    code = "ModelInvocationTimeExceeded" if isinstance(error, RequestTimeout) else "StreamBroken"
    body = msgspec.json.encode(StreamError(error.message, code))
    return payload_parts(own) + exception("ModelStreamError", body)


def model_error(own: Reply) -> Reply:
    """The container's error `own` as the runtime reports it."""
    text = own.body.decode("utf-8", "replace")
    side = "client" if own.status < 500 else "server"
    message = f'Received {side} error ({own.status}) from primary with message "{text.strip()}"'
    body = SageMakerError(message, own.status, text)
    headers = {**own.headers, "x-amzn-errortype": "ModelError"}
    return Reply(MODEL_ERROR, msgspec.json.encode(body), JSON_MEDIA_TYPE, headers)


def _front_error(status: int, name: str, error: ServerError) -> Reply:
    body = msgspec.json.encode(AwsError(error.message))
    return Reply(status, body, JSON_MEDIA_TYPE, {"x-amzn-errortype": name})


def as_container_call(http: HttpCall) -> HttpCall:
    """One Accept header, whichever operation was used."""
    accept = http.headers.get(STREAM_ACCEPT)
    return http if accept is None else msgspec.structs.replace(http, headers={**http.headers, "accept": accept})


def _invoked(http: HttpCall) -> dict[str, str]:
    return {INVOKED_VARIANT: http.headers.get(TARGET_VARIANT) or ONLY_VARIANT}


def _with_line_end(body: bytes, media_type: str) -> bytes:
    return body if body.endswith(b"\n") or media_type not in _LINE_MEDIA_TYPES else body + b"\n"
