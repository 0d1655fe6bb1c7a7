"""SageMaker's runtime as an API: what AWS clients call when their `endpoint_url` points here, around LMI's answers.

Wraps any dialect, for each call, on the event loop. Its errors become ModelErrors; on the streaming operation its bytes
travel in event-stream messages, and a failure in mid-stream is a ModelStreamError. The gate checks signatures.
Sources: the SageMaker runtime API reference, InvokeEndpoint, InvokeEndpointWithResponseStream and "Common Errors"; the
Smithy specification "Amazon Event Stream".
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from dragoman.errors import (
    ALL_KINDS,
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
    model_of_query_or_header,
)
from dragoman.server.apis.lmi import api as lmi
from dragoman.server.apis.lmi.deferred import Polling
from dragoman.server.apis.lmi.dialect import INPUTS, dialect_of_body
from dragoman.server.descriptions import (
    BY_NAME,
    TEXT,
    VERSIONED,
    Answers,
    Content,
    ErrorFamily,
    Schema,
    header,
    json_answer,
    merged,
    parameter,
)
from dragoman.server.operations import Api, GenerateOperation, Server
from dragoman.server.timings import ShownTimings
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
        if isinstance(error, NotFound) and lmi.target_of(http):
            return _front_error(400, "ValidationError", error)
        for kind, (status, name) in FRONT_ERRORS.items():
            if isinstance(error, kind):
                return _front_error(status, name, error)
        reply = self.inner.error_reply(error, as_container_call(http))
        return reply if isinstance(error, UnknownPath | WrongMethod) else model_error(reply)


class _Encoder(Encoder):
    def __init__(self, inner: Encoder, headers: Mapping[str, str], is_stream: bool) -> None:
        self._inner = inner
        self._headers = headers
        self._is_stream = is_stream

    def show_timings(self, timings: ShownTimings) -> bool:
        return self._inner.show_timings(timings)

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        return _wrapped_reply(self._inner.full(results), self._headers, is_stream=self._is_stream)

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        return _wrapped_head(self._inner.head(events), self._headers, is_stream=self._is_stream)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        return self._framed(self._inner.event(request_index, event))

    def end(self) -> bytes:
        return self._framed(self._inner.end())

    def stream_error(self, error: ServerError) -> bytes | None:
        inner = self._inner.stream_error(error)
        return _stream_error(inner or b"", error) if self._is_stream else inner

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


def _wrapped_reply(reply: Reply, extra: Mapping[str, str], *, is_stream: bool) -> Reply:
    headers = {**reply.headers, **extra}
    if not is_stream:
        return msgspec.structs.replace(reply, headers=headers)
    body = payload_parts(_with_line_end(reply.body, reply.media_type))
    return Reply(reply.status, body, EVENTSTREAM_MEDIA_TYPE, {**headers, CONTENT_TYPE: reply.media_type})


def _wrapped_head(head: Head, extra: Mapping[str, str], *, is_stream: bool) -> Head:
    headers = {**head.headers, **extra}
    if not is_stream:
        return msgspec.structs.replace(head, headers=headers)
    headers.pop("trailer", None)  # the messages have no place for them
    return Head(EVENTSTREAM_MEDIA_TYPE, head.status, {**headers, CONTENT_TYPE: head.media_type})


def _stream_error(payload: bytes, error: ServerError) -> bytes:
    """The dialect's own last words, then the exception that AWS clients raise."""
    code = "ModelInvocationTimeExceeded" if isinstance(error, RequestTimeout) else "StreamBroken"
    body = msgspec.json.encode(StreamError(error.message, code))
    return payload_parts(payload) + exception("ModelStreamError", body)


def model_error(reply: Reply) -> Reply:
    """The container's error `own` as the runtime reports it."""
    text = reply.body.decode("utf-8", "replace")
    side = "client" if reply.status < 500 else "server"
    message = f'Received {side} error ({reply.status}) from primary with message "{text.strip()}"'
    body = SageMakerError(message, reply.status, text)
    headers = {**reply.headers, "x-amzn-errortype": "ModelError"}
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


# Messages of the event stream, the binary framing that AWS clients read streams in:
# [total length u32][headers length u32][CRC-32 of these 8 bytes][headers][payload][CRC-32 of everything before], all
# numbers big-endian; a header is [name length u8][name][type u8 = 7][value length u16][value], 7 being UTF-8 strings.

EVENTSTREAM_MEDIA_TYPE = "application/vnd.amazon.eventstream"

MAX_PAYLOAD_BYTES = 1024 * 1024  # clients refuse messages of more than 16 MiB; longer payloads go into several

_STRING = 7
_PRELUDE = struct.Struct(">II")
_CHECKSUM = struct.Struct(">I")
_OVERHEAD_BYTES = _PRELUDE.size + 2 * _CHECKSUM.size


def message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Raises: struct.error for a header name over 255 or a value over 65535 bytes."""
    packed = b"".join(_header(name, value) for name, value in headers.items())
    prelude = _PRELUDE.pack(_OVERHEAD_BYTES + len(packed) + len(payload), len(packed))
    body = prelude + _CHECKSUM.pack(zlib.crc32(prelude)) + packed + payload
    return body + _CHECKSUM.pack(zlib.crc32(body))


def payload_parts(payload: bytes) -> bytes:
    headers = {":event-type": "PayloadPart", ":content-type": "application/octet-stream", ":message-type": "event"}
    starts = range(0, len(payload), MAX_PAYLOAD_BYTES)
    return b"".join(message(headers, payload[start : start + MAX_PAYLOAD_BYTES]) for start in starts)


def exception(exception_type: str, payload: bytes) -> bytes:
    """A modelled exception, which ends a stream; `payload` is its JSON body."""
    headers = {":exception-type": exception_type, ":content-type": "application/json", ":message-type": "exception"}
    return message(headers, payload)


def _header(name: str, value: str) -> bytes:
    raw_name, raw_value = name.encode(), value.encode()
    return struct.pack(f">B{len(raw_name)}sBH", len(raw_name), raw_name, _STRING, len(raw_value)) + raw_value


ERRORS = ErrorFamily(
    {
        **dict.fromkeys(ALL_KINDS, MODEL_ERROR),
        **{kind.kind: FRONT_ERRORS[kind][0] for kind in (Forbidden, RateLimited)},
    },
    lambda status: {JSON_MEDIA_TYPE: SageMakerError if status == MODEL_ERROR else AwsError},
)

_TARGET_ERRORS: Answers = {
    400: json_answer(AwsError, "ValidationError: there is no such target model"),
    424: json_answer(SageMakerError, "the target model does not fit into the memory that is left"),
}
_REFUSED: Answers = {403: json_answer(AwsError, "the signature does not match")}

_EVENT_STREAM: Mapping[str, Schema] = {
    EVENTSTREAM_MEDIA_TYPE: {
        "type": "string",
        "format": "binary",
        "description": "PayloadPart messages whose payloads are the container's stream; a failure in the middle is a "
        "ModelStreamError message",
    }
}


def _model_of_endpoint(http: HttpCall, server: Server) -> str | None:
    """The target model or component that the call names, else the model called like the endpoint, else the default."""
    target = lmi.target_of(http)
    component = http.headers.get("x-amzn-sagemaker-inference-component", "")
    name = http.path_params["name"]
    named = target or component or model_of_query_or_header(http, server)
    return named or (name if server.models.knows(name) else None)


def _operation(path: str, summary: str, content: Content, *, is_stream: bool, text: str) -> GenerateOperation:
    ok = lmi.answered(content, "the container's answer", "x-Amzn-Invoked-Production-Variant")
    return GenerateOperation(
        path=path,
        tag="SageMaker",
        summary=summary,
        answers=merged(ok, lmi.DEFERRED, ERRORS.answers(), _TARGET_ERRORS, _REFUSED),
        description=f"{text} Where key pairs are set, signatures are checked. {lmi.TEXT_OF_ALL}",
        parameters=(
            "endpoint_name",
            *BY_NAME,
            *VERSIONED,
            *lmi.POLLING,
            lmi.TARGET_MODEL,
            "x-amzn-sagemaker-inference-component",
        ),
        body=lmi.BODIES,
        example=lmi.EXAMPLE,
        dialect=dialect_of_body,
        model=_model_of_endpoint,
        borrow=lmi.borrow_target,
        wrap=partial(SageMakerDialect, is_stream=is_stream),
        before=Polling(model_error),
        also_pools=True,
    )


API = Api(
    name="sagemaker",
    title="SageMaker",
    owns=("/endpoints",),
    teller=lambda dialects: SageMakerDialect(dialects[INPUTS]),
    schemas=lmi.schemas,
    needs_engine=False,
    operations=(
        _operation(
            "/endpoints/{name}/invocations",
            "SageMaker's InvokeEndpoint",
            lmi.CONTENT,
            is_stream=False,
            text="What AWS clients call when their endpoint_url points here.",
        ),
        _operation(
            "/endpoints/{name}/invocations-response-stream",
            "SageMaker's InvokeEndpointWithResponseStream",
            _EVENT_STREAM,
            is_stream=True,
            text="What AWS clients call for streams; `X-Amzn-SageMaker-Accept` takes the place of `Accept`.",
        ),
    ),
    parameters={
        **lmi.PARAMETERS,
        "endpoint_name": parameter("path", "name", "a model's name; any other name means the default model", TEXT),
        "x-amzn-sagemaker-inference-component": parameter(
            "header", "X-Amzn-SageMaker-Inference-Component", "the model to use", TEXT
        ),
    },
    headers={
        **lmi.HEADERS,
        "x-Amzn-Invoked-Production-Variant": header("the variant that was asked for, or the only one"),
    },
)
