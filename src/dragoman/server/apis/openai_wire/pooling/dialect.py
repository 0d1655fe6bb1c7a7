"""Calls about texts for which nothing is generated: the common way from a body to an answer. On the event loop."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from dragoman.server.api import CallSwitches, ErrorTeller, HttpCall, ModelProfile, Reply, json_reply
from dragoman.server.apis.openai_wire.fields import decode_object, read_struct, unknown_names
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.pooling import AnsweringDialect
from dragoman.server.responder import note_ignored
from dragoman.types import Limits

BodyT = TypeVar("BodyT", bound=msgspec.Struct)
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class TextsCall(Generic[BodyT]):
    """One call. `raw`: its body as sent. `words`: how it is read. `clock`: seconds since the epoch."""

    profile: ModelProfile
    request_id: str
    raw: Mapping[str, Any]
    body: BodyT
    words: Profile
    clock: Clock

    @property
    def limits(self) -> Limits:
        return self.profile.limits


@dataclass(frozen=True, slots=True)
class TextsOperation(Generic[BodyT]):
    """Differences between operations. `answer`: returns what is sent as JSON. `idle`: names without effect."""

    kind: type[BodyT]
    answer: Callable[[TextsCall[BodyT]], Awaitable[Any]]
    words: Profile
    errors: ErrorTeller | None = None
    idle: Callable[[TextsCall[BodyT]], Iterable[str]] = lambda call: unknown_names(call.raw, type(call.body))


class TextsDialect(AnsweringDialect, Generic[BodyT]):
    def __init__(self, profile: ModelProfile, operation: TextsOperation[BodyT], clock: Clock = time.time) -> None:
        super().__init__(profile)
        self._operation = operation
        self._clock = clock
        self.errors = operation.errors or operation.words.errors

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        operation = self._operation
        raw = decode_object(http, operation.words)
        body = read_struct(raw, operation.kind, operation.words)
        call = TextsCall(self._profile, http.request_id, raw, body, operation.words, self._clock)
        headers = note_ignored(switches, [*operation.idle(call)])
        return json_reply(200, await operation.answer(call), headers)
