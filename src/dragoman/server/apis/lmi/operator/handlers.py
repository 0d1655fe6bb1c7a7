"""Puts an operator's own handler in the place of generation, on the LMI routes.

Runs each call on a hook thread, or on the handler's event loop, within `predict_timeout`; gives it up when the client
leaves. All else here runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import msgspec

from dragoman.errors import EngineFailed, HookError, RequestTimeout, ServerError
from dragoman.server.api import CallSwitches, Dialect, Dialects, Head, HttpCall, Opening, Reply, StreamedReply
from dragoman.server.apis.lmi.hooks.functions import Handler
from dragoman.server.apis.lmi.hooks.handler_io import Output
from dragoman.server.apis.lmi.hooks.threads import HandlerLoop, HookPool
from dragoman.server.apis.lmi.operator.handler_call import HandlerCaller
from dragoman.server.apis.lmi.operator.handler_model import HandlerModel
from dragoman.server.apis.lmi.operator.messages import handler_input, reply_of, stream_error
from dragoman.server.apis.lmi.operator.relay import End, Relay

logger = logging.getLogger("dragoman.hooks")


@dataclass(frozen=True, slots=True)
class HandlerRuntime:
    """`timeout_s` bounds a call from its start to its last byte, None = without bound. `properties`: for the first call.

    `make_access` gives a call its use of the model.
    """

    handler: Handler
    properties: Mapping[str, str]
    timeout_s: float | None
    pool: HookPool
    loop: HandlerLoop
    make_access: Callable[[HttpCall], HandlerModel] | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # what runs on behind an answer that is complete

    async def start(self) -> None:
        if self.handler.falls_through:
            return  # LMI does not initialise an asynchronous handler beside its own
        if self.handler.is_async:
            await self.loop.run(lambda: self.handler.start_async(self.properties))
        else:
            await self.pool.run(lambda: self.handler.start(self.properties))

    async def work(self, http: HttpCall, relay: Relay) -> None:
        """Run the handler for one call, and end the relay as it ends. Raises: nothing but CancelledError."""
        access = None if self.make_access is None else self.make_access(http)
        caller = HandlerCaller(self.handler)
        limit = asyncio.timeout(self.timeout_s)
        try:
            item = handler_input(http, self.properties if self.handler.falls_through else {})
            item.function_name, item.model = self.handler.name, access
            async with limit:
                if self.handler.is_async:
                    await self.loop.run(lambda: caller.call_async(item, relay))
                else:
                    await self.pool.run(lambda: caller.call(item, relay))
            last = End()
        except ServerError as error:
            last = End(error)
        except Exception as error:  # hook call: what the operator's code raises was told; this is the rest
            if isinstance(error, TimeoutError) and limit.expired():
                late = f"The handler took longer than the {self.timeout_s:g} s that the server allows"
                last = End(RequestTimeout(late))
            else:
                logger.error("the handler's call %s failed", http.request_id, exc_info=error)
                last = End(EngineFailed("the handler could not be run"))
        finally:
            if access is not None:
                access.close()
        relay.put_last(last)


class HandlerDialect:
    """`inner` with the operator's handler in front: what that answers with None is `inner`'s, or has no content."""

    def __init__(self, inner: Dialect, runtime: HandlerRuntime) -> None:
        self._inner = inner
        self._runtime = runtime

    def open(self, http: HttpCall) -> Opening:
        return msgspec.structs.replace(self._inner.open(http), answer=partial(self._answer, http))

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        if isinstance(error, HookError | RequestTimeout):
            return reply_of(Output().error(error.message))
        return self._inner.error_reply(error, http)

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply | StreamedReply | None:
        """The handler's answer; None = it leaves the call to generation. Raises: ServerError."""
        run = _Run(self._runtime, http)
        try:
            opening = await run.get()
            if isinstance(opening, bytes | End):
                raise EngineFailed("the handler ended without an answer")
        except BaseException:
            await run.aclose()
            raise
        if isinstance(opening, Head):
            media_type = opening.media_type
            return StreamedReply(opening, run, lambda error: stream_error(error, media_type))
        run.close()  # the handler ends by itself; it may have something to clean up
        if opening is None and not self._runtime.handler.falls_through:
            return Reply(204, b"", "")
        return opening


def with_handler(dialects: Dialects, runtime: HandlerRuntime) -> dict[str, Dialect]:
    """The dialects with the operator's handler in front of each: it gets every body of the LMI routes."""
    return {name: HandlerDialect(dialect, runtime) for name, dialect in dialects.items()}


class _Run(Relay):
    """One call of the handler: its opening, then its chunks, then `aclose`, which gives up what still runs."""

    def __init__(self, runtime: HandlerRuntime, http: HttpCall) -> None:
        super().__init__()
        self._task = asyncio.create_task(runtime.work(http, self))
        runtime.tasks.add(self._task)
        self._task.add_done_callback(runtime.tasks.discard)

    def __aiter__(self) -> _Run:
        return self

    async def __anext__(self) -> bytes:
        piece = await self.get()
        if isinstance(piece, End):
            raise StopAsyncIteration
        assert isinstance(piece, bytes)  # after a head, only these come
        return piece

    async def aclose(self) -> None:
        self.close()
        self._task.cancel()
