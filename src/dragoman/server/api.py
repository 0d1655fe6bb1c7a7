"""Types that the server and its client APIs share. Dialects and encoders are called on the event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from dragoman.errors import ServerError
from dragoman.server.json_body import NotJson, check_fields, decode_json
from dragoman.server.timings import ShownTimings, ToldProgress
from dragoman.types import GenerationEvent, GenerationRequest, GenerationResult, Limits, SamplingParams, TraceContext

T = TypeVar("T")


MAX_INLINE_BYTES = 64 * 1024
"""Larger bodies are decoded off the event loop; these take some milliseconds at most."""

SSE_MEDIA_TYPE = "text/event-stream"
JSONLINES_MEDIA_TYPE = "application/jsonlines"  # exact: djl's own client compares it, so no charset
NDJSON_MEDIA_TYPE = "application/x-ndjson"  # what Ollama calls JSON lines
JSON_MEDIA_TYPE = "application/json"
TEXT_MEDIA_TYPE = "text/plain; charset=utf-8"

SSE_COMMENT = b": keep-alive\n\n"  # WHATWG HTML, 9.2.7: readers drop it, and what is between sees that the line lives
SSE_DONE = b"data: [DONE]\n\n"


# --- calls and answers ------------------------------------------------------------------------------------------------


class HttpCall(msgspec.Struct, frozen=True):
    """One HTTP request. Header names are lower-case. `caller`: the name of its key, "" = none."""

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    query: Mapping[str, str] = msgspec.field(default_factory=dict)
    path_params: Mapping[str, str] = msgspec.field(default_factory=dict)
    request_id: str = ""
    caller: str = ""
    scheme: str = "http"
    _decoded: list[Any] = msgspec.field(default_factory=list)  # of `json`, at the first call

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def accept(self) -> str:
        return self.headers.get("accept", "").lower()

    def json(self) -> Any:
        """The body's JSON value, decoded once; do not change it. Raises: NotJson."""
        if not self._decoded:
            try:
                decoded = decode_json(self.body)
                if isinstance(decoded, dict):
                    check_fields(decoded)
                self._decoded.append(decoded)
            except NotJson as error:
                self._decoded.append(error)
        value = self._decoded[0]
        if isinstance(value, NotJson):
            raise value
        return value

    async def decoded(self) -> None:
        """Decode a large body on a thread, for `json` to return."""
        if len(self.body) > MAX_INLINE_BYTES and self.media_type not in ("text/plain", "multipart/form-data"):
            with suppress(NotJson):
                await asyncio.to_thread(self.json)

    def with_json(self, body: bytes) -> HttpCall:
        """The call with another body, which is JSON."""
        headers = {**self.headers, "content-type": JSON_MEDIA_TYPE}
        return msgspec.structs.replace(self, body=body, headers=headers, _decoded=[])

    def field(self, name: str) -> Any:
        """None if the field is absent or the body is not an object."""
        try:
            value = self.json()
        except NotJson:
            return None
        return value.get(name) if isinstance(value, dict) else None


_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(-.*)?")
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,2048}")


def trace_of(http: HttpCall) -> TraceContext | None:
    """None if the call has no trace that follows W3C Trace Context (3.2, 3.3)."""
    parent = http.headers.get("traceparent")
    found = None if parent is None else _TRACEPARENT.fullmatch(parent.strip())
    if found is None or (found[0].startswith("00-") and found[3]):
        return None
    state = http.headers.get("tracestate", "").strip()
    return TraceContext(found[1], bool(int(found[2], 16) & 1), state if _TRACESTATE.fullmatch(state) else "")


def model_of_query_or_header(http: HttpCall, server: object) -> str | None:
    return http.query.get("model_name") or http.headers.get("model_name") or None


def model_of_body(http: HttpCall, server: object) -> str | None:
    """None if it is absent or wrong, which the dialect reports."""
    name = http.field("model")
    return name if isinstance(name, str) else None


class Reply(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    media_type: str
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


def json_reply(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, msgspec.json.encode(value), JSON_MEDIA_TYPE, headers or {})


class Head(msgspec.Struct, frozen=True):
    media_type: str
    status: int = 200
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


def sse(payload: bytes) -> bytes:
    """One server-sent event. Exactly one space after the colon: several clients slice at offset 6."""
    return b"data: " + payload + b"\n\n"


def jsonline(payload: bytes) -> bytes:
    """One JSON line. Always ends with the newline, which line readers wait for."""
    return payload + b"\n"


class Chunks(Protocol):
    """The pieces of a streamed answer. `aclose` ends their source, also before the first piece."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StreamedReply:
    """A streamed answer. The receiver closes `chunks` on every path.

    `chunks` raise ServerError if the answer breaks off; `stream_error` then gives the stream's last bytes.
    """

    head: Head
    chunks: Chunks
    stream_error: Callable[[ServerError], bytes]


class IndexedEvent(NamedTuple):
    request_index: int
    event: GenerationEvent


class Encoder(Protocol):
    """Encodes one answer. One instance for each call; may keep state between events."""

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        """The answer of a call that does not stream; `results` in the order of its requests."""
        ...

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        """The head of a streamed answer; `events` are those before it is sent. Called once."""
        ...

    def event(self, request_index: int, event: GenerationEvent) -> bytes: ...

    def end(self) -> bytes:
        return b""

    def keep_alive(self, head: Head) -> bytes:
        """The bytes for a silent stream; b"" where every byte would be part of the answer."""
        return SSE_COMMENT if head.media_type == SSE_MEDIA_TYPE else b""

    def show_timings(self, timings: ShownTimings) -> bool:
        """Show them in the answer; False if it has no room."""
        return False

    def progress(self, progress: ToldProgress) -> bytes:
        """The progress of the prompts, before a stream's first event; b"" if it has no room for that."""
        return b""

    def stream_error(self, error: ServerError) -> bytes | None:
        """The stream's last bytes for an error; None = cut the connection without a final chunk."""
        ...

    def trailers(self) -> Sequence[tuple[str, str]]:
        return ()


class Runner(Protocol):
    async def __call__(self, work: Callable[[], T]) -> T:
        """Raises: as `work`, ServerError if it cannot be run."""
        ...


class Call(msgspec.Struct, frozen=True):
    """One client call. `requests`: one for each prompt. `idle`: accepted parameters without effect, and why, if known.

    `hold_s`: how long a streamed head may wait for the outcome; 0 = until the first event, or no wait if
    `is_head_fixed`. `run_off_loop`: runs the encoder's `full` and `event` if they call an operator's code; None = in
    place. `labels`: names of the requests in errors. `wants_progress`: its stream reports how far the prompts are.
    """

    requests: tuple[GenerationRequest, ...]
    encoder: Encoder
    stream: bool = False
    idle: Mapping[str, str] = msgspec.field(default_factory=dict)
    hold_s: float = 0.0
    is_head_fixed: bool = True
    run_off_loop: Runner | None = None
    labels: tuple[str, ...] = ()
    wants_progress: bool = False

    def __post_init__(self) -> None:
        """Add unenforced parts of schemas to `idle` here, so that no API can forget it."""
        passed_over: dict[str, str] = {}
        for request in self.requests:
            grammar = request.sampling.grammar
            passed_over |= request.passed_over if grammar is None else {**grammar.passed_over, **request.passed_over}
        if passed_over:
            msgspec.structs.force_setattr(self, "idle", {**self.idle, **passed_over})

    @property
    def ignored(self) -> tuple[str, ...]:
        return tuple(self.idle)


class ErrorTeller(Protocol):
    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed before anything was sent."""
        ...


class CallSwitches(Protocol):
    """Switches of one call. `is_strict`: parameters without effect are errors."""

    @property
    def is_strict(self) -> bool: ...


Answerer = Callable[[CallSwitches], Awaitable[Reply | StreamedReply | None]]
"""Answers a call without generating; None = generate. Raises: ServerError."""


class Opening(msgspec.Struct, frozen=True):
    """`answer` is called before `parse`, which raises ServerError for a client's mistakes.

    `run_off_loop` runs `parse` if it calls an operator's code or takes long; None = in place.
    """

    parse: Callable[[], Call]
    run_off_loop: Runner | None = None
    answer: Answerer | None = None


class Dialect(ErrorTeller, Protocol):
    """Translates calls of some operations, for one model. Has no engine, tokenizer or clock."""

    def open(self, http: HttpCall) -> Opening:
        """Never raises."""
        ...


def runner_for(http: HttpCall) -> Runner | None:
    return on_thread if len(http.body) > MAX_INLINE_BYTES else None


async def on_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


class TellsErrors:
    errors: ErrorTeller

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        return self.errors.error_reply(error, http)


class PureDialect(TellsErrors):
    def parse(self, http: HttpCall) -> Call:
        """Raises: ServerError for a client's mistakes."""
        raise NotImplementedError

    def open(self, http: HttpCall) -> Opening:
        return Opening(partial(self.parse, http), runner_for(http))


Dialects = Mapping[str, Dialect]
"""The dialects of one model by name, which begins with the name of their API."""


# --- models -----------------------------------------------------------------------------------------------------------


ProposerKind = Literal["draft", "lookup"]
Ability = Literal["chat", "tools", "thinking", "vision", "insert"]
"""Abilities besides continuing a text; `insert`: fills in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Facts about a model from its files; empty, 0 or None = unknown. `size_bytes`: of the weights.

    `modified_s`: of the newest file, since the epoch. `digest`: 64 hexadecimal digits that identify the files.
    """

    format: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    num_parameters: int | None = None
    size_bytes: int = 0
    modified_s: float = 0.0
    digest: str = "0" * 64
    license: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """`settings`: the operator's options for client APIs. `generation_defaults`: values for absent parameters.

    `default_options`: the options that set them; `overriding_defaults`: for APIs whose documents fix defaults.
    `default_sampling`: for clients that cannot choose. `lacks`: unsupported fields of `SamplingParams`. `pooling`: the
    `pooling.PoolingService` of a model that embeds or scores texts, else None.
    """

    name: str = "model"
    aliases: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    settings: Mapping[str, Any] = field(default_factory=dict)
    default_sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0))
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)
    overriding_defaults: Mapping[str, Any] = field(default_factory=dict)
    default_options: Mapping[str, str] = field(default_factory=dict)
    vocab_size: int = 0
    end_token_ids: frozenset[int] = frozenset()
    lacks: frozenset[str] = frozenset()
    max_model_len: int = 0
    dtype: str = ""
    proposer: ProposerKind | None = None
    keeps_prompts: bool = False
    has_cache_keys: bool = False
    tells_progress: bool = False
    shifts_context: bool = False
    system_fingerprint: str = "fp_dragoman"
    operator_code: object = None
    takes_adapters: bool = False
    adapter_names: Callable[[], Collection[str]] = tuple
    pooling: Any = None
    abilities: frozenset[Ability] = frozenset()
    card: ModelCard = field(default_factory=ModelCard)

    @property
    def thinks(self) -> bool:
        return "thinking" in self.abilities
