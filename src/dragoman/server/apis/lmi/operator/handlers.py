"""Puts an operator's own handler in the place of generation, on the LMI routes, and carries its answers to the server.

Runs each call on a hook thread, or on the handler's event loop, within `predict_timeout`; gives it up when the client
leaves. All else here runs on the server's event loop.
Source: LMI's Python engine, v0.31; asynchronous handlers v0.36.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import msgspec

from dragoman.engine.base import Capabilities, EngineStats, Health, Outputs
from dragoman.errors import EngineFailed, HookError, RequestTimeout, ServerError, UnsupportedFeature
from dragoman.server.api import CallSwitches, Dialect, Dialects, Head, HttpCall, Opening, Reply, StreamedReply
from dragoman.server.apis.lmi.hooks.functions import Handler
from dragoman.server.apis.lmi.hooks.handler_io import Input, Output
from dragoman.server.apis.lmi.hooks.threads import HandlerLoop, HookPool
from dragoman.server.apis.lmi.operator.handler_model import HandlerModel
from dragoman.server.apis.lmi.operator.messages import (
    async_error_reply,
    error_reply,
    handler_input,
    head_of,
    reason,
    reply_of,
    stream_error,
)
from dragoman.types import EngineRequest

logger = logging.getLogger("dragoman.hooks")

MAX_WAITING = 64  # pieces; enough to keep a fast client busy, few enough that a slow one holds the handler back


class Abandoned(Exception):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True, slots=True)
class End:
    """The answer ends here, with a failure if there is an error."""

    error: ServerError | None = None


Piece = Reply | Head | bytes | End | None
"""A whole answer, or a head and chunks; None = the handler answers nothing. `End` comes last."""


class Relay:
    """One call's way back, with a single writer, which is held back when the reader is slow.

    `put` is called on a hook thread, `put_soon` on an asynchronous handler's event loop, all else on the server's.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Piece] = asyncio.Queue()
        self._room = threading.Semaphore(MAX_WAITING)
        self.is_closed = False  # True if nobody reads any more

    def put(self, piece: Piece) -> None:
        """Hand a piece over, waiting for room. Raises: Abandoned."""
        self._room.acquire()
        self._hand_over(piece)

    async def put_soon(self, piece: Piece) -> None:
        """The same on an event loop. Raises: Abandoned."""
        if not self._room.acquire(blocking=False):
            await asyncio.to_thread(self._room.acquire)
        self._hand_over(piece)

    def put_last(self, piece: End) -> None:
        self._queue.put_nowait(piece)

    async def get(self) -> Piece:
        """The next piece. Raises: the failure that ends the answer."""
        piece = await self._queue.get()
        self._room.release()
        if isinstance(piece, End) and piece.error is not None:
            raise piece.error
        return piece

    def close(self) -> None:
        """Take no more; a writer that waits for room learns that it is not needed."""
        self.is_closed = True
        self._room.release(MAX_WAITING)

    def _hand_over(self, piece: Piece) -> None:
        if self.is_closed:
            self._room.release()  # the next one must not wait either
            raise Abandoned
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, piece)
        except RuntimeError as error:  # the server's event loop was closed
            raise Abandoned from error


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
        limit = asyncio.timeout(self.timeout_s)
        try:
            item = handler_input(http, self.properties if self.handler.falls_through else {})
            item.function_name, item.model = self.handler.name, access
            async with limit:
                if self.handler.is_async:
                    await self.loop.run(lambda: call_async(self.handler, item, relay))
                else:
                    await self.pool.run(lambda: call(self.handler, item, relay))
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


def call(handler: Handler, item: Input, relay: Relay) -> None:
    """Answer one request, on a hook thread. Raises: nothing that the handler raises."""
    outputs: Any = None
    try:
        outputs = handler.function(item)
        _send(handler, outputs, relay)
    except Abandoned:
        logger.debug("nobody waits for the answer of the handler %s any more", handler.name)
    except Exception as error:  # hook call: whatever the operator's code raises fails this request only
        _tell(handler, relay, error)
        with suppress(Abandoned):
            relay.put(error_reply(error))
    finally:
        _finalize(outputs)


async def call_async(handler: Handler, item: Input, relay: Relay) -> None:
    """The same on an asynchronous handler's event loop."""
    outputs: Any = None
    try:
        made = handler.function(item)
        outputs = made if inspect.isasyncgen(made) else await made
        if isinstance(outputs, AsyncIterator):
            await _send_chunks(handler, outputs, relay)
        elif isinstance(outputs, Output) and outputs.stream_content is not None:
            await asyncio.to_thread(_send, handler, outputs, relay)  # an iterator that may block
        else:
            await relay.put_soon(_whole(outputs))
    except Abandoned:
        logger.debug("nobody waits for the answer of the handler %s any more", handler.name)
    except (Exception, SystemExit) as error:  # hook call: sys.exit, too, would end the event loop for all
        _tell(handler, relay, error)
        with suppress(Abandoned):
            await relay.put_soon(async_error_reply(error))
    finally:
        _finalize(outputs)


def _tell(handler: Handler, relay: Relay, error: BaseException) -> None:
    """Log a failure; one that came of giving the call up needs no attention."""
    level = logging.DEBUG if relay.is_closed else logging.WARNING
    logger.log(level, "the handler %s failed", handler.name, exc_info=error)


def _send(handler: Handler, outputs: Any, relay: Relay) -> None:
    """Send what a handler returned. Raises: Abandoned."""
    if isinstance(outputs, Output) and outputs.stream_content is not None:
        _send_stream(handler, outputs, outputs.stream_content, relay)
    else:
        relay.put(_whole(outputs))


def _whole(outputs: Any) -> Reply | None:
    if outputs is None:
        return None
    if not isinstance(outputs, Output):
        return error_reply(TypeError(f"Invalid output type: {type(outputs)}"))
    try:
        return reply_of(outputs)
    except HookError as error:
        return error_reply(error)


def _send_stream(handler: Handler, output: Output, content: Iterable[Any], relay: Relay) -> None:
    is_begun = False
    items: Any = content
    try:
        head = head_of(output)
        items = iter(content)
        for item in items:
            chunk = _chunk(output.stream_formatter(item))
            if not is_begun:
                relay.put(head)
                is_begun = True
            relay.put(chunk)
        if not is_begun:
            relay.put(head)
    except Abandoned:
        raise
    except Exception as error:  # hook call: the operator's iterator, or its formatter
        _tell(handler, relay, error)
        relay.put(End(HookError(reason(error))) if is_begun else error_reply(error))
    finally:
        _close(items)


async def _send_chunks(handler: Handler, outputs: AsyncIterator[Any], relay: Relay) -> None:
    is_begun = False
    try:
        async for output in outputs:
            for piece in _pieces_of(output, is_begun=is_begun):
                await relay.put_soon(piece)
            is_begun = True
            if output.is_last or output.failure is not None:
                break
        if not is_begun:
            await relay.put_soon(None)
    except Abandoned:
        raise
    except Exception as error:
        if not is_begun:
            raise
        _tell(handler, relay, error)
        await relay.put_soon(End(HookError(f"Custom handler failed: {reason(error)}")))
    finally:
        aclose = getattr(outputs, "aclose", None)
        if aclose is not None:
            await aclose()


def _pieces_of(output: Any, *, is_begun: bool) -> list[Piece]:
    """The pieces that one Output of a stream sends; if the first one is an error, it is the whole answer."""
    if not isinstance(output, Output):
        raise TypeError(f"Invalid output type: {type(output)}")
    if is_begun:
        return [output.body() or b""] if output.failure is None else [End(HookError(output.failure))]
    if output.failure is not None or output.code >= 300:
        output.failure = output.failure or output.message
        return [reply_of(output)]
    return [head_of(output), output.body() or b""]


def _chunk(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode("utf-8", "replace")
    if isinstance(item, bytes | bytearray):
        return bytes(item)
    raise TypeError(f"a stream's formatter must write strings or bytes, got {type(item).__name__}")


def _close(items: Any) -> None:
    close = getattr(items, "close", None)
    if not callable(close):
        return
    try:
        close()
    except Exception as error:  # hook call: the operator's generator cleans up
        logger.warning("the stream of a handler could not be closed", exc_info=error)


def _finalize(outputs: Any) -> None:
    if isinstance(outputs, Output):
        outputs.execute_finalize()


class NoGeneration:
    """The service of a model that has only a handler. `reason`: why nothing can be generated."""

    def __init__(self, name: str, reason: str) -> None:
        self._message = f"model {name} answers on the LMI routes only, with its own handler: {reason}"

    async def generate(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedFeature(self._message, param="model")

    run = prepare = generate


class NoEngine:
    """The engine of a model that has only a handler. Its service refuses whatever would come to it."""

    capabilities = Capabilities(max_model_len=1, vocab_size=1)

    async def start(self) -> None:
        """Nothing to start."""

    def generate(self, request: EngineRequest) -> Outputs:
        raise UnsupportedFeature("there is no engine: only this model's handler answers", param="model")

    def health(self) -> Health:
        return Health(is_alive=True)

    def stats(self) -> EngineStats:
        return EngineStats()

    async def shutdown(self, drain_s: float) -> None:
        """Nothing to stop: the handler's threads do not keep the process."""
