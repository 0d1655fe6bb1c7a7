"""The bodies of all calls together take a bounded amount of memory, from the first byte until the call has ended."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dragoman.pictures.memory import PictureMemory
from dragoman.server.app import ServerConfig
from tests.support.fake_service import Gate, Script
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, post_bytes, read_until, running_server

MOST = 100_000
LARGE = b'{"inputs": "a"' + b" " * 60_000 + b"}"


@pytest.fixture(scope="module")
def small() -> Iterator[RunningServer]:
    """A server that holds few bytes."""
    with running_server(ServerConfig(max_body_memory_bytes=MOST), dialects=real_dialects()) as server:
        yield server


def ask(server: RunningServer, body: bytes = LARGE, path: str = "/invocations") -> httpx.Response:
    return httpx.post(f"{server.url}{path}", content=body, headers={"content-type": "application/json"})


def wait_until_refused(server: RunningServer) -> httpx.Response:
    """The answer, once the bytes of somebody else have come in."""
    while (answer := ask(server)).status_code == 200:
        pass
    return answer


def wait_until_taken(server: RunningServer) -> None:
    """Return once there is room again."""
    while ask(server).status_code != 200:
        pass


def unfinished(server: RunningServer) -> socket.socket:
    """A connection on which most of a large body has been sent."""
    connection = server.connect()
    connection.sendall(post_bytes("/invocations", LARGE, "content-type: application/json")[:-10])
    return connection


def test_a_body_that_is_still_on_its_way_counts(small: RunningServer) -> None:
    small.service.script = Script()
    with unfinished(small) as connection:
        refused = wait_until_refused(small)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert f"{MOST} allowed (--max-body-memory)" in refused.text
        assert ask(small, path="/v1/completions").status_code == 429  # in the API's own words
        assert ask(small, b'{"inputs": "a"}').status_code == 200
        with small.connect() as other:  # nothing of its body is needed to refuse it
            other.sendall(post_bytes("/invocations", LARGE).partition(b"{")[0])
            assert read_until(other, b"\r\n\r\n").startswith(b"HTTP/1.1 503 ")
        connection.sendall(LARGE[-10:])
        assert read_until(connection, b"generated_text").startswith(b"HTTP/1.1 200 ")
    wait_until_taken(small)


def test_what_bodies_and_pictures_hold_is_told(small: RunningServer) -> None:
    def told() -> tuple[float, float]:
        families = text_string_to_metric_families(httpx.get(f"{small.url}/metrics").text)
        values = {family.name: family.samples[0].value for family in families if family.name.endswith("_memory_bytes")}
        return values["dragoman_body_memory_bytes"], values["dragoman_image_memory_bytes"] - others

    others = 0.0
    small.service.script = Script()
    wait_until_taken(small)
    gc.collect()
    others = told()[1]  # what earlier tests of this process have left
    pictures = PictureMemory()
    with asyncio.run(pictures.sent.lend(4_000)) as first, asyncio.run(pictures.pictures.lend(300)):
        with unfinished(small):
            while told() != (len(LARGE) - 10, 4_300):
                pass
        first.give_back()
        while told() != (0, 300):
            pass
    assert told() == (0, 0)


def test_a_client_that_leaves_makes_room(small: RunningServer) -> None:
    small.service.script = Script()
    with unfinished(small):
        wait_until_refused(small)
    wait_until_taken(small)


@pytest.mark.parametrize("more", [(), ("x-synchronous: false",)], ids=["waiting", "later"])
def test_a_body_counts_until_its_call_has_ended(small: RunningServer, more: tuple[str, ...]) -> None:
    gate = Gate()
    small.service.script = Script(gates={0: gate})
    small.service.journal.write(f"next {more}")
    with small.connect() as connection:
        connection.sendall(post_bytes("/invocations", LARGE, "content-type: application/json", *more))
        if more:
            assert read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")
        small.service.journal.wait_for(lambda lines: lines[-1].startswith("pause"))
        small.service.script = Script()
        assert ask(small).status_code == 503
        gate.open()
        wait_until_taken(small)


def test_one_alone_may_have_more(small: RunningServer) -> None:
    small.service.script = Script()
    wait_until_taken(small)
    assert ask(small, LARGE[:-1] + b" " * MOST + b"}").status_code == 200


def test_bodies_in_chunks_count_as_they_come(small: RunningServer) -> None:
    small.service.script = Script()
    with unfinished(small), small.connect() as other:
        wait_until_refused(small)
        other.sendall(b"POST /invocations HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        other.sendall(b"%x\r\n%s\r\n" % (len(LARGE), LARGE))  # and no end
        assert read_until(other, b"\r\n\r\n").startswith(b"HTTP/1.1 503 ")
