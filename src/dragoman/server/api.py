"""What a dialect is: a pure translation between HTTP bytes and the neutral types.

Does: define the two protocols (`Dialect`, `Encoder`) and the values the application hands over.
Does not: any I/O. Dialects import only `types`, `errors`, `framing` and this module. Called on the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from dragoman.errors import ServerError
from dragoman.types import GenerationEvent, GenerationRequest, GenerationResult

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One HTTP request, read whole. Header names are lower-case; `media_type` is the content type without parameters."""

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    path_params: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""

    @property
    def media_type(self) -> str:
        """The request's content type, lower-case, "" when absent."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def accept(self) -> str:
        """The Accept header, lower-case, "" when absent."""
        return self.headers.get("accept", "").lower()


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete, non-streamed answer."""

    status: int
    body: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a streamed answer."""

    media_type: str
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class Chunks(Protocol):
    """The pieces of a streamed answer. `aclose` ends what makes them, also if none was taken."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StreamedReply:
    """A streamed answer that is not made of events: an operator's own handler writes it.

    `chunks` raise ServerError if the answer breaks off; `stream_error` then gives the stream's last bytes. Whoever takes
    this closes `chunks` on every path.
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
        ...

    def stream_error(self, error: ServerError) -> bytes | None:
        """An error after the head was sent, as the stream's last bytes; None = cut the connection without a final chunk."""
        ...

    def trailers(self) -> Sequence[tuple[str, str]]:
        """HTTP trailers after a streamed body; sent only to clients that accept them."""
        ...


class Runner(Protocol):
    """Runs blocking work away from the event loop."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """The result of `work()`. Raises: what `work` raises, ServerError if it cannot be run."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One parsed client call.

    `requests`: one per prompt, run concurrently. `ignored`: names of accepted parameters without effect, for the
    `x-dragoman-ignored` header. `hold_s`: how long a streamed head may wait for the outcome (the text service's status
    rule); 0 = the head goes out with the first event. `run_off_loop`: how to call the encoder's `full` and `event`, which
    then run an operator's code; None = in place. `labels`: what errors call each request, () = they do not tell them apart.
    """

    requests: tuple[GenerationRequest, ...]
    encoder: Encoder
    stream: bool = False
    ignored: tuple[str, ...] = ()
    hold_s: float = 0.0
    run_off_loop: Runner | None = None
    labels: tuple[str, ...] = ()


class ErrorTeller(Protocol):
    """The part of a client API that answers calls which fail."""

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed before anything was sent, in this API's shape."""
        ...


class Dialect(ErrorTeller, Protocol):
    """One client API. Pure: no awaiting, no engine, no tokenizer, no clock of its own."""

    def parse(self, http: HttpCall) -> Call:
        """The call in neutral words. Raises ServerError for anything the client did wrong."""
        ...


def runner_of(dialect: Dialect) -> Runner | None:
    """How to call `dialect.parse`: through its attribute `run_off_loop` if it has one, None = in place.

    Only dialects that run an operator's code have one; the others stay pure and are not asked to know of it.
    """
    runner: Runner | None = getattr(dialect, "run_off_loop", None)
    return runner


def ignores_unknown_model(dialect: Dialect, http: HttpCall) -> bool:
    """Whether a name that nobody serves means the only model here, by the dialect's method of that name; else it is refused.

    Only dialects with LMI's shape among theirs have one; the others are not asked to know of it.
    """
    ask: Callable[[HttpCall], bool] | None = getattr(dialect, "ignores_unknown_model", None)
    return ask is not None and ask(http)


class Answerer(Protocol):
    """Answers calls without generating."""

    async def __call__(self, http: HttpCall) -> Reply | StreamedReply | None:
        """The answer; None = the call is to be parsed and generated for, as ever. Raises: ServerError."""
        ...


def answerer_of(dialect: Dialect) -> Answerer | None:
    """Who answers the dialect's calls in place of generation: its attribute `answer` if it has one, else None.

    Only dialects with an operator's own handler have one; the others are not asked to know of it.
    """
    answer: Answerer | None = getattr(dialect, "answer", None)
    return answer
