"""Where requests begin and end, byte by byte: odd heads, trailers, pipelines, answers that come before a body."""

from __future__ import annotations

import itertools
import select
import socket
import time
from collections.abc import Iterator

import pytest

from dragoman.server.app import ServerConfig
from dragoman.server.http import protocol
from dragoman.server.http.protocol import FULL_BYTES, ChunkEnds
from dragoman.server.run import ListenConfig
from tests.support.fake_service import Gate, Script
from tests.support.running_server import RunningServer, post_bytes, read_to_end, read_until, running_server

PING = b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n"
LAST_PING = b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
CHUNKED = b"POST /invocations HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
KEY = "a-key"


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningServer]:
    """A server that asks for a key."""
    with running_server(ServerConfig(api_keys=frozenset({KEY}))) as server:
        yield server


def ask(server: RunningServer, *pieces: bytes) -> bytes:
    """Everything that comes back until the server closes; the pieces arrive one by one."""
    with server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
            select.select([connection], [], [], 0.02 if len(pieces) > 1 else 0)
        return read_to_end(connection)


def sent_until_answered(connection: socket.socket, filler: bytes, most: int) -> int:
    """How many bytes the server takes before it answers or closes, at most so many."""
    connection.setblocking(False)
    count = 0
    while count < most:
        readable, writable, _ = select.select([connection], [connection], [], 10)
        if readable or not writable:
            break
        try:
            count += connection.send(filler)
        except OSError:
            break
    connection.setblocking(True)
    return count


class TestHeads:
    """A head that could be read in two ways is refused, and what follows it is not read."""

    @pytest.mark.parametrize("version", ["1.1", "1.0"])
    def test_a_request_has_one_host_that_is_a_name_or_an_address(self, server: RunningServer, version: str) -> None:
        hosts = ["x", "", "a_b.example:80", "127.0.0.1:8080", "[::1]:80", "xn--fiq228c.example"]
        spoiled = ["x\r\nhost: x", "x\r\nHost: y", 'a"b', "a b", "a/b", "user@x", "x:port", "[::1", "\xe9"]
        for host in hosts:
            head = f"GET /ping HTTP/{version}\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode("latin-1")
            assert ask(server, head).startswith(b"HTTP/1.1 200 "), host
        for host in spoiled:
            head = f"GET /ping HTTP/{version}\r\nhost: {host}\r\n\r\n".encode("latin-1")
            answer = ask(server, head + PING)
            assert answer.startswith(b"HTTP/1.1 400 "), host
            assert answer.count(b"HTTP/1.1") == 1, host
        expected = b"HTTP/1.1 400 " if version == "1.1" else b"HTTP/1.1 200 "
        assert ask(server, f"GET /ping HTTP/{version}\r\nconnection: close\r\n\r\n".encode()).startswith(expected)

    def test_a_body_comes_in_chunks_or_has_a_length_and_nothing_else(self, server: RunningServer) -> None:
        codings = [
            "xchunked",
            "identity",
            "gzip",
            "chunked, chunked",
            "identity, chunked",
            "gzip, chunked",
            "",
            '"chunked"',
        ]
        fields = [f"transfer-encoding: {coding}" for coding in codings]
        fields.append("transfer-encoding: identity\r\ntransfer-encoding: chunked")
        fields.append("transfer-encoding: chunked\r\ntransfer-encoding: chunked")
        upgrade = "connection: upgrade\r\nupgrade: h2c"
        for framing, before in itertools.product(fields, ["", f"{upgrade}\r\n"]):
            head = f"POST /invocations HTTP/1.1\r\nhost: x\r\n{before}{framing}\r\n\r\n".encode()
            answer = ask(server, head + b"2\r\n{}\r\n0\r\n\r\n" + PING)
            assert answer.startswith(b"HTTP/1.1 400 "), framing
            assert b"Healthy" not in answer, framing
        old = CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0")
        assert ask(server, old + b"2\r\n{}\r\n0\r\n\r\n").startswith(b"HTTP/1.1 400 ")

    @pytest.mark.parametrize("version", ["2.0", "0.9", "3.0", "1.2", "9.9"])
    def test_other_versions_of_http_are_refused(self, server: RunningServer, version: str) -> None:
        answer = ask(server, f"GET /ping HTTP/{version}\r\nhost: x\r\n\r\n".encode() + PING)
        assert answer[:13] in (b"HTTP/1.1 505 ", b"HTTP/1.1 400 ")
        assert b"Healthy" not in answer

    def test_nothing_of_it_is_a_traceback(self, server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
        upgrade = "connection: upgrade\r\nupgrade: x"
        for framing in ("transfer-encoding: xchunked", "content-length: 2, 2", "content-length: -1"):
            head = f"POST /invocations HTTP/1.1\r\nhost: x\r\n{upgrade}\r\n{framing}\r\n\r\n".encode()
            assert ask(server, head + b"{}").startswith(b"HTTP/1.1 400 ")
        assert [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"] == []

    def test_empty_lines_alone_hold_no_connection(self) -> None:
        with running_server(listen=ListenConfig(port=0, keep_alive_s=1)) as server, server.connect() as idle:
            idle.sendall(PING)
            read_until(idle, b"Healthy")
            idle.sendall(b"\r\n\r\n")
            assert not read_to_end(idle).strip(b'"} \r\n')


class TestTrailers:
    """Trailers of a request are read over: nothing in the application sees them."""

    @pytest.mark.parametrize("field", [f"authorization: Bearer {KEY}", f"x-api-key: {KEY}"])
    def test_a_key_in_a_trailer_opens_nothing(self, locked: RunningServer, field: str) -> None:
        head, rest = CHUNKED, b"2\r\n{}\r\n0\r\n" + field.encode() + b"\r\n\r\n"
        for pieces in ([head + rest], [head, rest], [PING + head + rest], [PING, head[:20], head[20:], rest]):
            answer = ask(locked, *pieces, LAST_PING)
            assert b"HTTP/1.1 401 " in answer
            assert b"0: Deep" not in answer

    def test_what_is_answered_before_it_is_read_counts_once_as_what_was_answered(self, locked: RunningServer) -> None:
        """The request lacks a key, too, but was refused for its framing: that is no call."""

        def num_calls() -> int:
            with locked.connect() as connection:
                connection.sendall(
                    b"GET /metrics HTTP/1.1\r\nhost: x\r\napi-key: %s\r\nconnection: close\r\n\r\n" % KEY.encode()
                )
                text = read_to_end(connection).decode()
            lines = (line for line in text.splitlines() if line.startswith("dragoman_requests_total{"))
            return sum(int(float(line.split()[-1])) for line in lines)

        before = num_calls()
        assert ask(locked, CHUNKED + b"2\r\n{}\r\n0\r\n\r\n", LAST_PING).startswith(b"HTTP/1.1 401 ")
        for rest in (b"zz\r\n", b"0\r\ncontent-length: 5\r\n\r\n"):
            assert ask(locked, CHUNKED + rest).startswith(b"HTTP/1.1 400 ")
        assert num_calls() == before + 1

    def test_what_a_trailer_says_changes_nothing(self, server: RunningServer) -> None:
        trailers = b"x-request-id: late\r\nx-dragoman-strict: nonsense\r\nhost: y\r\ncontent-type: nonsense\r\n"
        trailers += b"connection: close\r\nconnection: upgrade\r\nupgrade: h2c\r\n"
        with server.connect() as connection:
            for _ in range(2):  # and the connection is kept
                connection.sendall(CHUNKED + b"2\r\n{}\r\n0\r\n" + trailers + b"\r\n")
                answer = read_until(connection, b"0: Deep")
                assert answer.startswith(b"HTTP/1.1 200 ")
                assert b"late" not in answer

    @pytest.mark.parametrize(
        ("beginning", "filler"),
        [
            (b"2\r\n{}\r\n0\r\n", b"a:\r\n" * 10_000),
            (b"2\r\n{}\r\n0\r\na: ", b"b" * 40_000),
            (b"2\r\n{}\r\n", b"0" * 40_000),
            (b"2\r\n{}\r\n1;", b"x=y;" * 10_000),
            (b"2\r\n{ \r\n", b"1;xxxxxxxxxxxxxxxx\r\n \r\n" * 2000),
        ],
        ids=["many trailers", "a long trailer", "zeros before a size", "a long chunk extension", "many extensions"],
    )
    def test_endless_ones_end_the_connection(self, server: RunningServer, beginning: bytes, filler: bytes) -> None:
        with server.connect() as connection:
            connection.sendall(CHUNKED + beginning)
            assert sent_until_answered(connection, filler, 64 << 20) < 16 << 20  # most of it lies in the kernel
            assert connection.recv(65_536).startswith(b"HTTP/1.1 431 ")
        assert ask(server, LAST_PING).startswith(b"HTTP/1.1 200 ")

    def test_small_chunks_may_be_many_but_not_for_ever(self, server: RunningServer) -> None:
        body = b"{" + b" " * 50_000 + b"}"
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
        with server.connect() as connection:
            connection.sendall(CHUNKED + chunks)
            assert read_until(connection, b"0: Deep").startswith(b"HTTP/1.1 200 ")
            connection.sendall(CHUNKED)
            assert sent_until_answered(connection, b"1\r\n \r\n" * 10_000, 64 << 20) < 16 << 20
            assert b"HTTP/1.1 431 " in connection.recv(65_536)

    @pytest.mark.parametrize(
        "head", [b"", b"g", b"0x2", b"-2", b" 2", b"2 ", b"2\t;a", b"2,", b"1" * 17, b"2\n", b"\x00"]
    )
    def test_what_is_no_size_of_a_chunk_ends_the_connection(self, server: RunningServer, head: bytes) -> None:
        answer = ask(server, CHUNKED + head + b"\r\n{}\r\n0\r\n\r\n" + PING)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"Healthy" not in answer

    def test_the_end_of_a_body_is_found_in_one_go_whatever_is_in_it(self) -> None:
        """Ends of lines could each be the end of a request, were they not inside of a chunk."""
        inside = b"\r\n\r\n" * 100
        body = b"%x;a=b\r\n%s\r\n1\r\n0\r\n0\r\na: b\r\n\r\n" % (len(inside), inside)
        assert ChunkEnds().end_in(bytearray(body + PING)) == len(body)
        for size in (1, 2, 5, 399, len(body)):
            ends, waiting, count = ChunkEnds(), bytearray(), 0
            for begin in range(0, len(body), size):
                waiting += body[begin : begin + size]
                end = ends.end_in(waiting)
                count += end
                del waiting[:end]
            assert count == len(body)


BEHIND = {
    "nothing": b"",
    "a request": PING,
    "several": post_bytes("/invocations", b"{}") + PING,
    "half a head": PING[:20],
    "half a body": post_bytes("/invocations", b"{} ")[:-1],
    "trailers": CHUNKED + b"0\r\na: b\r\n\r\n",
    "what is no HTTP": b"\x00\r\n\r\n",
    "more than is read": PING * (8 * FULL_BYTES // len(PING)),
}


class TestPipelines:
    @pytest.mark.parametrize("body", [b"{}", b'{"stream": true}'], ids=["whole", "stream"])
    @pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
    @pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
    def test_a_client_that_leaves_ends_its_generation_whatever_it_sent_behind(
        self, server: RunningServer, body: bytes, behind: bytes, is_reset: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(protocol, "LOOK_S", 0.02)
        server.service.script = Script(gates={2: Gate()})
        name = f"leaver-{body!r}-{hash(behind)}-{is_reset}".replace("'", "").replace('"', "").replace(" ", "")
        with server.connect() as connection:
            if is_reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, protocol._RESET_ON_CLOSE)
            connection.sendall(post_bytes("/invocations", body, f"x-request-id: {name}"))
            connection.sendall(behind)
            server.service.journal.wait_for(lambda lines: f"pause {name}" in lines)
        server.service.journal.wait_for(lambda lines: f"abort {name}" in lines)

    def test_a_client_that_sends_on_and_on_behind_a_request_is_dropped(
        self, server: RunningServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(protocol, "LOOK_S", 0.01)
        server.service.script = Script(gates={2: Gate()})
        with server.connect() as connection:
            connection.sendall(post_bytes("/invocations", b"{}", "x-request-id: hasty"))
            assert sent_until_answered(connection, PING * 1000, 64 << 20) < 32 << 20  # what the kernel's buffers take
            server.service.journal.wait_for(lambda lines: "abort hasty" in lines)

    @pytest.mark.parametrize(
        "behind", [b"GET /ping HTTP/1.1\r\nhost: x\r\nx-slow: ", b"\x00 nonsense\r\n\r\n", CHUNKED + b"x"]
    )
    def test_what_is_behind_a_request_does_not_change_its_answer(self, behind: bytes) -> None:
        """A head that is late, or no HTTP, is answered after the answer before it."""
        gate = Gate()
        with (
            running_server(listen=ListenConfig(port=0, arrival_timeout_s=0.1)) as server,
            server.connect() as connection,
        ):
            server.service.script = Script(gates={2: gate})
            connection.sendall(post_bytes("/invocations", b'{"stream": true}', "x-request-id: first") + behind)
            server.service.journal.wait_for(lambda lines: "pause first" in lines)
            assert not select.select([connection], [], [], 0)[0] or read_until(connection, b"0:")
            time.sleep(0.3)  # three times what a head may take
            gate.open()
            answer = read_to_end(connection)
            first, end, second = answer.partition(b"the end\n\r\n0\r\n\r\n")
            assert end
            assert b"HTTP/1.1 4" not in first
            assert second.startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 400 "))

    @pytest.mark.parametrize("size", [1, 3, 7, 64, 100_000])
    def test_requests_of_every_kind_are_told_apart_however_their_bytes_come(
        self, server: RunningServer, size: int
    ) -> None:
        tricky = b"\r\n\r\n0\r\n\r\nGET /ping HTTP/1.1\r\n\r\n"
        requests = [
            b"\r\n" + PING,
            post_bytes("/invocations", b'{"stream": true}'),
            post_bytes("/v1/none", tricky),  # answered before its body is here, which is short
            CHUNKED + b"%x\r\n%s\r\n0\r\nx-a: b\r\n\r\n" % (len(tricky), tricky),
            CHUNKED + b"1\r\n{\r\n1;a=b\r\n}\r\n0\r\n\r\n",
            PING.replace(b"host", b"connection: upgrade\r\nupgrade: h2c\r\nhost"),
            post_bytes("/invocations", b"{}", "upgrade: h2c", "connection: upgrade"),
            LAST_PING,
        ]
        sent = b"".join(requests)
        with server.connect() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for begin in range(0, len(sent), size):
                connection.sendall(sent[begin : begin + size])
            answer = read_to_end(connection)
        statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
        assert statuses == [200, 200, 404, statuses[3], 200, 200, 200, 200]
        assert 400 <= statuses[3] < 500
        assert answer.count(b"Healthy") == 3


class TestEarlyAnswers:
    """An answer that does not wait for the body ends the connection; the body is not read on."""

    def refused(self, server: RunningServer, request: bytes, filler: bytes) -> tuple[int, bytes]:
        with server.connect() as connection:
            connection.sendall(request)
            answer = connection.recv(65_536)
            count = sent_until_answered_never(connection, filler)
            return count, answer

    def test_a_body_is_not_read_on_after_its_request_was_answered(
        self, locked: RunningServer, server: RunningServer
    ) -> None:
        chunk = b"%x\r\n%s\r\n" % (60_000, b"x" * 60_000)
        for refusing, path, status in (
            (locked, "/invocations", b"401"),
            (server, "/none", b"404"),
            (server, "/ping", b"405"),
        ):
            for framing, filler in (
                ("content-length: 900000000", b"x" * 60_000),
                ("transfer-encoding: chunked", chunk),
            ):
                method = "PUT" if path == "/ping" else "POST"
                head = f"{method} {path} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n".encode()
                count, answer = self.refused(refusing, head, filler)
                assert answer.startswith(b"HTTP/1.1 " + status)
                assert b"\r\nconnection: close\r\n" in answer
                assert count < 32 << 20  # what the kernel's buffers take

    def test_a_client_that_sends_all_first_sees_the_answer(self, locked: RunningServer) -> None:
        request = post_bytes("/invocations", b" " * 200_000)
        head, _, body = request.partition(b"\r\n\r\n")
        with locked.connect() as connection:
            connection.sendall(head + b"\r\n\r\n")
            select.select([connection], [], [], 10)
            connection.sendall(body)
            assert read_to_end(connection).startswith(b"HTTP/1.1 401 ")

    def test_a_body_that_is_here_keeps_the_connection(self, locked: RunningServer) -> None:
        with locked.connect() as connection:
            for _ in range(2):
                connection.sendall(post_bytes("/invocations", b"{}"))
                answer = read_until(connection, b"API key")
                assert answer.startswith(b"HTTP/1.1 401 ")
                assert b"connection: close" not in answer


def sent_until_answered_never(connection: socket.socket, filler: bytes) -> int:
    """How many bytes the other side takes until it takes no more for a moment, or closes."""
    connection.setblocking(False)
    count = 0
    while count < 256 << 20 and select.select([], [connection], [], 0.1)[1]:
        try:
            count += connection.send(filler)
        except OSError:
            break
    return count
