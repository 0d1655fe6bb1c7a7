"""What stands between clients and the server, or lies on the way: packed bodies, slashes too many, proxies that gather."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

import httpx
import pytest

from dragoman.errors import EngineFailed, InvalidParameter
from dragoman.server.admission import Admission
from dragoman.server.app import ServerConfig
from dragoman.server.generation.prepare import ServiceLimits
from dragoman.server.generation.service import Service
from dragoman.server.registry import ServedModel
from dragoman.types import EngineOutput, EngineRequest
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import FakeEngine, saying
from tests.support.fake_service import Gate
from tests.support.real_dialects import real_dialects
from tests.support.running_server import running_server
from tests.support.tables import table

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BODY = json.dumps({"model": "bytes", "prompt": "Hi", "max_tokens": 3}).encode()
MOST = 3_000_000


class HeldEngine(FakeEngine):
    """Generates nothing until the gate is open, and then raises `failure` if there is one."""

    def __init__(self) -> None:
        super().__init__(saying("Hello"))
        self.gate = Gate()
        self.gate.open()
        self.failure: Exception | None = None

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """The outputs, once they are let through."""
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        async for output in super().generate(request):
            yield output


@contextmanager
def serving(limits: ServiceLimits | None = None) -> Iterator[tuple[httpx.Client, HeldEngine]]:
    """A client of a server with the model `bytes`."""
    engine, dialects = HeldEngine(), real_dialects()
    service = Service(name="bytes", engine=engine, tokenizer=ByteTokenizer(), limits=limits)
    with running_server(ServerConfig(max_request_size_bytes=MOST), dialects=dialects) as server:
        server.registry.add(ServedModel("bytes", service, engine, dialects, Admission("bytes")))
        with httpx.Client(base_url=server.url) as client:
            yield client, engine


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving() as (client, _):
        yield client


def post(client: httpx.Client, body: bytes, coding: str = "", path: str = "/v1/completions") -> httpx.Response:
    """The answer to a body that is packed so."""
    headers = {"content-type": "application/json", **({"content-encoding": coding} if coding else {})}
    return client.post(str(client.base_url).rstrip("/") + path, content=body, headers=headers)


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def wide_zstd() -> bytes:
    """A frame that asks for 128 MB of memory."""
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    return packer.compress(BODY) + packer.flush()


def letters(size: int) -> bytes:
    """A text without any order."""
    return bytes(ord("a") + zlib.crc32(b"%d" % number) % 26 for number in range(size))


def padded(size: int) -> bytes:
    """The body with as many bytes, most of which are blanks."""
    return BODY + b" " * (size - len(BODY))


def test_packed_bodies_are_unpacked(client: httpx.Client) -> None:
    expected = post(client, BODY).json()["choices"]
    noise = letters(40_000)  # packs to more than is unpacked in place
    long = json.dumps({"model": "bytes", "prompt": "Hi", "max_tokens": 3, "user": noise.decode()}).encode()
    assert len(gzip.compress(long, 1)) > 10_000
    halves = gzip.compress(BODY[:9]) + gzip.compress(BODY[9:])
    frames = zstd.compress(BODY[:9]) + zstd.compress(BODY[9:])
    for coding, packed in (
        ("gzip", gzip.compress(BODY)), ("X-GZIP", gzip.compress(BODY)), ("gzip", halves), ("gzip", gzip.compress(long, 1)),
        ("deflate", zlib.compress(BODY)), ("deflate", raw_deflate(BODY)), ("identity", BODY), ("gzip", b""),
        ("zstd", zstd.compress(BODY)), ("zstd", frames), ("zstd", zstd.compress(long)),
    ):  # fmt: skip
        answer = post(client, packed, coding)
        if packed:
            assert answer.json()["choices"] == expected, (coding, answer.text)
        else:
            assert answer.status_code == 400


@table(
    ("coding", "body", "status", "words"),
    [
        ("br", b"x", 415, "Content-Encoding must be gzip, deflate or zstd, got 'br'"),
        ("zstd", BODY, 400, "The body is not zstd, although Content-Encoding says so"),
        ("zstd", zstd.compress(BODY)[:-3], 400, "its end is missing"),
        ("zstd", zstd.compress(b"") * 17, 400, "bytes after the end of its"),
        ("zstd", zstd.compress(padded(MOST + 1)), 413, "unpacked, more than 100 times what it has packed"),
        ("zstd", wide_zstd(), 400, "The body is not zstd, although Content-Encoding says so"),
        ("gzip, gzip", b"x", 415, "got 'gzip, gzip'"),
        ("gzip", BODY, 400, "The body is not gzip, although Content-Encoding says so"),
        ("gzip", gzip.compress(BODY)[:-3], 400, "its end is missing"),
        ("deflate", zlib.compress(BODY) + b"x", 400, "bytes after the end of its"),
        ("gzip", gzip.compress(b"") * 17, 400, "bytes after the end of its"),
        ("gzip", gzip.compress(padded(MOST + 1), 1), 413, "unpacked, more than 100 times what it has packed"),
        ("gzip", gzip.compress(padded(MOST + 1), 0), 413, ""),
    ],
)
def test_what_is_not_taken_is_refused_in_the_words_of_the_api(
    coding: str, body: bytes, status: int, words: str, client: httpx.Client
) -> None:
    answer = post(client, body, coding)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
    assert answer.headers.get("accept-encoding") == ("gzip, deflate, zstd" if status == 415 else None)
    assert post(client, body, coding, "/generate").status_code == {400: 422}.get(status, status)


def test_a_body_that_is_too_large_unpacked_is_refused_as_if_it_had_come_so(client: httpx.Client) -> None:
    answer = post(client, gzip.compress(letters(100_000) * 40, 1), "gzip")
    assert (answer.status_code, "unpacked, at most 3000000 are allowed" in answer.text) == (413, True)


def test_slashes_too_many_mean_one(client: httpx.Client) -> None:
    expected = post(client, BODY).json()["choices"]
    for path in ("//v1/completions", "/v1//completions", "///v1///completions"):
        assert post(client, BODY, path=path).json()["choices"] == expected
    sent = post(client, b'{"inputs": "Hi"}', path="//generate_stream?model_name=bytes")
    assert sent.headers["content-type"].startswith("text/event-stream")
    assert post(client, BODY, path="//v1//nothing").status_code == 404


def test_a_stream_asks_proxies_not_to_gather_it(client: httpx.Client) -> None:
    for path, body in (
        ("/v1/completions", {"model": "bytes", "prompt": "Hi", "stream": True}),
        ("/generate_stream?model_name=bytes", {"inputs": "Hi"}),
        ("/predictions/bytes", {"inputs": "Hi", "stream": True}),
    ):
        assert client.post(path, json=body).headers["x-accel-buffering"] == "no"
    assert "x-accel-buffering" not in post(client, BODY).headers


STREAMS = (
    ("/v1/completions", {"model": "bytes", "prompt": "Hi", "stream": True}),
    ("/predictions/bytes", {"inputs": "Hi", "stream": True}),
    ("/generate_stream?model_name=bytes", {"inputs": "Hi"}),
)


def test_the_head_of_a_stream_comes_before_its_first_token_once_it_is_not_refused_any_more() -> None:
    with serving(ServiceLimits(head_after_s=0.05)) as (client, engine):
        for path, body in STREAMS:
            engine.gate = Gate()
            with client.stream("POST", path, json=body) as answer:  # returns with the head: the gate is still closed
                assert answer.status_code == 200
                engine.gate.open()
                assert "".join(answer.iter_text())
            engine.gate = Gate()
            engine.failure = EngineFailed("it broke")
            with client.stream("POST", path, json=body) as answer:
                assert answer.status_code == 200
                engine.gate.open()
                assert "it broke" in "".join(answer.iter_text())
            engine.failure = None


def test_what_is_refused_at_once_or_may_wait_too_long_keeps_its_status() -> None:
    with serving(ServiceLimits(queue_timeout_s=None, head_after_s=30)) as (client, engine):
        engine.failure = InvalidParameter("no such thing", param="prompt")
        assert [client.post(path, json=body).status_code for path, body in STREAMS] == [400, 424, 422]
    waiting = Service(
        name="m", engine=FakeEngine(saying("a")), tokenizer=ByteTokenizer(), limits=ServiceLimits(queue_timeout_s=7)
    )
    assert waiting.head_after_s > 7


def test_a_header_field_that_comes_twice_is_one_list() -> None:
    """RFC 9110, 5.3: proxies may split a list into fields, so each of them counts, whichever is the last."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    for first, second in (("application/jsonlines", "application/json"), ("application/json", "application/jsonlines")):
        with running_server(dialects=real_dialects()) as server:
            fields = [("accept", first), ("accept", second)]
            answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=fields)
        assert answer.headers["content-type"] == "application/jsonlines", (first, second)
