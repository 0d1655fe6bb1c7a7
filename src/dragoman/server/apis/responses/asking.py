"""What a call of this API has at hand beside its bytes: the server's store of responses, and the server.

Does: hand it from the operation to the dialect, which is set up for a model and knows no server; keep, for errors, which
message of the conversation came from which item. Does not: store. On the event loop; one per call.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from dragoman.server.api import HttpCall
from dragoman.server.apis.responses.store import ResponseStore
from dragoman.server.http.exchange import Exchange
from dragoman.server.operations import Proceed, Server


@dataclass(slots=True)
class Asking:
    """One call. `paths`: for each message of its conversation, the name of the item that it came from."""

    store: ResponseStore
    server: Server | None = None
    paths: list[str] = field(default_factory=list)


_ASKING: ContextVar[Asking | None] = ContextVar("dragoman_responses_asking", default=None)


def current_asking() -> Asking | None:
    """That of the call that is being answered; None outside of calls, as in a test of the dialect."""
    return _ASKING.get()


async def enter_call(exchange: Exchange, http: HttpCall, server: Server, proceed: Proceed) -> bool:
    """`before` of the operations that make responses; the call then takes its common path."""
    _ASKING.set(Asking(server.shared(ResponseStore.of), server))
    return False
