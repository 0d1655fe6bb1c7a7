"""The served model as an operator's handler may use it: `inputs.model.generate(body)`, `.stream(body)`, `.answer(body)`.

Made on the server's event loop for every call of a handler, where it generates; its methods are called on hook threads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any, TypeVar

import msgspec

from dragoman.errors import Cancelled, InvalidParameter
from dragoman.server.api import Call, Encoder, HttpCall, Reply
from dragoman.server.apis.lmi.dialect import LmiDialect
from dragoman.server.apis.lmi.hooks.functions import OutputFormatter
from dragoman.server.apis.lmi.hooks.handler_io import Output
from dragoman.server.apis.lmi.operator.formatters import written_by
from dragoman.server.generation.call_events import CallEvents
from dragoman.server.registry import GenerationService
from dragoman.server.responder import generate_all, ignored_header
from dragoman.types import GenerationEvent, GenerationRequest

T = TypeVar("T")

ENDED = "the handler's call has ended, and with it what it generated"


class HandlerModel:
    """The model, for one call of a handler; what it still generates is aborted when that call ends.

    `lmi` reads and writes as the LMI routes do without a handler, `dynamic` as they do with rolling_batch=disable.
    """

    def __init__(self, lmi: LmiDialect, dynamic: LmiDialect, service: GenerationService, request_id: str) -> None:
        self._lmi = lmi
        self._dynamic = dynamic
        self._service = service
        self._request_id = request_id
        self._numbers = count(1)
        self._loop = asyncio.get_running_loop()
        self._running: set[Future[Any]] = set()
        self._is_closed = False

    def generate(self, body: Mapping[str, Any]) -> Any:
        """The answer of the LMI routes without a handler to a body, as Python values. Blocks. Raises: ServerError."""
        call = self._parse(self._lmi, body)
        return json.loads(self._full(call, call.encoder).body)

    def stream(self, body: Mapping[str, Any]) -> Iterator[str]:
        """The text of one prompt, piece by piece; closing the iterator aborts it. Blocks. Raises: ServerError."""
        requests = self._parse(self._lmi, body).requests
        if len(requests) != 1:
            raise InvalidParameter(
                f"inputs must be a single prompt when streaming, got {len(requests)}", param="inputs"
            )
        return self._pieces(partial(self._read, requests[0]))

    def answer(self, body: Mapping[str, Any], output_formatter: Callable[..., Any] | None = None) -> Output:
        """The answer of a dynamic batch, or what an output formatter writes. Blocks. Raises: ServerError, TypeError."""
        if output_formatter is None:
            call = self._parse(self._dynamic, body)
            if call.stream:
                made = Output().add_stream_content(self._pieces(partial(self._encode, call)), None)
                return made.add_property("Content-Type", call.encoder.head(()).media_type)
            reply = self._full(call, call.encoder)
        else:
            call = self._parse(self._lmi, body)
            reply = self._full(call, written_by(OutputFormatter(output_formatter), call, body))
        made = Output(reply.status).add(reply.body).add_property("Content-Type", reply.media_type)
        for name, value in ignored_header(call.ignored).items():
            made.add_property(name, value)
        return made

    def close(self) -> None:
        """Abort what still runs, and take no more."""
        self._is_closed = True
        for running in list(self._running):
            running.cancel()

    def _parse(self, dialect: LmiDialect, body: Mapping[str, Any]) -> Call:
        http = HttpCall(
            "POST",
            "/invocations",
            msgspec.json.encode(body),
            {"content-type": "application/json"},
            request_id=f"{self._request_id}-{next(self._numbers)}",
        )
        return dialect.parse(http)

    def _full(self, call: Call, encoder: Encoder) -> Reply:
        return encoder.full(_result(self._start(generate_all(self._service, call.requests))))

    def _pieces(self, write: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]) -> Iterator[T]:
        """The values that `write`, on the server's event loop, passes to the function that it gets."""
        pieces: SimpleQueue[T | None] = SimpleQueue()
        running = self._start(write(pieces.put))
        running.add_done_callback(lambda _: pieces.put(None))
        try:
            while (piece := pieces.get()) is not None:
                yield piece
            _result(running)
        finally:
            running.cancel()

    async def _read(self, request: GenerationRequest, put: Callable[[str], None]) -> None:
        def take(event: GenerationEvent) -> None:
            if event.index == 0 and event.text:
                put(event.text)

        await self._service.run(request, take)

    async def _encode(self, call: Call, put: Callable[[bytes], None]) -> None:
        running = CallEvents(self._service, call.requests)
        running.start(_never)  # a client that leaves ends the handler's call, and this with it
        try:
            while events := await running.next_batch():
                put(b"".join(call.encoder.event(index, event) for index, event in events))
            put(call.encoder.end())
        finally:
            await running.aclose()

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._is_closed:
            work.close()
            raise Cancelled(ENDED)
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running


async def _never() -> Exception:
    await asyncio.Event().wait()
    raise AssertionError("an event that is never set was set")


def _result(running: Future[T]) -> T:
    try:
        return running.result()
    except CancelledError as error:
        raise Cancelled(ENDED) from error
