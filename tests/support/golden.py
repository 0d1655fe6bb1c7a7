"""Golden tests of dialects: a folder per case with a request, a note on its source and the exact answer.

    tests/goldens/<case>/note           where the expected answer comes from: a public document, or a page of docs/
                         request.json   see `GoldenCase`
                         response.txt   the answer of a call that does not stream, or
                         stream.txt     the answer of one that does

An answer file is the head (status and media type, then one line per header), an empty line, and the body's exact bytes.
Generations come from `scripted`, so goldens depend on no model. `pytest --update-golden` rewrites the answer files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from dragoman import errors
from dragoman.errors import ServerError
from dragoman.server.api import Call, Dialect, HttpCall, IndexedEvent, Reply
from dragoman.server.registry import GenerationService
from dragoman.server.responder import error_reply
from tests.support.scripted import scripted_events, scripted_result
from tests.support.streaming import stream_of

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"


class Failure(msgspec.Struct, forbid_unknown_fields=True):
    """A scripted failure: the error of that kind, raised when `after` events have been made."""

    kind: str
    message: str
    after: int = 0

    def error(self) -> ServerError:
        """The error to raise. Raises: LookupError if no error has that kind."""
        classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, ServerError)]
        for cls in classes:
            if cls.kind == self.kind:
                return cls(self.message)
        raise LookupError(f"failure kind {self.kind!r} is none of {errors.ALL_KINDS}")


class GoldenCase(msgspec.Struct, forbid_unknown_fields=True):
    """The content of request.json. One of `body` (sent as JSON), `form` (sent URL-encoded) and `text` (sent as is)."""

    path: str
    method: str = "POST"
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    path_params: dict[str, str] = {}
    options: dict[str, Any] = {}
    body: msgspec.Raw = msgspec.Raw()
    form: dict[str, str] | None = None
    text: str | None = None
    failure: Failure | None = None

    def http(self) -> HttpCall:
        """The call as the application would hand it to the dialect."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        if self.body != msgspec.Raw():
            headers.setdefault("content-type", "application/json")
            content = bytes(self.body)
        elif self.form is not None:
            headers.setdefault("content-type", "application/x-www-form-urlencoded")
            content = urlencode(self.form).encode()
        else:
            content = (self.text or "").encode()
        return HttpCall(self.method, self.path, content, headers, self.query, self.path_params, request_id="req-1")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client would have received. `is_cut`: the connection was closed without a final chunk."""

    status: int
    media_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    is_stream: bool = False
    is_cut: bool = False

    def to_bytes(self) -> bytes:
        """The answer file: head, empty line, body."""
        lines = [f"{self.status} {self.media_type}", *(f"{name}: {value}" for name, value in self.headers.items())]
        end = b"<connection cut>" if self.is_cut else b""
        return "\n".join(lines).encode() + b"\n\n" + self.body + end


def case_names(prefix: str) -> list[str]:
    """The names of all case folders that start with `prefix`, sorted. Raises: LookupError if there are none."""
    names = sorted(path.parent.name for path in GOLDENS.glob(f"{prefix}*/request.json"))
    if not names:
        raise LookupError(f"no golden case starts with {prefix!r} in {GOLDENS}")
    return names


def load_case(name: str) -> GoldenCase:
    """Read a case. Raises: ValueError if it does not say where its expectation comes from."""
    folder = GOLDENS / name
    if not (folder / "note").read_text(encoding="utf-8").strip():
        raise ValueError(f"golden case {name} has an empty note")
    return msgspec.json.decode((folder / "request.json").read_bytes(), type=GoldenCase)


def answer(dialect: Dialect, http: HttpCall, failure: Failure | None = None) -> Answer:
    """Take `http` through parse, a scripted generation and the encoder, as the service would."""
    try:
        call = dialect.open(http).parse()
    except ServerError as error:
        return _of_reply(error_reply(dialect, error, http), ())
    events = list(interleaved_events(call))
    if failure is not None and (failure.after == 0 or not call.stream):
        return _of_reply(error_reply(dialect, failure.error(), http), call.ignored)
    if call.stream:
        return _stream(call, events, failure)
    return _of_reply(call.encoder.full([scripted_result(request) for request in call.requests]), call.ignored)


async def answer_of_service(dialect: Dialect, http: HttpCall, service: GenerationService) -> Answer:
    """Take `http` through parse, a service and the encoder; a failure of the service comes before anything is sent."""
    try:
        call = dialect.open(http).parse()
        if not call.stream:
            results = [await service.generate(request) for request in call.requests]
            return _of_reply(call.encoder.full(results), call.ignored)
        indexed = enumerate(call.requests)
        events = [IndexedEvent(index, event) for index, one in indexed async for event in stream_of(service, one)]
        return _stream(call, events, None)
    except ServerError as error:
        return _of_reply(error_reply(dialect, error, http), ())


def interleaved_events(call: Call) -> Iterator[IndexedEvent]:
    """The scripted events of all requests of a call, step by step."""
    for step in zip_longest(*(scripted_events(request) for request in call.requests)):
        for request_index, event in enumerate(step):
            if event is not None:
                yield IndexedEvent(request_index, event)


def check_golden(name: str, actual: Answer, *, update: bool) -> None:
    """Compare an answer with its file, byte by byte; with `update` write the file instead."""
    wanted, other = ("stream.txt", "response.txt") if actual.is_stream else ("response.txt", "stream.txt")
    path = GOLDENS / name / wanted
    if update:
        path.write_bytes(actual.to_bytes())
        (GOLDENS / name / other).unlink(missing_ok=True)
    assert path.exists(), f"{path} is missing; look at the answer, then run pytest --update-golden"
    assert actual.to_bytes().decode() == path.read_bytes().decode()
    assert not (GOLDENS / name / other).exists(), f"{name}: {other} is a leftover"


def _of_reply(reply: Reply, ignored: Sequence[str]) -> Answer:
    return Answer(reply.status, reply.media_type, reply.body, {**reply.headers, **_ignored_header(ignored)})


def _stream(call: Call, events: Sequence[IndexedEvent], failure: Failure | None) -> Answer:
    head = call.encoder.head(events if call.hold_s else events[:1])
    sent = events if failure is None else events[: failure.after]
    body = b"".join(call.encoder.event(request_index, event) for request_index, event in sent)
    last = call.encoder.end() if failure is None else call.encoder.stream_error(failure.error())
    trailers = {} if failure is not None else {f"trailer {name}": value for name, value in call.encoder.trailers()}
    headers = {**head.headers, **_ignored_header(call.ignored), **trailers}
    return Answer(head.status, head.media_type, body + (last or b""), headers, is_stream=True, is_cut=last is None)


def _ignored_header(names: Sequence[str]) -> dict[str, str]:
    return {"x-dragoman-ignored": ",".join(names)} if names else {}
