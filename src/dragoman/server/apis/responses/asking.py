"""The server and its store, handed from the operation to the dialect, which is set up for a model. On the event loop."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass, field

from dragoman.server.apis.responses.store import ResponseStore, Running
from dragoman.server.operations import Server
from dragoman.types import ChatPrompt


@dataclass(slots=True)
class Asking:
    """One call. `paths`: for each message, the item that it came from. `begun`: set when the response begins."""

    store: ResponseStore
    server: Server | None = None
    paths: list[str] = field(default_factory=list)
    fitted: ChatPrompt | None = None
    begun: asyncio.Future[Running] | None = None
    is_streamed: bool = False

    def begin(self, running: Running, *, is_streamed: bool) -> None:
        self.store.begin(running)
        self.is_streamed = is_streamed
        if self.begun is not None:
            self.begun.set_result(running)


_ASKING: ContextVar[Asking | None] = ContextVar("dragoman_responses_asking", default=None)


def current_asking() -> Asking:
    """The context of the call; outside of calls, one without a server and with an empty store."""
    return _ASKING.get() or Asking(ResponseStore())


def set_asking(asking: Asking) -> None:
    _ASKING.set(asking)
