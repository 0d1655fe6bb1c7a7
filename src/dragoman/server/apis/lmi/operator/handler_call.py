"""Calls an operator's own handler with requests, and hands on what it answers, whole or in pieces.

`call` runs on a hook thread, `call_async` on the handler's event loop.
Source: LMI's Python engine, v0.31; asynchronous handlers v0.36.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any

from dragoman.errors import HookError
from dragoman.server.api import Reply
from dragoman.server.apis.lmi.hooks.functions import Handler
from dragoman.server.apis.lmi.hooks.handler_io import Input, Output
from dragoman.server.apis.lmi.operator.messages import async_error_reply, error_reply, head_of, reason, reply_of
from dragoman.server.apis.lmi.operator.relay import Abandoned, End, Piece, Relay

logger = logging.getLogger("dragoman.hooks")


class HandlerCaller:
    def __init__(self, handler: Handler) -> None:
        self._function = handler.function
        self._name = handler.name

    def call(self, item: Input, relay: Relay) -> None:
        """Answer one request. Raises: nothing that the handler raises."""
        outputs: Any = None
        try:
            try:
                outputs = self._function(item)
            except Exception as error:  # hook call: whatever the operator's code raises fails this request only
                self._tell(relay, error)
                relay.put(error_reply(error))
                return
            self._send(outputs, relay)
        except Abandoned:
            logger.debug("nobody waits for the answer of the handler %s any more", self._name)
        finally:
            _finalize(outputs)

    async def call_async(self, item: Input, relay: Relay) -> None:
        outputs: Any = None
        try:
            try:
                made = self._function(item)
                outputs = made if inspect.isasyncgen(made) else await made
                if isinstance(outputs, AsyncIterator):
                    await self._send_chunks(outputs, relay)
                    return
            except Abandoned:
                raise
            except (Exception, SystemExit) as error:  # hook call: sys.exit, too, would end the event loop for all
                self._tell(relay, error)
                await relay.put_soon(async_error_reply(error))
                return
            if isinstance(outputs, Output) and outputs.stream_content is not None:
                await asyncio.to_thread(self._send, outputs, relay)  # an iterator that may block
            else:
                await relay.put_soon(self._whole(outputs))
        except Abandoned:
            logger.debug("nobody waits for the answer of the handler %s any more", self._name)
        finally:
            _finalize(outputs)

    def _tell(self, relay: Relay, error: BaseException) -> None:
        """Log a failure; one that came of giving the call up needs no attention."""
        level = logging.DEBUG if relay.is_closed else logging.WARNING
        logger.log(level, "the handler %s failed", self._name, exc_info=error)

    def _send(self, outputs: Any, relay: Relay) -> None:
        if isinstance(outputs, Output) and outputs.stream_content is not None:
            self._send_stream(outputs, outputs.stream_content, relay)
        else:
            relay.put(self._whole(outputs))

    def _whole(self, outputs: Any) -> Reply | None:
        if outputs is None:
            return None
        if not isinstance(outputs, Output):
            return error_reply(TypeError(f"Invalid output type: {type(outputs)}"))
        try:
            return reply_of(outputs)
        except HookError as error:
            return error_reply(error)

    def _send_stream(self, output: Output, content: Iterable[Any], relay: Relay) -> None:
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
            self._tell(relay, error)
            relay.put(End(HookError(reason(error))) if is_begun else error_reply(error))
        finally:
            _close(items)

    async def _send_chunks(self, outputs: AsyncIterator[Any], relay: Relay) -> None:
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
            self._tell(relay, error)
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
