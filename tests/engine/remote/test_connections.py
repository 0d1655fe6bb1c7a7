"""Connections to upstreams: used again, and what a closed one means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field

import pytest

from dragoman.engine.remote import upstream as module
from dragoman.engine.remote.fleet import Fleet, Route
from dragoman.engine.remote.profile import Profile
from dragoman.engine.remote.upstream import Stream, Upstream, UpstreamError, new_session
from dragoman.engine.remote.wire import Trace
from tests.contract.asking import run
from tests.support.patience import until

_EVENTS = b'data: {"choices":[{"text":"one"}]}\n\ndata: [DONE]\n\n'
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
ANSWER = _HEAD + f"content-length: {len(_EVENTS)}\r\n\r\n".encode() + _EVENTS


@dataclass
class Scripted:
    """Sends, for each request of each connection in turn, the bytes that `script` says; then it closes the connection.

    `num_requests`: that were read, of each connection that was opened.
    """

    script: list[list[bytes]]
    num_requests: list[int] = field(default_factory=list)
    num_closed: int = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Upstream]:
        """As an upstream that is known."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        upstream = Upstream(f"http://127.0.0.1:{port}/v1", 10.0, Profile("m"))
        try:
            async with new_session(None) as session:
                upstream.attach(session)
                yield upstream
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = len(self.num_requests)
        self.num_requests.append(0)
        for answer in self.script[place]:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            self.num_requests[place] += 1
            writer.write(answer)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        self.num_closed += 1


async def answered(upstream: Upstream) -> None:
    """Read an answer to its end."""
    with closing(await upstream.open(b"{}", Trace("r"))) as stream:
        while await stream.more() is not None:
            pass


def test_a_connection_is_used_again() -> None:
    server = Scripted([[ANSWER] * 3])

    async def test() -> None:
        async with server.listening() as upstream:
            for _ in range(3):
                await answered(upstream)
            assert server.num_requests == [3]

    run(test())


def test_a_connection_that_was_closed_while_nobody_used_it_is_no_failure() -> None:
    server = Scripted([[ANSWER], [ANSWER]])

    async def test() -> None:
        async with server.listening() as upstream:
            await answered(upstream)
            await until(lambda: server.num_closed == 1)
            await answered(upstream)
            assert server.num_requests == [1, 1]

    run(test())


def test_a_request_that_meets_with_that_is_sent_on_a_new_connection() -> None:
    server = Scripted([[ANSWER, b""], [ANSWER, b""], [ANSWER]])

    async def test() -> None:
        async with server.listening() as upstream:
            await asyncio.gather(answered(upstream), answered(upstream))
            assert server.num_requests == [1, 1]
            await answered(upstream)  # both kept connections are closed
            assert server.num_requests == [2, 2, 1]

    run(test())


@pytest.mark.parametrize("part", [b"HTTP/1.1 200 OK\r\ncontent-", _HEAD + b"content-length: 99\r\n\r\ndata: "])
def test_a_part_of_an_answer_is_no_closed_connection(part: bytes) -> None:
    server = Scripted([[ANSWER, part], [ANSWER]])

    async def test() -> None:
        async with server.listening() as upstream:
            await answered(upstream)
            with pytest.raises(UpstreamError, match="broke the connection off"):
                await answered(upstream)
            assert server.num_requests == [2]

    run(test())


def test_a_server_that_has_had_a_request_for_long_has_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RACE_S", 0.0)
    server = Scripted([[ANSWER, b""], [ANSWER]])

    async def test() -> None:
        async with server.listening() as upstream:
            await answered(upstream)
            with pytest.raises(UpstreamError, match="broke the connection off"):
                await answered(upstream)
            assert server.num_requests == [2]

    run(test())


def test_a_new_connection_that_is_closed_without_an_answer_is_another_servers_turn() -> None:
    first, second = Scripted([[b""], [ANSWER]]), Scripted([[ANSWER]])

    async def greet(upstream: Upstream) -> None:
        """They are known."""

    async def test() -> None:
        async with first.listening() as one, second.listening() as other:
            fleet = Fleet([one, other], None, greet)

            async def ask(upstream: Upstream) -> Stream:
                return await upstream.open(b"{}", Trace("r"))

            (await fleet.first_answer(Route(b""), ask)).close()
            assert (first.num_requests, second.num_requests) == ([1], [1])
            assert [one.is_healthy for one in fleet.health()] == [False, True]

    run(test())
