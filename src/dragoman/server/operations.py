"""The parts of a client API: its operations as data, and a function that sets it up for a model.

Does: define `Api`, the two kinds of `Operation`, and the `Server` that operations are handed. Does not: run anything
(`endpoints` does) or know one API. The APIs in `server.apis` are values of these types; used on the event loop.

A new API is a module with an `Api` and its name in `apis.NAMES`. From that value follow the routes, with wrong methods
and unknown paths, `/openapi.json`, `/docs`, the list at `/`, the start banner and the tests of errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, runtime_checkable

from dragoman.errors import UnsupportedFeature
from dragoman.server.api import Dialect, Dialects, ErrorTeller, HttpCall, ModelProfile
from dragoman.server.describe.answers import Answers, Content
from dragoman.server.hosting import ModelHosting, ModelPulling
from dragoman.server.http.exchange import Bodies, Exchange
from dragoman.server.http.switches import Switches
from dragoman.server.observation.watch import Watch
from dragoman.server.registry import ModelRegistry, ServedModel
from dragoman.server.security.scopes import Scope

if TYPE_CHECKING:  # most servers have none
    from dragoman.server.batches.desk import Desk

T = TypeVar("T")


@runtime_checkable
class Closable(Protocol):
    """An object to close at the end of the process."""

    async def aclose(self) -> None: ...


class Server(Protocol):
    """The parts of the process that operations may use."""

    @property
    def models(self) -> ModelRegistry:
        """The served models, and the dialects that answer where there is no model."""
        ...

    @property
    def hosting(self) -> ModelHosting | None:
        """The loader and unloader of models; None if the served models never change."""
        ...

    @property
    def pulling(self) -> ModelPulling | None:
        """The downloader of models from the hub; None if clients may not ask for that."""
        ...

    @property
    def desk(self) -> Desk | None:
        """The taker of files and batches; None if there is no place to keep them."""
        ...

    @property
    def apis(self) -> tuple[Api, ...]:
        """Every API that is served."""
        ...

    def needs_key(self, scope: Scope) -> bool:
        """True if calls of that scope have to carry an API key."""
        ...

    @property
    def watch(self) -> Watch:
        """The observer of the calls that generate."""
        ...

    @property
    def max_request_size_bytes(self) -> int:
        """The largest body that is read."""
        ...

    @property
    def bodies(self) -> Bodies:
        """The bodies that are held now."""
        ...

    @property
    def switches(self) -> Switches:
        """The switches for calls whose header fields do not set them."""
        ...

    def shared(self, kind: Callable[[Server], T]) -> T:
        """The server's only instance of that class, made at the first call, and closed at the end if it is `Closable`."""
        ...


async def looked_at(server: Server) -> None:
    """Return once the registry knows what the models directory holds now."""
    if server.hosting is not None:
        await server.hosting.look()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path, and its description.

    In `path`, each `{name}` stands for any text, slashes included. `tag` groups descriptions. `answers` by status.
    `parameters`: names of parameter components. `body` by media type; `is_body_optional` where parameters can replace
    it. `example`: a JSON body that is answered. `scope`: a key needs it. `needs_hosting`: the operation exists only
    where models are loaded and unloaded at run time.
    """

    method: str = "POST"
    path: str
    tag: str
    summary: str
    answers: Answers
    scope: Scope
    description: str = ""
    parameters: tuple[str, ...] = ()
    body: Content = field(default_factory=dict)
    is_body_optional: bool = False
    example: Any = None
    needs_hosting: bool = False

    def is_of(self, *, is_pooling: bool) -> bool:
        """True if the operation is for models that embed or score texts (`is_pooling`), or for those that generate."""
        return True


PickName = Callable[[HttpCall], str]
PickModel = Callable[[HttpCall, Server], str | None]
Proceed = Callable[[Exchange], Awaitable[None]]
Before = Callable[[Exchange, HttpCall, Server, Proceed], Awaitable[bool]]
"""Called before the common path of a call, which it may run on another exchange; True = it has answered the call."""
Borrow = Callable[[HttpCall, Server], AbstractAsyncContextManager[ServedModel] | None]
"""The model of a call, loaded if needed, and kept until the call is answered; None = the call means a served one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOperation(Operation):
    """An operation that generates: it names the dialect and the model of a call.

    `dialect`: the name of one of the model's dialects, or a function of the call that returns it. `model`: the name that the
    call means, None = the default model. `borrow` is called first, where calls may name a model that is not loaded yet.
    `wrap` puts the operation's own shape around the dialect. `before` is called for calls with one of the header fields
    `before_fields`, or for all calls where that is empty. `also_pools`: models that embed or score texts answer it too.
    """

    scope: Scope = Scope.INFERENCE
    dialect: str | PickName
    model: PickModel
    borrow: Borrow | None = None
    wrap: Callable[[Dialect], Dialect] | None = None
    before: Before | None = None
    before_fields: frozenset[str] = frozenset()
    also_pools: bool = False

    def is_of(self, *, is_pooling: bool) -> bool:
        """See `Operation`."""
        return self.also_pools or not is_pooling

    def is_asked_before(self, http: HttpCall) -> bool:
        """True if `before` concerns the call."""
        return not self.before_fields or not self.before_fields.isdisjoint(http.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingOperation(GenerateOperation):
    """An operation for models that embed or score texts, handled like one that generates; other models refuse it."""

    def is_of(self, *, is_pooling: bool) -> bool:
        """See `Operation`."""
        return is_pooling


AnswerCall = Callable[[HttpCall, Server], Awaitable[Any]]
"""The answer to a call: a `Reply`, a `StreamedReply`, or a value to send as JSON with status 200. Raises: ServerError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOperation(Operation):
    """An operation that generates nothing. `answer` is cancelled when the client leaves."""

    answer: AnswerCall


def not_offered(message: str, **more: Any) -> AnswerOperation:
    """An operation that refuses every call with `message`. `more`: its other fields."""

    async def refuse(http: HttpCall, server: Server) -> NoReturn:
        raise UnsupportedFeature(message)

    return AnswerOperation(scope=Scope.INFERENCE, answer=refuse, **more)


Components = Mapping[str, Any]
Teller = Callable[[Dialects], ErrorTeller]
"""Returns the encoder of an API's errors, given the dialects of the default model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One client API.

    `title`: its name in the banner. `owns`: path prefixes, whole segments, below which its `teller` encodes errors that
    come before or instead of an operation. The longest of all APIs' prefixes counts; "" is everything else, "/" the root.
    `set_up`: returns its dialects for a model, by name. `teller`: returns the encoder of errors, given the default
    model's dialects.
    `schemas`, `parameters`, `headers`: components that its descriptions refer to, for the default model's profile.
    `needs_engine` False = its operations work where only an operator's code answers. `request_id_headers`: header fields
    that name a request where clients send no `x-request-id`. `folded_headers`: fields that hold other fields,
    as `name=value;name=value`. Both count on all paths. `joint`: operations of another API that this one's document
    describes as well. Each takes the place of the other's with the same method and path, and serves both. `joint_tellers`:
    wrappers for the encoder of another API's errors, by a path that this one owns, for clients of both.
    """

    name: str
    title: str
    operations: tuple[Operation, ...] = ()
    owns: tuple[str, ...] = ()
    set_up: Callable[[ModelProfile], Dialects] = lambda profile: {}
    teller: Teller | None = None
    schemas: Callable[[ModelProfile], Components] = lambda profile: {}
    parameters: Components = field(default_factory=dict)
    headers: Components = field(default_factory=dict)
    description: Callable[[ModelProfile], str] = lambda profile: ""
    needs_engine: bool = True
    request_id_headers: tuple[str, ...] = ()
    folded_headers: tuple[str, ...] = ()
    joint: tuple[Operation, ...] = ()
    joint_tellers: Mapping[str, Callable[[ErrorTeller], ErrorTeller]] = field(default_factory=dict)
