"""The served model as an operator's handler may use it: `inputs.model.generate(body)`, `inputs.model.stream(body)`.

Does: read bodies as the LMI routes do, generate on the server's event loop, wait for it on the handler's thread.
Does not: run handlers. Made on the server's event loop for every call of a handler; its methods are called on hook threads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import aclosing
from itertools import count
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import msgspec

from dragoman.errors import Cancelled, InvalidParameter
from dragoman.server.dialects.base import Call, HttpCall
from dragoman.server.dialects.lmi import LmiDialect
from dragoman.server.dialects.lmi_body import read_payload
from dragoman.server.registry import GenerationService
from dragoman.server.responder import generate_all
from dragoman.types import GenerationEvent, GenerationRequest

T = TypeVar("T")

ENDED = "the handler's call has ended, and with it what it generated"


class HandlerModel:
    """The model, for one call of a handler; what it still generates is aborted when that call ends."""

    def __init__(self, lmi: LmiDialect, service: GenerationService, request_id: str) -> None:
        self._lmi = lmi
        self._service = service
        self._request_id = request_id
        self._numbers = count(1)
        self._loop = asyncio.get_running_loop()
        self._running: set[Future[Any]] = set()
        self._is_closed = False

    def generate(self, body: Mapping[str, Any]) -> Any:
        """What the LMI routes answer to such a body (`inputs`, `parameters`) without a handler, as Python values.

        Blocks. Raises: ServerError.
        """
        call = self._parse(body)
        results = _result(self._start(generate_all(self._service, call.requests)))
        return json.loads(call.encoder.full(results).body)

    def stream(self, body: Mapping[str, Any]) -> Iterator[str]:
        """The generated text, piece by piece, of a body with one prompt; closing the iterator aborts the generation.

        Blocks between the pieces. Raises: ServerError.
        """
        requests = self._parse(body).requests
        if len(requests) != 1:
            raise InvalidParameter(f"inputs must be one prompt to be streamed, got {len(requests)}", param="inputs")
        pieces: SimpleQueue[str | None] = SimpleQueue()
        running = self._start(self._read(requests[0], pieces.put))
        running.add_done_callback(lambda _: pieces.put(None))
        try:
            while (piece := pieces.get()) is not None:
                yield piece
            _result(running)
        finally:
            running.cancel()

    def close(self) -> None:
        """Abort what still runs, and take no more."""
        self._is_closed = True
        for running in list(self._running):
            running.cancel()

    def _parse(self, body: Mapping[str, Any]) -> Call:
        http = HttpCall(
            "POST",
            "/invocations",
            msgspec.json.encode(body),
            {"content-type": "application/json"},
            request_id=f"{self._request_id}-{next(self._numbers)}",
        )
        return self._lmi.parse_payload(read_payload(http), http)

    async def _read(self, request: GenerationRequest, put: Callable[[str], None]) -> None:
        events: Any = self._service.stream(request)
        async with aclosing(events):
            async for one in events:
                event = cast(GenerationEvent, one)
                if event.index == 0 and event.text:
                    put(event.text)

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """`work` on the server's event loop. Raises: Cancelled if the handler's call has ended."""
        if self._is_closed:
            work.close()
            raise Cancelled(ENDED)
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running


def _result(running: Future[T]) -> T:
    """The result, once it is there. Raises: Cancelled if the handler's call ended before; what the work raises."""
    try:
        return running.result()
    except CancelledError as error:
        raise Cancelled(ENDED) from error
