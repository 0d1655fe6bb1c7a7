"""The context of a call besides its bytes: the server and its store of responses.

Does: hand both from the operation to the dialect, which is set up for a model and knows no server. Does not: store.
On the event loop; one per call.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass, field

from dragoman.server.apis.responses.store import ResponseStore, Running
from dragoman.server.operations import Server
from dragoman.types import ChatPrompt


@dataclass(slots=True)
class Asking:
    """One call.

    `paths`: for each message of its conversation, the name of the item that it came from, for errors. `fitted`: the
    conversation after it was made to fit. `begun`: set when the response begins, if a caller waits for that.
    `is_streamed`: as a stream of events.
    """

    store: ResponseStore
    server: Server | None = None
    paths: list[str] = field(default_factory=list)
    fitted: ChatPrompt | None = None
    begun: asyncio.Future[Running] | None = None
    is_streamed: bool = False

    def begin(self, running: Running, *, is_streamed: bool) -> None:
        """Record that the response is running."""
        self.store.begin(running)
        self.is_streamed = is_streamed
        if self.begun is not None:
            self.begun.set_result(running)


_ASKING: ContextVar[Asking | None] = ContextVar("dragoman_responses_asking", default=None)


def current_asking() -> Asking:
    """The context of the call that is being answered; outside of calls, one without a server and with an empty store."""
    return _ASKING.get() or Asking(ResponseStore())


def set_asking(asking: Asking) -> None:
    """Make `asking` the context of this call and of the tasks that begin in it."""
    _ASKING.set(asking)
