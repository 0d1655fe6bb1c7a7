"""Turns an HTTP call into the `Input` that an operator's code sees, and the `Output` of a handler into an HTTP answer.

On the event loop, hook threads and an asynchronous handler's event loop. Source: LMI's front end, v0.31.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping

from dragoman.errors import HookError, InvalidPayload, ServerError
from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    JSONLINES_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    Head,
    HttpCall,
    Reply,
    jsonline,
    sse,
)
from dragoman.server.apis.lmi.errors import MODEL_ERROR
from dragoman.server.apis.lmi.hooks.handler_io import Input, Output
from dragoman.server.apis.lmi_wire.body import FORM, form_fields
from dragoman.server.http.bodies import MULTIPART, read_parts

logger = logging.getLogger("dragoman.hooks")

OUT_OF_MEMORY = 507

# What frames the answer is the server's; a handler that sets one of these would break the connection.
_FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "trailer", "upgrade", "keep-alive"})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")

_OUT_OF_MEMORY_TEXTS = ("No available memory for the cache blocks", "CUDA error: out of memory")


def make_input(http: HttpCall) -> Input:
    """A call as a model.py sees it: header fields and query as properties; the body as `data`, or a form's parts."""
    properties = {**http.query, **http.headers}
    if http.media_type != MULTIPART:
        return Input(properties, [("data", http.body)])
    try:
        return Input(properties, [(part.name, part.content) for part in read_parts(http)])
    except InvalidPayload:  # whether it is wrong is for the operator's code to say
        return Input(properties, [("data", http.body)])


def handler_input(http: HttpCall, properties: Mapping[str, str]) -> Input:
    """LMI shows a handler a form's fields and the query as content, too. `properties` stand behind those of the call."""
    item = make_input(http)
    fields: list[tuple[str, str]] = list(http.query.items())
    if http.media_type == FORM and not http.body.lstrip().startswith(b"{"):
        fields = [*form_fields(http.body, keep_blank_values=True), *fields]
    content = [*item.content, *((name, value.encode()) for name, value in fields if not item.contains_key(name))]
    return Input({**properties, **item.properties}, content)


def reply_of(output: Output) -> Reply:
    """The whole answer: its content named `data`, else the first. Raises: HookError for a status that HTTP does not have."""
    status = _status(output)
    headers, media_type = _headers(output)
    if output.failure is not None:
        return Reply(status, failure_body(output.failure, status), JSON_MEDIA_TYPE, headers)
    body = output.body()
    if body is None and status >= 300:
        return Reply(status, _json({"code": status, "message": output.message}), JSON_MEDIA_TYPE, headers)
    return Reply(status, body or b"", media_type, headers)


def head_of(output: Output) -> Head:
    headers, media_type = _headers(output)
    return Head(media_type or output.stream_media_type, _status(output), headers)


def error_reply(error: BaseException) -> Reply:
    """LMI's answer when a handler raises: 424, or 507 where memory ran out."""
    is_out_of_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if is_out_of_memory or any(text in str(error) for text in _OUT_OF_MEMORY_TEXTS):
        return reply_of(Output(OUT_OF_MEMORY, reason(error)))
    return reply_of(Output().error(reason(error)))


def async_error_reply(error: BaseException) -> Reply:
    return Reply(MODEL_ERROR, failure_body(f"Custom handler failed: {reason(error)}", MODEL_ERROR), JSON_MEDIA_TYPE)


def reason(error: BaseException) -> str:
    """The reason of `error`, for the client; a KeyError's text alone would be a bare name."""
    named = isinstance(error, KeyError) or not str(error)
    return f"{type(error).__name__}: {error}".rstrip(": ") if named else str(error)


def failure_body(text: str, status: int) -> bytes:
    return _json({"error": text, "code": status})


def stream_error(error: ServerError, media_type: str) -> bytes:
    """The last bytes of a stream that broke off: LMI sends the bare text; streams of records get a record."""
    if media_type.startswith(SSE_MEDIA_TYPE):
        return sse(failure_body(error.message, MODEL_ERROR))
    if media_type.startswith((JSON_MEDIA_TYPE, JSONLINES_MEDIA_TYPE)):
        return jsonline(failure_body(error.message, MODEL_ERROR))
    return error.message.encode()


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _status(output: Output) -> int:
    code = output.code
    if not isinstance(code, int) or not 200 <= code <= 599:
        raise HookError(f"the handler's status must be an integer from 200 to 599, got {code!r}")
    return MODEL_ERROR if output.failure is not None and code < 300 else code


def _headers(output: Output) -> tuple[dict[str, str], str]:
    headers: dict[str, str] = {}
    media_type = ""
    for name, value in output.properties.items():
        text = _CONTROL.sub(" ", str(value)).strip()  # a line break would begin a header field of the client's making
        if name.lower() == "content-type":
            media_type = text
        elif name.lower() in _FRAMING or not _TOKEN.fullmatch(name):
            logger.warning("the handler's property %r cannot be a header field of its answer and is left out", name)
        else:
            headers[name] = text
    return headers, media_type
