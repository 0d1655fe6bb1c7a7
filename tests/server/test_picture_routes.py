"""Conversations with pictures over real HTTP: every route, several at a time, clients that leave, large bodies."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from dragoman.pictures import PictureSource
from dragoman.server.admission import Admission
from dragoman.server.registry import ServedModel
from dragoman.types import Picture
from tests.pictures.drawing import data_url, png
from tests.support.fake_engine import FakeEngine
from tests.support.patience import PATIENCE_S
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, post_bytes, running_server
from tests.support.seeing import SEEING, seeing_service, what_it_sees
from tests.support.tables import table

ROUTES = ["/invocations", "/predictions/seeing", "/v1/chat/completions", "/v3/chat/completions"]


class NeverBrought:
    """A loader that brings nothing, until nobody waits any more."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.given_up = threading.Event()

    async def load_all(self, sources: Sequence[PictureSource]) -> tuple[Picture, ...]:
        """Waits."""
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up.set()
        return ()


def serve(server: RunningServer, name: str, loader: Any = None) -> None:
    """Serve a model that takes pictures."""
    engine = FakeEngine(what_it_sees, capabilities=SEEING)
    service = seeing_service(loader, engine=engine)
    dialects = real_dialects(name=name)
    server.registry.add(ServedModel(name, service, engine, dialects, Admission(name)))


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    with running_server(dialects=real_dialects()) as server:
        serve(server, "seeing")
        yield server


def image(url: str, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def asking(*parts: dict[str, Any], model: str = "seeing", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": list(parts)}], **more}


@table("route", ROUTES)
def test_every_route_takes_pictures(route: str, client: httpx.Client) -> None:
    body = asking({"type": "text", "text": "?"}, image(data_url(png(3, 2))), image(data_url(png(2, 2)), detail="low"))
    answer = client.post(route, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "3x2 auto at 8+7; 2x2 low at 17+1"
    assert answer.json()["usage"]["prompt_tokens"] == len("[user]?{}{}") + 6 + 1 + 1
    streamed = client.post(route, json={**body, "stream": True})
    assert streamed.status_code == 200
    assert "x-dragoman-ignored" not in streamed.headers


@table("prefix", ["v1", "v3"])
def test_openais_client_sends_pictures(prefix: str, server: RunningServer) -> None:
    parts: Any = [{"type": "text", "text": "What is it?"}, image(data_url(png(4, 1)), detail="high")]
    with openai.OpenAI(base_url=f"{server.url}/{prefix}", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(model="seeing", messages=[{"role": "user", "content": parts}])
        assert chat.choices[0].message.content == "4x1 high at 18+4"
        parts = [image("data:image/png;base64,aGVsbG8=")]
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="seeing", messages=[{"role": "user", "content": parts}])
        assert "must be a png, jpeg, webp, gif or bmp image" in caught.value.response.text


def test_pictures_are_counted_where_nothing_is_generated(client: httpx.Client) -> None:
    body = asking(image(data_url(png(3, 2))))
    assert client.post("/tokenize", json=body).json()["count"] == len("[user]{}") + 6 + 1


def test_many_conversations_at_a_time_keep_their_own_pictures(client: httpx.Client) -> None:
    def ask(width: int) -> str:
        answer = client.post("/v1/chat/completions", json=asking(image(data_url(png(width, 1)))))
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content

    widths = range(1, 17)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, widths)) == [f"{width}x1 auto at 7+{width}" for width in widths]


@table("stream", [False, True])
@table("route", ["/invocations", "/v1/chat/completions"])
def test_a_client_that_leaves_ends_the_bringing_of_its_pictures(
    route: str, stream: bool, server: RunningServer
) -> None:
    name, loader = f"slow{route.replace('/', '-')}-{stream}", NeverBrought()
    serve(server, name, loader)
    path = f"/predictions/{name}" if route == "/invocations" else route
    connection = server.connect()
    connection.sendall(post_bytes(path, json.dumps(asking(image("https://a.b/c"), model=name, stream=stream)).encode()))
    assert loader.begun.wait(PATIENCE_S)
    connection.close()
    assert loader.given_up.wait(PATIENCE_S)


def test_a_body_of_many_megabytes_is_within_the_limits(client: httpx.Client) -> None:
    large = data_url(png(2, 2)) + "\n" * 25_000_000  # white space is no data, but the body has it
    answer = client.post("/invocations", json=asking(image(large)), timeout=60)
    assert answer.json()["choices"][0]["message"]["content"] == "2x2 auto at 7+5"
