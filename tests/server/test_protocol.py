"""The HTTP/1.1 protocol class: trailers, cut connections, bounded heads and stalled clients, byte by byte."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from dragoman.errors import EngineFailed
from dragoman.server.app import ServerConfig
from dragoman.server.http.protocol import (
    CUT_EXTENSION,
    LEAST_BODY_RATE,
    MAX_HEAD_SIZE_BYTES,
    TRAILERS_EXTENSION,
    protocol_class,
)
from dragoman.server.run import ListenConfig
from tests.support.fake_service import Gate, Script
from tests.support.patience import PATIENCE_S
from tests.support.running_server import RunningServer, post_bytes, read_to_end, read_until, running_server
from tests.support.tables import table

pytestmark = pytest.mark.varies("the protocol builds on the insides of uvicorn, httptools and asyncio")

Send = Callable[[dict[str, Any]], Awaitable[None]]
Answer = Callable[[dict[str, Any], Send], Awaitable[None]]

STREAM = b'{"stream": true}'
TE = "te: trailers"
WITH_TRAILER = b"0\r\nx-count: 1\r\n\r\n"


@contextmanager
def serving(answer: Answer, *, stall_timeout_s: float = PATIENCE_S) -> Iterator[Callable[[], socket.socket]]:
    """A bare uvicorn with our protocol and `answer` as its application; gives a function that connects."""

    async def app(scope: dict[str, Any], receive: Any, send: Send) -> None:
        await answer(scope, send)

    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    config = uvicorn.Config(
        app,
        http=protocol_class(stall_timeout_s), ws="none", lifespan="off", log_config=None,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield lambda: socket.create_connection(address, timeout=PATIENCE_S)
    finally:
        server.should_exit = server.force_exit = True
        thread.join(PATIENCE_S)


def ask(connect: Callable[[], socket.socket], request: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    with connect() as connection:
        connection.sendall(request)
        return read_to_end(connection)


class TestTrailers:
    def test_they_follow_the_last_chunk_for_clients_that_take_them(self, server: RunningServer) -> None:
        answer = ask(server.connect, post_bytes("/invocations", STREAM, TE, "connection: close"))
        head, _, payload = answer.partition(b"\r\n\r\n")
        assert b"\r\ntrailer: X-Count" in head
        assert payload.endswith(b"the end\n\r\n" + WITH_TRAILER)
        assert payload.count(b"\r\n0\r\n") == 1

    @table("te", ["TE: gzip, Trailers", "te: trailers;q=0.5", "te: deflate\r\nte: trailers"])
    def test_the_field_may_be_written_in_any_legal_way(self, server: RunningServer, te: str) -> None:
        answer = ask(server.connect, post_bytes("/invocations", STREAM, te, "connection: close"))
        assert answer.endswith(WITH_TRAILER)

    @table("te", ["te: gzip", "te: xtrailers", "te: trailers;q=0", "x-te: trailers"])
    def test_other_clients_get_neither_trailers_nor_their_announcement(self, server: RunningServer, te: str) -> None:
        answer = ask(server.connect, post_bytes("/invocations", STREAM, te, "connection: close"))
        assert b"trailer" not in answer.partition(b"\r\n\r\n")[0].lower()
        assert answer.endswith(b"the end\n\r\n0\r\n\r\n")

    def test_http_1_0_clients_get_none(self, server: RunningServer) -> None:
        request = post_bytes("/invocations", STREAM, TE).replace(b"HTTP/1.1", b"HTTP/1.0")
        assert b"x-count" not in ask(server.connect, request)

    def test_whole_answers_have_none(self, server: RunningServer) -> None:
        answer = ask(server.connect, post_bytes("/invocations", b"{}", TE, "connection: close"))
        assert b"x-count" not in answer

    def test_the_connection_can_be_used_again(self, server: RunningServer) -> None:
        with server.connect() as connection:
            for _ in range(3):
                connection.sendall(post_bytes("/invocations", STREAM, TE))
                assert read_until(connection, WITH_TRAILER).startswith(b"HTTP/1.1 200 OK\r\n")

    def test_pipelined_requests_are_answered_in_their_order(self, server: RunningServer) -> None:
        requests = [
            post_bytes("/invocations", STREAM, TE, "x-request-id: one"),
            post_bytes("/invocations", STREAM, "x-request-id: two"),
            post_bytes("/invocations", STREAM, TE, "x-request-id: three", "connection: close"),
        ]
        answer = ask(server.connect, b"".join(requests))
        places = [answer.index(f"x-request-id: {name}".encode()) for name in ("one", "two", "three")]
        assert places == sorted(places)
        assert answer.count(WITH_TRAILER) == 2

    def test_they_may_be_sent_in_several_messages(self) -> None:
        async def answer(scope: dict[str, Any], send: Send) -> None:
            assert TRAILERS_EXTENSION in scope["extensions"]
            await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
            await send({"type": "http.response.body", "body": b"text"})
            await send({"type": "http.response.trailers", "headers": [(b"a", b"1")], "more_trailers": True})
            await send({"type": "http.response.trailers", "headers": [(b"b", b"2")]})

        with serving(answer) as connect:
            request = b"GET / HTTP/1.1\r\nhost: x\r\nte: trailers\r\nconnection: close\r\n\r\n"
            assert ask(connect, request).endswith(b"4\r\ntext\r\n0\r\na: 1\r\nb: 2\r\n\r\n")

    def test_a_head_request_has_no_trailers_and_keeps_its_connection(self) -> None:
        async def answer(scope: dict[str, Any], send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
            await send({"type": "http.response.body", "body": b"text"})
            await send({"type": "http.response.trailers", "headers": [(b"a", b"1")]})

        with serving(answer) as connect:
            first = b"HEAD / HTTP/1.1\r\nhost: x\r\nte: trailers\r\n\r\n"
            last = b"GET / HTTP/1.1\r\nhost: x\r\nte: trailers\r\nconnection: close\r\n\r\n"
            answered = ask(connect, first + last)
            assert answered.count(b"HTTP/1.1 200 OK") == 2
            assert answered.count(b"a: 1") == 1

    def test_trailers_before_the_end_of_the_body_are_the_applications_error(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def answer(scope: dict[str, Any], send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
            await send({"type": "http.response.trailers", "headers": []})

        with serving(answer) as connect:
            assert not ask(connect, b"GET / HTTP/1.1\r\nhost: x\r\nte: trailers\r\n\r\n").endswith(b"0\r\n\r\n")
        assert "before the end of the body" in caplog.text


class TestCut:
    def test_what_was_sent_arrives_and_the_final_chunk_does_not(self) -> None:
        async def answer(scope: dict[str, Any], send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"text", "more_body": True})
            await send({"type": CUT_EXTENSION})
            await send({"type": "http.response.body", "body": b"never", "more_body": False})

        with serving(answer) as connect:
            assert ask(connect, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").endswith(b"\r\n\r\n4\r\ntext\r\n")

    def test_a_cut_is_not_reported_as_a_defect(self, caplog: pytest.LogCaptureFixture) -> None:
        async def answer(scope: dict[str, Any], send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": CUT_EXTENSION})

        with serving(answer) as connect:
            ask(connect, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def ask_1_0(server: RunningServer, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of what a client of HTTP/1.0 is answered, read until the server closes."""
    head, blank, body = ask(server.connect, request.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n")).partition(b"\r\n\r\n")
    assert blank
    return head.lower(), body


class TestHttp10:
    """Clients of HTTP/1.0 know no chunks and keep a connection only if both sides say so."""

    def test_a_stream_ends_with_the_connection_and_has_no_chunks(self, server: RunningServer) -> None:
        head, body = ask_1_0(server, post_bytes("/invocations", STREAM))
        assert b"transfer-encoding" not in head
        assert b"content-length" not in head
        assert head.endswith(b"\r\nconnection: close")
        assert body == b"0: Deep\n0: learning\n0: is\n0: fun\n0:.\n0: \xf0\x9f\x8d\x8a\n0:\nthe end\n"

    def test_a_stream_ends_the_connection_even_if_the_client_would_keep_it(self, server: RunningServer) -> None:
        head, body = ask_1_0(server, post_bytes("/invocations", STREAM, "connection: keep-alive"))
        assert head.count(b"\r\nconnection: ") == 1
        assert head.endswith(b"\r\nconnection: close")
        assert body.endswith(b"the end\n")

    def test_a_whole_answer_has_its_length_and_ends_the_connection(self, server: RunningServer) -> None:
        head, body = ask_1_0(server, post_bytes("/invocations", b"{}"))
        assert f"content-length: {len(body)}".encode() in head
        assert head.endswith(b"\r\nconnection: close")

    def test_a_connection_is_kept_for_a_client_that_asks_and_an_answer_with_a_length(
        self, server: RunningServer
    ) -> None:
        request = b"GET /ping HTTP/1.0\r\nconnection: Keep-Alive\r\n\r\n"
        with server.connect() as connection:
            for _ in range(3):
                connection.sendall(request)
                head = read_until(connection, b"Healthy").partition(b"\r\n\r\n")[0]
                assert head.endswith(b"\r\nconnection: keep-alive")
            connection.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
            assert read_to_end(connection).partition(b"\r\n\r\n")[0].endswith(b"\r\nconnection: close")

    def test_a_refused_upload_is_not_kept(self) -> None:
        with running_server(ServerConfig(max_request_size_bytes=10)) as server:
            upload = post_bytes("/invocations", b" " * 100_000, "connection: keep-alive")
            head, _ = ask_1_0(server, upload[:1000])  # much of it is not here when it is refused
            assert head.startswith(b"http/1.1 413 ")
            assert head.count(b"\r\nconnection: ") == 1
            assert b"\r\nconnection: close" in head

    def test_nobody_is_told_to_continue(self, server: RunningServer) -> None:
        head, body = ask_1_0(server, post_bytes("/invocations", b"{}", "expect: 100-continue"))
        assert head.startswith(b"http/1.1 200 ")
        assert body.startswith(b"0:")

    def test_a_head_has_no_body(self, server: RunningServer) -> None:
        head, body = ask_1_0(server, b"HEAD /ping HTTP/1.1\r\n\r\n")
        assert b"content-length: 29" in head
        assert body == b""

    def test_an_answer_that_breaks_off_resets_the_connection(self, server: RunningServer) -> None:
        """Without chunks, the end of the connection is the end of the answer: only a reset can tell that it is not."""
        gate = Gate()
        server.service.script = Script(gates={3: gate}, failures={3: EngineFailed("broke")})
        request = post_bytes("/invocations", b'{"stream": true, "cut": true}').replace(b"HTTP/1.1", b"HTTP/1.0")
        with server.connect() as connection:
            connection.sendall(request)
            read_until(connection, b"0: is\n")
            gate.open()
            with pytest.raises(ConnectionResetError):
                read_to_end(connection)


UPGRADES = [
    "upgrade: h2c\r\nconnection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAEAAEAA",
    "upgrade: x\r\nconnection: upgrade",
]


EVERY_WISH = table("wish", UPGRADES, ids=["HTTP/2, as Java's client", "anything"])


class TestUpgrades:
    """Java's HTTP client offers HTTP/2 with every request: it is answered in HTTP/1.1, with its body."""

    @EVERY_WISH
    @table("size", [1, 7, 10_000])
    def test_the_request_is_answered_however_its_bytes_come(self, server: RunningServer, wish: str, size: int) -> None:
        request = post_bytes("/invocations", STREAM, wish)
        with server.connect() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(2):  # the connection is kept
                for begin in range(0, len(request), size):
                    connection.sendall(request[begin : begin + size])
                assert b"the end\n" in read_until(connection, b"0\r\n\r\n")

    @EVERY_WISH
    def test_a_body_in_chunks_is_read(self, server: RunningServer, wish: str) -> None:
        head = f"POST /invocations HTTP/1.1\r\nhost: x\r\n{wish}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        with server.connect() as connection:
            connection.sendall(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(STREAM), STREAM))
            assert b"the end\n" in read_until(connection, b"0\r\n\r\n")

    @EVERY_WISH
    def test_what_follows_is_another_request(self, server: RunningServer, wish: str) -> None:
        ping = f"GET /ping HTTP/1.1\r\nhost: x\r\n{wish}\r\n\r\n".encode()
        with server.connect() as connection:
            connection.sendall(ping + ping + post_bytes("/invocations", STREAM, wish))
            answer = read_until(connection, b"the end\n\r\n0\r\n\r\n")
            assert answer.count(b"Healthy") == 2

    @EVERY_WISH
    def test_any_number_may_come_at_once(self, server: RunningServer, wish: str) -> None:
        ping = f"GET /ping HTTP/1.1\r\nhost: x\r\n{wish}\r\n\r\n".encode()
        last = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        with server.connect() as connection:
            sending = threading.Thread(target=connection.sendall, args=(ping * 3000 + last,))
            sending.start()
            assert read_to_end(connection).count(b"HTTP/1.1 200 ") == 3001
            sending.join()


SMUGGLED = {
    "a length beside chunks": "content-length: 4\r\ntransfer-encoding: chunked",
    "chunks beside a length": "transfer-encoding: chunked\r\ncontent-length: 4",
    "two lengths": "content-length: 2\r\ncontent-length: 3",
    "a list of lengths": "content-length: 2, 2",
    "a length with a sign": "content-length: +2",
    "a hexadecimal length": "content-length: 0x2",
    "an endless length": "content-length: 99999999999999999999999",
    "a blank before the colon": "transfer-encoding : chunked",
    "an unknown coding": "transfer-encoding: xchunked",
    "chunked not last": "transfer-encoding: chunked, gzip",
    "two codings": "transfer-encoding: chunked\r\ntransfer-encoding: identity",
    "a folded field": "x-a: 1\r\n content-length: 2",
    "a lone carriage return": "x-a: 1\rcontent-length: 2",
    "a lone line feed": "x-a: 1\ncontent-length: 2",
    "a null": "x-a: a\0b",
    "a blank in a name": "x a: 1",
}
CHUNKS = {
    "an endless size": b"ffffffffffffffffff\r\n",
    "a size with a sign": b"-1\r\n",
    "lone line feeds": b"2\n{}\n0\n\n",
    "more than its size": b"2\r\n{}xx\r\n0\r\n\r\n",
}


class TestSmuggling:
    """What two servers in a row could take for different requests is no request, and ends the connection."""

    @table("fields", SMUGGLED.values(), ids=SMUGGLED)
    def test_heads_that_could_be_read_in_two_ways(self, server: RunningServer, fields: str) -> None:
        head = f"POST /invocations HTTP/1.1\r\nhost: x\r\n{fields}\r\n\r\n".encode()
        answer = ask(server.connect, head + b"0\r\n\r\nGET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"Healthy" not in answer

    @table("chunks", CHUNKS.values(), ids=CHUNKS)
    def test_chunks_that_could_be_read_in_two_ways(self, server: RunningServer, chunks: bytes) -> None:
        head = b"POST /invocations HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        answer = ask(server.connect, head + chunks + b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"Healthy" not in answer


def test_an_answer_before_the_end_of_a_body_reaches_clients_that_end_the_connection(server: RunningServer) -> None:
    """A server that closes while bytes are on their way resets the connection, and the client loses what it has not read."""
    for closing in (b"connection: close", b"connection: keep-alive"):
        for length in (20, 300_000):  # the rest of a short body is waited for where the connection goes on
            head = b"POST /nowhere HTTP/1.1\r\nhost: x\r\n%s\r\ncontent-length: %d\r\n\r\n{" % (closing, length)
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection:
                connection.sendall(head)
                while not (come := connection.recv(65_536, socket.MSG_PEEK)).endswith(b"}"):
                    assert come
                for _ in range(2):  # the first is what a closed connection resets, the second would fail
                    connection.sendall(b" ")
                answer = connection.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 404"), (closing, length)
            assert (b"connection: close" in answer) == (closing == b"connection: close" or length > 20)


class TestBounds:
    @table("filler", [b"x-more: 1\r\n", b"y"], ids=["many headers", "one long header"])
    def test_an_endless_head_is_431(self, server: RunningServer, filler: bytes) -> None:
        head = (filler * (MAX_HEAD_SIZE_BYTES + 1))[: MAX_HEAD_SIZE_BYTES + 1]
        with server.connect() as connection:
            # the answer to the first request tells that the beginning of the second has been read
            connection.sendall(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\nGET /ping HTTP/1.1\r\nhost: x\r\nx-long: 1")
            assert read_until(connection, b"Healthy").startswith(b"HTTP/1.1 200 ")
            connection.sendall(head)
            assert b"HTTP/1.1 431 " in read_to_end(connection)

    def test_a_large_head_within_the_bound_is_served(self, server: RunningServer) -> None:
        request = b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-long: " + b"y" * 60_000 + b"\r\n\r\n"
        assert ask(server.connect, request).startswith(b"HTTP/1.1 200 ")

    def test_a_large_body_does_not_count_as_head(self, server: RunningServer) -> None:
        body = b"{" + b" " * 300_000 + b"}"
        with server.connect() as connection:
            for _ in range(2):
                connection.sendall(post_bytes("/invocations", body))
                assert read_until(connection, b"0: Deep").startswith(b"HTTP/1.1 200 ")

    def test_what_is_not_http_is_400(self, server: RunningServer) -> None:
        assert ask(server.connect, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")

    @table(
        "beginning",
        [b"G", b"POST /invocations HTTP/1.1\r\nhost: x\r\nx-slow: ", post_bytes("/invocations", b"{} ")[:-1]],
        ids=["request line", "head", "body"],
    )
    def test_what_does_not_arrive_in_time_is_408(self, beginning: bytes) -> None:
        with running_server(listen=ListenConfig(port=0, arrival_timeout_s=0.1)) as server, server.connect() as slow:
            slow.sendall(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n" + beginning)
            assert read_to_end(slow).partition(b"Healthy")[2].lstrip(b'"} \r\n').startswith(b"HTTP/1.1 408 ")

    def test_a_connection_on_which_nothing_comes_is_closed(self) -> None:
        with running_server(listen=ListenConfig(port=0, keep_alive_s=1)) as server, server.connect() as idle:
            assert read_to_end(idle) == b""

    def test_a_trickle_of_a_body_does_not_hold_a_connection_for_ever(self) -> None:
        with running_server(listen=ListenConfig(port=0, arrival_timeout_s=0.2)) as server, server.connect() as slow:
            slow.sendall(post_bytes("/invocations", b" " * 100_000).partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
            while not select.select([slow], [], [], 0.02)[0]:  # a byte, as long as there is no answer
                slow.sendall(b" ")
            assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")

    @table("beginning", [b"", b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n"], ids=["first", "next"])
    def test_a_trickle_of_a_head_does_not_hold_a_connection_for_ever(self, beginning: bytes) -> None:
        """Each field comes in time, far from the bound on a head's size: only together they take too long."""
        with running_server(listen=ListenConfig(port=0, arrival_timeout_s=0.2)) as server, server.connect() as slow:
            slow.sendall(beginning + b"GET /ping HTTP/1.1\r\nhost: x\r\n")
            began_s, answers = time.monotonic(), b""
            while b"HTTP/1.1 408 " not in answers:
                assert time.monotonic() < began_s + PATIENCE_S
                if select.select([slow], [], [], 0.02)[0]:
                    piece = slow.recv(1000)
                    assert piece
                    answers += piece
                else:
                    slow.sendall(b"x-slow: y\r\n")
            assert answers.count(b"HTTP/1.1 200 ") == beginning.count(b"GET")

    def test_a_large_body_has_the_time_that_its_size_needs(self) -> None:
        body = b"{" + b" " * (3 * LEAST_BODY_RATE) + b"}"
        request = post_bytes("/invocations", body, "connection: close")
        with running_server(listen=ListenConfig(port=0, arrival_timeout_s=0.3)) as server, server.connect() as slow:
            began_s, place = time.monotonic(), 0
            while place < len(request):
                slow.sendall(request[place : place + 512])
                place += 512
                assert not select.select([slow], [], [], 0.1)[0] or place >= len(request)
            assert time.monotonic() > began_s + 0.5
            assert read_to_end(slow).startswith(b"HTTP/1.1 200 ")

    def test_what_has_come_of_a_body_does_not_let_the_rest_take_for_ever(self) -> None:
        """A megabyte would have bought a quarter of an hour."""
        request = post_bytes("/invocations", b"{" + b" " * 1_000_000 + b"}")
        with running_server(listen=ListenConfig(port=0, arrival_timeout_s=0.2)) as server, server.connect() as slow:
            slow.sendall(request[:-1])
            assert read_to_end(slow).startswith(b"HTTP/1.1 408 ")

    def test_a_client_that_stops_reading_is_dropped_after_a_while(self) -> None:
        with running_server(listen=ListenConfig(port=0, stall_timeout_s=0.1)) as server, server.connect() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            lazy.sendall(post_bytes("/invocations", b'{"stream": true, "padding": 5000000}', "x-request-id: lazy"))
            server.service.journal.wait_for(lambda lines: "end lazy" in lines)
            while server.admission.num_in_flight:  # nothing was read, and still the call ends
                pass

    def test_a_stalled_client_aborts_what_is_still_generated_for_it(self) -> None:
        gate = Gate()
        with running_server(listen=ListenConfig(port=0, stall_timeout_s=0.1)) as server, server.connect() as lazy:
            server.service.script = Script(gates={1: gate, 2: Gate()})
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            lazy.sendall(post_bytes("/invocations", b'{"stream": true, "padding": 9000000}', "x-request-id: lazy"))
            read_until(lazy, b"Deep")  # the first event fills every buffer, the second one has to wait
            gate.open()
            server.service.journal.wait_for(lambda lines: "abort lazy" in lines)
