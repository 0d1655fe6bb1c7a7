"""Types that the server and its client APIs share: calls, answers, encoders, and the dialects of one model.

Does: define these values and protocols; frame the objects of streams. Does not: any I/O, or know one API; operations are in
`operations`.
Imported by all of `server`. Dialects and encoders are called on the event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from dragoman.errors import ServerError
from dragoman.server.json_body import NotJson, check_fields, decode_json
from dragoman.types import GenerationEvent, GenerationRequest, GenerationResult, Limits, SamplingParams, TraceContext

T = TypeVar("T")


MAX_INLINE_BYTES = 64 * 1024
"""Of bodies that are decoded on the event loop: at most some milliseconds."""

SSE_MEDIA_TYPE = "text/event-stream"
JSONLINES_MEDIA_TYPE = "application/jsonlines"  # exact: djl's own client compares it, so no charset
NDJSON_MEDIA_TYPE = "application/x-ndjson"  # what Ollama calls JSON lines
JSON_MEDIA_TYPE = "application/json"
TEXT_MEDIA_TYPE = "text/plain; charset=utf-8"

SSE_COMMENT = b": keep-alive\n\n"  # WHATWG HTML, 9.2.7: readers drop it, and what is between sees that the line lives
SSE_DONE = b"data: [DONE]\n\n"


# --- calls and answers ------------------------------------------------------------------------------------------------


class HttpCall(msgspec.Struct, frozen=True):
    """One HTTP request, read whole. Header names are lower-case; `media_type` is the content type without parameters.

    `caller`: the name of the key that it came with, "" = none. `scheme`: http or https.
    """

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
        """The request's content type, lower-case, "" when absent."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def accept(self) -> str:
        """The Accept header, lower-case, "" when absent."""
        return self.headers.get("accept", "").lower()

    def json(self) -> Any:
        """The body's JSON value, decoded once; not to be changed. Raises: NotJson."""
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
        """Decode a large body on a thread, so that others are served meanwhile; `json` then has it, or its error."""
        if len(self.body) > MAX_INLINE_BYTES and self.media_type not in ("text/plain", "multipart/form-data"):
            with suppress(NotJson):
                await asyncio.to_thread(self.json)

    def field(self, name: str) -> Any:
        """The top-level field of a JSON object, None where there is none or the body is no such object."""
        try:
            value = self.json()
        except NotJson:
            return None
        return value.get(name) if isinstance(value, dict) else None


_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(-.*)?")
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,2048}")


def trace_of(http: HttpCall) -> TraceContext | None:
    """The trace that a call belongs to, None if it names none, or not as W3C Trace Context has it (3.2, 3.3)."""
    parent = http.headers.get("traceparent")
    found = None if parent is None else _TRACEPARENT.fullmatch(parent.strip())
    if found is None or (found[0].startswith("00-") and found[3]):
        return None
    state = http.headers.get("tracestate", "").strip()
    return TraceContext(found[1], bool(int(found[2], 16) & 1), state if _TRACESTATE.fullmatch(state) else "")


def model_of_query_or_header(http: HttpCall, server: object) -> str | None:
    """`?model_name=`, else the header `model_name`, else None."""
    return http.query.get("model_name") or http.headers.get("model_name") or None


def model_of_body(http: HttpCall, server: object) -> str | None:
    """The body's `model`, None where it is absent or the body is not an object: the dialect reports that."""
    name = http.field("model")
    return name if isinstance(name, str) else None


class Reply(msgspec.Struct, frozen=True):
    """A complete, non-streamed answer."""

    status: int
    body: bytes
    media_type: str
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


def json_reply(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Reply:
    """A JSON answer."""
    return Reply(status, msgspec.json.encode(value), JSON_MEDIA_TYPE, headers or {})


class Head(msgspec.Struct, frozen=True):
    """The head of a streamed answer."""

    media_type: str
    status: int = 200
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


def sse(payload: bytes) -> bytes:
    """One server-sent event. Exactly one space after the colon: several clients slice at offset 6."""
    return b"data: " + payload + b"\n\n"


def jsonline(payload: bytes) -> bytes:
    """One JSON line; the newline is never left out, line readers wait for it for ever."""
    return payload + b"\n"


class Chunks(Protocol):
    """The pieces of a streamed answer. `aclose` ends what makes them, also if none was taken."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StreamedReply:
    """A streamed answer that is not made of events: an operator's own code writes it.

    `chunks` raise ServerError if the answer breaks off; `stream_error` then gives the stream's last bytes. The one
    who takes this closes `chunks` on every path.
    """

    head: Head
    chunks: Chunks
    stream_error: Callable[[ServerError], bytes]


class IndexedEvent(NamedTuple):
    """An event of the call's `request_index`-th request (calls with several prompts hold several requests)."""

    request_index: int
    event: GenerationEvent


class Encoder(Protocol):
    """Turns what happened into the bytes of one answer. One instance per call; it may keep state between events."""

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        """The whole answer of a call that does not stream; `results` in the order of the call's requests."""
        ...

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        """The head of a streamed answer, called once, with everything that happened before it is sent."""
        ...

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        """The bytes for one event, b"" for none."""
        ...

    def end(self) -> bytes:
        """The bytes after the last event of all requests."""
        return b""

    def stream_error(self, error: ServerError) -> bytes | None:
        """An error after the head was sent, as the stream's last bytes; None = cut the connection without a final chunk."""
        ...

    def trailers(self) -> Sequence[tuple[str, str]]:
        """HTTP trailers after a streamed body; sent only to clients that accept them."""
        return ()


@runtime_checkable
class KeepingAlive(Protocol):
    """An encoder whose API has its own message for streams on which nothing happens."""

    def keep_alive(self) -> bytes:
        """The bytes to send on a silent stream."""
        ...


class Runner(Protocol):
    """Runs blocking work away from the event loop."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """The result of `work()`. Raises: what `work` raises, ServerError if it cannot be run."""
        ...


class Call(msgspec.Struct, frozen=True):
    """One parsed client call.

    `requests`: one per prompt, run concurrently. `ignored`: names of accepted parameters without effect, for the
    `x-dragoman-ignored` header. `hold_s`: how long a streamed head may wait for the outcome (the text service's status
    rule); 0 = the head goes out with the first event, or before it where `is_head_fixed`: it depends on none.
    `run_off_loop`: runs the encoder's `full` and `event`, which then call an operator's code; None = in place.
    `labels`: each request's name in errors, () = errors name none. `reasons`: why some of `ignored` do nothing.
    Parts of schemas that the requests pass over are added to both `ignored` and `reasons`.
    `wants_progress`: its stream tells how far the prompts are.
    """

    requests: tuple[GenerationRequest, ...]
    encoder: Encoder
    stream: bool = False
    ignored: tuple[str, ...] = ()
    hold_s: float = 0.0
    is_head_fixed: bool = True
    run_off_loop: Runner | None = None
    labels: tuple[str, ...] = ()
    reasons: Mapping[str, str] = msgspec.field(default_factory=dict)
    wants_progress: bool = False

    def __post_init__(self) -> None:
        """Add what the requests pass over; done here, so that no API can forget it."""
        passed_over: dict[str, str] = {}
        for request in self.requests:
            grammar = request.sampling.grammar
            passed_over |= request.passed_over if grammar is None else {**grammar.passed_over, **request.passed_over}
        if passed_over:
            msgspec.structs.force_setattr(self, "ignored", tuple(dict.fromkeys((*self.ignored, *passed_over))))
            msgspec.structs.force_setattr(self, "reasons", {**passed_over, **self.reasons})


class ErrorTeller(Protocol):
    """Answers calls which fail."""

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed before anything was sent, in this API's shape."""
        ...


class CallSwitches(Protocol):
    """Switches of one call."""

    @property
    def is_strict(self) -> bool:
        """True if parameters without effect are errors."""
        ...


Answerer = Callable[[CallSwitches], Awaitable[Reply | StreamedReply | None]]
"""Answers a call without generating, by the call's switches.

None = parse the call and generate. Raises: ServerError.
"""


class Opening(msgspec.Struct, frozen=True):
    """The way to read one call.

    `parse`: returns the call in neutral words; raises ServerError for anything the client did wrong. `run_off_loop`: runs
    `parse` where it calls an operator's code or takes long; None = in place. `answer`: asked before `parse`; None = not.
    """

    parse: Callable[[], Call]
    run_off_loop: Runner | None = None
    answer: Answerer | None = None


class Dialect(ErrorTeller, Protocol):
    """A translation between the calls of some operations and the neutral words, set up for one model.

    No engine, no tokenizer, no clock of its own.
    """

    def open(self, http: HttpCall) -> Opening:
        """The way to read the call. Never raises: `parse` reports what is wrong with the call."""
        ...


def runner_for(http: HttpCall) -> Runner | None:
    """The runner for parsing a call: a thread if it may have thousands of messages, else None, in place."""
    return on_thread if len(http.body) > MAX_INLINE_BYTES else None


async def on_thread(work: Callable[[], T]) -> T:
    """A `Runner` for work that only computes: others are served in between. Raises: what `work` raises."""
    return await asyncio.to_thread(work)


class TellsErrors:
    """The part of a dialect that answers failed calls. `errors`: as the API writes them."""

    errors: ErrorTeller

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        return self.errors.error_reply(error, http)


class PureDialect(TellsErrors):
    """A dialect that only translates: it has `parse`, which takes no time unless the body is large."""

    def parse(self, http: HttpCall) -> Call:
        """The call in neutral words. Raises: ServerError for anything the client did wrong."""
        raise NotImplementedError

    def open(self, http: HttpCall) -> Opening:
        """The call, to be parsed in place, or on a thread if it is large."""
        return Opening(partial(self.parse, http), runner_for(http))


Dialects = Mapping[str, Dialect]
"""The dialects of one model by name. The name begins with that of the API that made it."""


# --- models -----------------------------------------------------------------------------------------------------------


ProposerKind = Literal["draft", "lookup"]
"""The source of guessed tokens for speculative decoding: a draft model alone, or texts as well."""

Ability = Literal["chat", "tools", "thinking", "vision", "insert"]
"""Abilities of a model besides continuing a text: hold conversations, call tools and reason in them, look at pictures,
fill in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Facts about a model from its files, for lists of models. Empty or 0 = they do not say.

    `format`: of the files that hold the weights. `config`: the values of its config.json. `num_parameters`: None where they
    cannot be counted. `size_bytes`: of the weights. `modified_s`: of the newest file, seconds since the epoch. `digest`: 64
    hexadecimal digits that identify its files. `license`: its text.
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
    """All facts about a model from which APIs set up their dialects.

    `settings`: the operator's choices that concern client APIs, by the names of options. `default_sampling`: for clients
    that cannot choose it. `generation_defaults`: the model's and the operator's defaults for what clients leave out, by the
    names of `SamplingParams`, and `do_sample` if they want sampling; empty = the APIs' own defaults. `default_options`: the
    options that gave some of them, by the same names. `overriding_defaults`: the same for APIs whose documents fix defaults.
    `proposer`: the source of guessed tokens for speculative decoding, if any. `keeps_prompts`: the engine keeps them as long
    as requests ask. `has_cache_keys`: it has replicas, and a request's key chooses one. `tells_progress`: it knows how far
    prompts are. `shifts_context`: answers may go on beyond the context. `lacks`: fields of `SamplingParams` that it does not
    support. `vocab_size`, `end_token_ids` (they end a text), `max_model_len`, `dtype`: of a model that generates.
    `takes_adapters`: requests may ask for adapters, now for `adapter_names`. `operator_code`: the operator's own functions,
    for the API they are written for. `pooling`: the `pooling.PoolingService` of a model that embeds or scores texts and
    generates nothing, else None. `abilities`: besides continuing a text. `card`: facts from its files.
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
        """True if the model's reasoning can be told from its answer."""
        return "thinking" in self.abilities
