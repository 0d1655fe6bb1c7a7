"""What a client API consists of: its operations as data, and how it sets itself up for a model.

Does: define `Api`, the two kinds of `Operation`, and the `Server` that operations are handed. Does not: run anything
(`endpoints` does) or know one API. The APIs in `server.apis` are values of these types; used on the event loop.

A new API is a module with an `Api` and its name in `apis.NAMES`: routes, wrong methods and unknown paths below its prefix,
`/openapi.json`, `/docs`, the list at `/`, the start banner and the tests of errors follow from what stands here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from dragoman.server.api import Dialect, Dialects, ErrorTeller, HttpCall, ModelProfile
from dragoman.server.describe.answers import Answers, Content
from dragoman.server.hosting import ModelHosting, ModelPulling
from dragoman.server.http.bodies import Bodies
from dragoman.server.http.exchange import Exchange
from dragoman.server.http.switches import Switches
from dragoman.server.observation.watch import Watch
from dragoman.server.registry import ModelRegistry, ServedModel
from dragoman.server.security.scopes import Scope

if TYPE_CHECKING:  # most servers have none
    from dragoman.server.batches.desk import Desk

T = TypeVar("T")


@runtime_checkable
class Closable(Protocol):
    """What has to be ended with the process."""

    async def aclose(self) -> None: ...


class Server(Protocol):
    """What operations may use of the process that they are part of."""

    @property
    def models(self) -> ModelRegistry:
        """The served models, and the dialects that answer where there is no model."""
        ...

    @property
    def hosting(self) -> ModelHosting | None:
        """Who loads and unloads models; None if they do not come and go."""
        ...

    @property
    def pulling(self) -> ModelPulling | None:
        """Who brings models of the hub to this machine; None if clients may not ask for that."""
        ...

    @property
    def desk(self) -> Desk | None:
        """Who takes files and batches; None if there is no place to keep them."""
        ...

    @property
    def apis(self) -> tuple[Api, ...]:
        """Every API that is served."""
        ...

    def needs_key(self, scope: Scope) -> bool:
        """Whether calls of that scope have to carry an API key."""
        ...

    @property
    def watch(self) -> Watch:
        """What is known of the calls that generate."""
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
        """What holds for calls whose header fields say nothing of it."""
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
    `parameters`: names of parameter components. `body` by media type, `is_body_optional` where parameters can say the
    same. `example`: a JSON body that is answered. `scope`: which keys open it. `needs_hosting`: there is no such
    operation where models do not come and go.
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
        """Whether models that embed or score texts answer it (`is_pooling`), or those that generate."""
        return True


PickName = Callable[[HttpCall], str]
PickModel = Callable[[HttpCall, Server], str | None]
Proceed = Callable[[Exchange], Awaitable[None]]
Before = Callable[[Exchange, HttpCall, Server, Proceed], Awaitable[bool]]
"""Asked before the common path of a call, which it may take on another exchange; True = it has answered the call."""
Borrow = Callable[[HttpCall, Server], AbstractAsyncContextManager[ServedModel] | None]
"""The model of a call, loaded if need be, and kept until the call is answered; None = the call means a served one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOperation(Operation):
    """An operation that generates: whose dialect translates the call, and which model it means.

    `dialect`: the name of one of the model's dialects, or how the call chooses it. `model`: the name that the call means,
    None = the default model. `borrow` is asked first, where calls may name a model that is not loaded yet. `wrap` puts the
    operation's own shape around the dialect. `before` is asked of calls with one of the header fields `before_fields`, or of
    all calls where that is empty. `also_pools`: models that embed or score texts answer it too.
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
        """Whether `before` concerns the call."""
        return not self.before_fields or not self.before_fields.isdisjoint(http.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingOperation(GenerateOperation):
    """An operation that is handled as those that generate, for models that embed or score texts; others refuse it."""

    def is_of(self, *, is_pooling: bool) -> bool:
        """See `Operation`."""
        return is_pooling


AnswerCall = Callable[[HttpCall, Server], Awaitable[Any]]
"""The answer to a call: a `Reply`, a `StreamedReply`, or a value to send as JSON with status 200. Raises: ServerError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOperation(Operation):
    """An operation that generates nothing. `answer` is given up when the client leaves meanwhile."""

    answer: AnswerCall


Components = Mapping[str, Any]
Teller = Callable[[Dialects], ErrorTeller]
"""Who tells an API's errors, given the dialects of the default model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One client API.

    `title`: what the banner calls it. `owns`: path prefixes, whole segments, below which its `teller` tells errors that
    come before or instead of an operation; the longest of all APIs' counts, "" is everything else, "/" the root alone.
    `set_up`: the dialects that it has for a model, by name. `teller`: who tells errors, given those of the default model.
    `schemas`, `parameters`, `headers`: components that its descriptions refer to, for the default model's profile.
    `needs_engine` False = its operations work where only an operator's code answers. `request_id_headers`: header fields by
    which its clients name a request where they send no `x-request-id`. `folded_headers`: those in which they send others,
    as `name=value;name=value`. Both count on all paths. `joint`: operations of another API that this one's document
    describes as well: each takes the place of the other's with the same method and path, and serves both. `joint_tellers`:
    what to put around the teller of another API, by a path that this one owns, as clients of both call it.
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
