"""A picture at an address that is allowed arrives; hosts that are slow, endless, lying or broken do no harm."""

from __future__ import annotations

import gzip
import itertools
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.pictures.addresses import Address
from dragoman.pictures.fetching import Fetcher, SystemNetwork
from dragoman.pictures.limits import PictureFault, PictureLimits
from tests.pictures.drawing import png
from tests.pictures.hosts import (
    OTHER_PUBLIC,
    PUBLIC,
    Answer,
    MadeUpNetwork,
    client_tls,
    hosting,
    ok,
    redirect,
    sends,
    server_tls,
)
from tests.support.tables import table
from tests.support.tiers import examples

NAME = "messages[0].content[1].image_url.url"
HOST = "pictures.example"
LIMITS = PictureLimits(max_bytes=50_000, timeout_s=30, allowed_hosts=("*",))
FAULT = f"{NAME} must be an image at a public address, sent within 30 seconds; it could not be fetched"


def fetched(
    answers: Answer | dict[str, Answer], limits: PictureLimits = LIMITS, url: str = f"http://{HOST}/a.png"
) -> bytes:
    with hosting(answers) as host:
        network = MadeUpNetwork({HOST: [[PUBLIC]]}, {PUBLIC: host.port})
        return Fetcher(limits, network).begin(url, NAME).run()


def fault_of(run: Callable[[], Any]) -> PictureFault:
    with pytest.raises(PictureFault) as caught:
        run()
    assert caught.value.param == NAME
    assert "\n" not in caught.value.message
    return caught.value


def refused(answers: Answer | dict[str, Answer], limits: PictureLimits = LIMITS) -> PictureFault:
    return fault_of(lambda: fetched(answers, limits))


class TestArrives:
    def test_a_picture(self) -> None:
        assert fetched(ok(png())) == png()

    def test_what_the_host_is_told(self) -> None:
        with hosting(ok(png())) as host:
            network = MadeUpNetwork({HOST: [[PUBLIC]]}, {PUBLIC: host.port})
            Fetcher(LIMITS, network).begin(f"HTTP://{HOST.upper()}/a%20b/c.png?d=e&f=%C3%A9#g", NAME).run()
            [head] = host.heads
        line, *fields = head.strip().split("\r\n")
        assert line == "GET /a%20b/c.png?d=e&f=%C3%A9 HTTP/1.1"
        assert f"Host: {HOST}" in fields
        assert "Accept-Encoding: identity" in fields
        assert not any(field.lower().startswith(("cookie", "authorization", "proxy")) for field in fields)

    def test_no_proxy_of_the_environment_is_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with hosting(ok(b"of the proxy")) as proxy:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            assert fetched(ok(png())) == png()
            assert proxy.num_connections == 0

    def test_in_chunks_or_without_a_length(self) -> None:
        head = b"HTTP/1.1 200 OK\r\n"
        assert (
            fetched(sends(head + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"))
            == b"abcde"
        )
        assert fetched(sends(head + b"\r\nabc", b"de")) == b"abcde"
        assert fetched(ok(png(), "Connection: close")) == png()

    def test_whatever_it_is_called(self) -> None:
        assert fetched(ok(png(), "Content-Type: text/html")) == png()

    @table("status", [301, 302, 303, 307, 308])
    def test_behind_redirects(self, status: int) -> None:
        answers = {
            "/a.png": redirect("/b", status),
            "/b": redirect("c/d?e", status),
            "/c/d?e": redirect(f"//{HOST}/f", status),
            "/f": ok(png()),
        }
        assert fetched(answers) == png()

    def test_at_the_first_address_that_answers(self) -> None:
        with hosting(ok(png())) as host:
            network = MadeUpNetwork({HOST: [[OTHER_PUBLIC, PUBLIC]]}, {PUBLIC: host.port})
            assert Fetcher(LIMITS, network).begin(f"http://{HOST}/", NAME).run() == png()
        assert network.connected == [OTHER_PUBLIC, PUBLIC]

    def test_at_an_address_without_a_name(self) -> None:
        with hosting(ok(png())) as host:
            network = MadeUpNetwork({}, {PUBLIC: host.port, OTHER_PUBLIC: host.port})
            fetcher = Fetcher(LIMITS, network)
            assert fetcher.begin(f"http://{PUBLIC}/", NAME).run() == png()
            assert fetcher.begin(f"http://[{OTHER_PUBLIC}]/", NAME).run() == png()
            assert f"Host: [{OTHER_PUBLIC}]" in host.heads[1]
        assert network.resolved == []

    def test_over_tls(self) -> None:
        with hosting(ok(png()), server_tls()) as host:
            network = MadeUpNetwork({HOST: [[PUBLIC]]}, {PUBLIC: host.port})
            assert Fetcher(LIMITS, network, client_tls).begin(f"https://{HOST}/", NAME).run() == png()
            assert f"Host: {HOST}\r\n" in host.heads[0]


class TestTls:
    def run(self, url: str, trusts: Callable[..., Any], answer: Answer) -> tuple[PictureFault, list[str]]:
        with hosting(answer, server_tls()) as host:
            names = {HOST: [[PUBLIC]], "other.example": [[PUBLIC]]}
            fetcher = Fetcher(LIMITS, MadeUpNetwork(names, {PUBLIC: host.port}), trusts)
            return fault_of(fetcher.begin(url, NAME).run), host.heads

    def test_a_certificate_that_nobody_vouches_for_is_refused(self) -> None:
        fault, heads = self.run(f"https://{HOST}/", ssl.create_default_context, ok(png()))
        assert (fault.message, heads) == (FAULT, [])

    def test_a_certificate_of_another_host_is_refused(self) -> None:
        fault, heads = self.run("https://other.example/", client_tls, ok(png()))
        assert (fault.message, heads) == (FAULT, [])

    def test_a_redirect_from_https_to_http_is_refused(self) -> None:
        fault, heads = self.run(f"https://{HOST}/", client_tls, redirect(f"http://{HOST}/"))
        assert (fault.message, len(heads)) == (FAULT, 1)


class TestHosts:
    """Hosts that send what they should not. The client learns one sentence, whatever it was."""

    BROKEN = (
        sends(b""),
        sends(b"SSH-2.0-OpenSSH_9.2\r\n"),
        sends(b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nabc"),
        sends(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\n\r\nabc"),
        sends(b"HTTP/1.1 500 \r\n\r\n"),
        sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"),
        sends(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n"),
        sends(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n"),
        ok(b"abc", length=10),
        ok(gzip.compress(b"abc"), "Content-Encoding: gzip"),
        ok(b"abc", "Content-Encoding: br"),
        redirect(""),
        redirect("/a.png"),
        sends(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"),
        redirect("http://unknown.example/"),
    )

    @table("number", range(len(BROKEN)))
    def test_the_client_learns_one_sentence(self, number: int) -> None:
        fault = refused(self.BROKEN[number])
        assert (fault.message, fault.problem) == (FAULT, "fetch")

    def test_no_host_no_address_no_port(self) -> None:
        network = MadeUpNetwork({"empty.example": [[]], "closed.example": [[PUBLIC]]})
        fetcher = Fetcher(LIMITS, network)
        for name in ("unknown", "empty", "closed"):
            assert fault_of(fetcher.begin(f"http://{name}.example/", NAME).run).message == FAULT

    def test_the_log_says_why_and_keeps_what_may_be_secret(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "dragoman.pictures")
        fault_of(lambda: fetched(sends(b"HTTP/1.1 403 Forbidden\r\n\r\n"), url=f"http://{HOST}/a?signature=s3cret"))
        assert caplog.messages == [f"{NAME}: no image from http://{HOST}:80: status 403"]

    def test_what_a_host_says_cannot_write_lines_of_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "dragoman.pictures")
        for answer in (
            sends(b"\x1b[2Jnonsense\rINFO all is well\r\n"),
            redirect("http://\x1b[2J/"),
            ok(b"", "Content-Encoding: \x1b[2J"),
        ):
            refused(answer)
        assert len(caplog.messages) == 3
        assert all(message.isprintable() for message in caplog.messages)

    def test_as_many_redirects_as_are_allowed(self) -> None:
        answers = {"/a.png": redirect("/1"), **{f"/{n}": redirect(f"/{n + 1}") for n in range(1, 5)}, "/3": ok(png())}
        assert fetched(answers) == png()
        answers["/3"] = redirect("/4")
        answers["/4"] = ok(png())
        assert refused(answers).message == FAULT


class OneAnswer(MadeUpNetwork):
    """Every connection leads to these bytes and its end."""

    def __init__(self, answer: bytes) -> None:
        super().__init__({HOST: [[PUBLIC]]})
        self._answer = answer
        self._kept: list[socket.socket] = []  # open, so that requests can be sent

    def connect(self, address: Address, port: int, timeout_s: float) -> socket.socket:
        """As `Network`."""
        near, far = socket.socketpair()
        far.sendall(self._answer)
        far.shutdown(socket.SHUT_WR)
        self._kept.append(far)
        return near

    def close(self) -> None:
        """Close the other ends."""
        for far in self._kept:
            far.close()


ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-Y: z\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nZ: z\r\n\r\n",
    b"HTTP/1.0 302 Found\r\nLocation: //pictures.example:80/b?c#d\r\nContent-Encoding: identity\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: multipart/mixed; boundary=a\r\n\r\n--a",
)


@settings(max_examples=examples(300))
@given(st.data())
def test_a_mutated_answer_gives_bytes_or_a_fault(data: st.DataObject) -> None:
    answer = bytearray(data.draw(st.sampled_from(ANSWERS)))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(answer)))
        answer[place : place + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    network = OneAnswer(bytes(answer))
    outcome: bytes | PictureFault
    try:
        outcome = Fetcher(LIMITS, network).begin(f"http://{HOST}/", NAME).run()
    except PictureFault as fault:
        outcome = fault
    network.close()
    assert isinstance(outcome, bytes) or outcome.message in (FAULT, TestSize.TOO_LARGE)


class TestSize:
    TOO_LARGE = f"{NAME} must be an image of at most 50000 bytes, got more"

    def test_at_the_limit_and_past_it(self) -> None:
        assert len(fetched(ok(bytes(50_000)))) == 50_000
        fault = refused(ok(bytes(50_001)))
        assert (fault.message, fault.problem) == (self.TOO_LARGE, "size")

    def test_a_length_that_is_too_much_is_believed(self) -> None:
        with hosting({}) as host:
            host.answer_only(b"HTTP/1.1 200 OK\r\nContent-Length: 50001\r\n\r\n")
            fetcher = Fetcher(LIMITS, MadeUpNetwork({HOST: [[PUBLIC]]}, {PUBLIC: host.port}))
            assert fault_of(fetcher.begin(f"http://{HOST}/", NAME).run).message == self.TOO_LARGE

    @table(
        "head",
        [
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n",
        ],
    )
    def test_an_endless_answer_ends_at_the_limit(self, head: bytes) -> None:
        sent = 0

        def answer(connection: socket.socket) -> None:
            nonlocal sent
            connection.sendall(head)
            while True:
                connection.sendall(bytes(10_000))  # fails when the other side closes
                sent += 10_000

        assert refused(answer).message == self.TOO_LARGE
        assert sent < 50_000_000  # what the machine's own buffers hold

    def test_an_endless_head_ends_too(self) -> None:
        def answer(connection: socket.socket) -> None:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            while True:
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

        assert refused(answer).problem in ("size", "fetch")

    def test_chunks_of_single_bytes_do_not_count_their_heads(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert fetched(sends(head, b"1\r\na\r\n" * 20_000, b"0\r\n\r\n")) == b"a" * 20_000


def ticking() -> Callable[[], float]:
    """A clock by which every look at it takes a second."""
    ticks: Iterator[int] = itertools.count()
    return lambda: float(next(ticks))


class TestTime:
    def test_a_host_that_drips_bytes_is_left_at_the_deadline(self) -> None:
        def drip(connection: socket.socket) -> None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n")
            while True:
                connection.sendall(b"x")

        with hosting(drip) as host:
            network = MadeUpNetwork({HOST: [[PUBLIC]]}, {PUBLIC: host.port})
            fetcher = Fetcher(LIMITS, network, clock=ticking())
            assert fault_of(fetcher.begin(f"http://{HOST}/", NAME).run).message == FAULT

    def test_redirects_share_the_deadline(self) -> None:
        answers = {"/": redirect("/1"), **{f"/{n}": redirect(f"/{n + 1}") for n in range(1, 100)}}
        limits = PictureLimits(timeout_s=30, max_redirects=100, allowed_hosts=("*",))
        with hosting(answers) as host:
            network = MadeUpNetwork({HOST: [[PUBLIC]]}, {PUBLIC: host.port})
            fetcher = Fetcher(limits, network, clock=ticking())
            assert fault_of(fetcher.begin(f"http://{HOST}/", NAME).run).message == FAULT
            assert 3 < len(host.heads) <= 30

    @table("first", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"])
    def test_a_host_that_falls_silent_is_left_at_the_deadline(self, first: bytes) -> None:
        limits = PictureLimits(timeout_s=0.2, allowed_hosts=("*",))
        with hosting({}) as host:
            host.answer_only(first)
            fetcher = Fetcher(limits, MadeUpNetwork({HOST: [[PUBLIC]]}, {PUBLIC: host.port}))
            assert "within 0.2 seconds" in fault_of(fetcher.begin(f"http://{HOST}/", NAME).run).message

    def test_a_host_that_does_not_shake_hands_is_left_at_the_deadline(self) -> None:
        limits = PictureLimits(timeout_s=0.2, allowed_hosts=("*",))
        with hosting({}) as host:  # which waits for a request in the clear
            fetcher = Fetcher(limits, MadeUpNetwork({HOST: [[PUBLIC]]}, {PUBLIC: host.port}), client_tls)
            assert "within 0.2 seconds" in fault_of(fetcher.begin(f"https://{HOST}/", NAME).run).message

    def test_a_fetch_that_nobody_waits_for_begins_nothing(self) -> None:
        network = MadeUpNetwork({HOST: [[PUBLIC]]})
        fetch = Fetcher(LIMITS, network).begin(f"http://{HOST}/", NAME)
        fetch.end()
        fault_of(fetch.run)
        assert network.connected == []


def test_the_machine_resolves_names_and_connects() -> None:
    network = SystemNetwork()
    assert all(address.is_loopback for address in network.resolve("localhost", 80))
    with hosting(ok(b"")) as host:
        [address] = network.resolve("127.0.0.1", host.port)
        with network.connect(address, host.port, 30) as connected:
            assert connected.getpeername() == ("127.0.0.1", host.port)
    with pytest.raises(OSError, match=r".+"):
        network.resolve("does-not-exist.invalid", 80)
