"""A client API as a value: its operations, and a function that sets it up for a model. On the event loop.

A new API is a module with an `Api` and its name in `apis.NAMES`; routes, descriptions and tests of errors follow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, TypeVar, cast, runtime_checkable

from dragoman.errors import UnsupportedFeature
from dragoman.server.api import Dialect, Dialects, ErrorTeller, HttpCall, ModelProfile
from dragoman.server.batches.desk import Desk
from dragoman.server.descriptions import Answers, Content
from dragoman.server.hosting import NO_OWNER, ModelOwner
from dragoman.server.http.exchange import Exchange
from dragoman.server.http.fields import Switches
from dragoman.server.observation.watch import Watch
from dragoman.server.registry import ModelRegistry, ServedModel
from dragoman.server.security.callers import Scope
from dragoman.server.security.gate import Gate

T = TypeVar("T")


@runtime_checkable
class Closable(Protocol):
    async def aclose(self) -> None: ...


class Server:
    """The parts of the process that operations may use. `switches`: for calls whose header fields do not set them.

    None: `hosting`, if the served models never change; `pulling`, if clients may not download models; `desk`, without a
    directory for files and batches.
    """

    def __init__(
        self,
        apis: tuple[Api, ...],
        models: ModelRegistry,
        gate: Gate,
        owner: ModelOwner = NO_OWNER,
        watch: Watch | None = None,
        switches: Switches | None = None,
    ) -> None:
        self.apis = apis
        self.operations = {
            (operation.method, operation.path): (api, operation) for api in apis for operation in api.operations
        }
        self.models = models
        self.gate = gate
        self.hosting, self.pulling = owner.hosting, owner.pulling
        self.watch = watch or Watch()
        self.switches = switches or Switches()
        self.desk: Desk | None = None
        self._shared: dict[Callable[[Server], Any], Any] = {}

    def shared(self, kind: Callable[[Server], T]) -> T:
        """The server's only instance of that class, made at the first call, and closed at the end if `Closable`."""
        if kind not in self._shared:
            self._shared[kind] = kind(self)
        return cast(T, self._shared[kind])

    async def aclose(self) -> None:
        if self.desk is not None:
            await self.desk.aclose()
        for kept in self._shared.values():
            if isinstance(kept, Closable):
                await kept.aclose()
        if self.pulling is not None:
            await self.pulling.aclose()
        await self.watch.aclose()


async def looked_at(server: Server) -> None:
    """Make the registry know the present content of the models directory."""
    if server.hosting is not None:
        await server.hosting.look()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path, and its description. In `path`, `{name}` stands for any text, slashes included.

    `parameters`: names of components. `body`: by media type; `is_body_optional`: parameters can replace it. `example`:
    a JSON body that works. `needs_hosting`: exists only where models are loaded at run time.
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
"""Runs before the common path, which it may continue on another exchange; True = it has answered the call."""
Borrow = Callable[[HttpCall, Server], AbstractAsyncContextManager[ServedModel] | None]
"""Loads the call's model if needed, and keeps it until the answer; None = the call means a served model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOperation(Operation):
    """An operation that generates. `dialect`: a name, or a function of the call. `model` returns None for the default.

    `borrow` is called first, if calls may name unloaded models. `wrap` adapts the dialect. `also_pools`: models that
    embed or score answer it too.
    """

    scope: Scope = Scope.INFERENCE
    dialect: str | PickName
    model: PickModel
    borrow: Borrow | None = None
    wrap: Callable[[Dialect], Dialect] | None = None
    before: Before | None = None
    also_pools: bool = False

    def is_of(self, *, is_pooling: bool) -> bool:
        return self.also_pools or not is_pooling


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingOperation(GenerateOperation):
    """An operation for models that embed or score texts; other models refuse it."""

    def is_of(self, *, is_pooling: bool) -> bool:
        return is_pooling


AnswerCall = Callable[[HttpCall, Server], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOperation(Operation):
    """An operation that does not generate. `answer` returns a reply, or a value for JSON. Raises: ServerError."""

    answer: AnswerCall


def not_offered(message: str, **more: Any) -> AnswerOperation:
    """An operation that refuses each call with `message`. `more`: its other fields."""

    async def refuse(http: HttpCall, server: Server) -> NoReturn:
        raise UnsupportedFeature(message)

    return AnswerOperation(scope=Scope.INFERENCE, answer=refuse, **more)


Components = Mapping[str, Any]
Teller = Callable[[Dialects], ErrorTeller]
"""Returns the encoder of an API's errors, from the dialects of the default model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One client API. `title`: in the banner. `set_up`: its dialects for a model, by name.

    `owns`: path prefixes, whole segments, below which `teller` encodes errors outside operations. The longest prefix of
    all APIs counts; "" = all else, "/" = the root. `schemas`, `parameters`, `headers`: components of descriptions.
    `needs_engine` False = works where only an operator's code answers. `request_id_headers`: alternatives to
    `x-request-id`. `folded_headers`: fields that hold others, as `name=value;name=value`. `joint`: operations that
    replace another API's with the same method and path, and serve both. `joint_tellers`: wrap the encoder of another
    API's errors, by a path of this API, for clients of both.
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
