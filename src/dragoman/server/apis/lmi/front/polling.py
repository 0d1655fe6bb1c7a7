"""Calls that are answered later, as LMI's front end has them, before the operations that it would serve.

Does: start such calls, answer polls, refuse to have the handler overridden. Does not: keep answers (`deferred` does).
`before` of the operations of LMI's routes, for calls with one of `POLLING_FIELDS`, on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dragoman.server.api import Head, HttpCall, Reply
from dragoman.server.apis.lmi.errors import bad_request
from dragoman.server.apis.lmi.front.deferred import (
    STARTING_TOKEN,
    SYNCHRONOUS,
    DeferredAnswers,
    Polled,
    is_poll,
    wants_deferral,
)
from dragoman.server.http.exchange import Exchange
from dragoman.server.operations import Proceed, Server

HANDLER = "handler"
POLLING_FIELDS = frozenset({SYNCHRONOUS, STARTING_TOKEN, HANDLER})
"""Header fields of calls that are polling's concern."""


def _as_is(reply: Reply) -> Reply:
    return reply


@dataclass(frozen=True, slots=True)
class Polling:
    """The step before a call. `wrap_refusal`: the shape that the operation gives to the front end's refusals."""

    wrap_refusal: Callable[[Reply], Reply] = _as_is

    async def __call__(self, exchange: Exchange, http: HttpCall, server: Server, proceed: Proceed) -> bool:
        """Answer a poll, or start a call whose answer is polled for; False for a call that is to take its common path."""
        deferred = server.shared(DeferredAnswers.of)
        if is_poll(http):
            await self._send_polled(exchange, deferred.poll(http, exchange.caller))
        elif HANDLER in http.headers:
            refusal = bad_request("The handler can't be overridden in a request")
            await exchange.send_reply(self.wrap_refusal(refusal))
        elif wants_deferral(http):
            await exchange.send_reply(deferred.start(exchange, proceed))
        else:
            return False
        return True

    async def _send_polled(self, exchange: Exchange, polled: Polled) -> None:
        reply = polled.reply
        if not polled.is_cut:
            return await exchange.send_reply(self.wrap_refusal(reply) if polled.is_refused else reply)
        await exchange.send_head(Head(reply.media_type, reply.status, reply.headers))
        await exchange.send_chunk(reply.body)
        return await exchange.cut()
