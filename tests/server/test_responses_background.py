"""Responses that are made while nobody waits: polled, followed, resumed and cancelled by OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
import pytest

from dragoman.server.admission import Admission
from dragoman.server.app import ServerConfig
from dragoman.server.batches.store import StoreConfig
from dragoman.server.generation.service import Service
from dragoman.server.registry import ServedModel
from dragoman.tokenizer.chat_template import ChatTemplate
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import ABILITIES, saying
from tests.support.gated_engine import GatedEngine
from tests.support.patience import seen_when
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server

T = TypeVar("T")


@contextmanager
def serving(
    directory: Path | None = None, **admission: Any
) -> Iterator[tuple[RunningServer, GatedEngine, openai.OpenAI]]:
    """A server whose model `m` says Hello, the first token at once and the others when it may."""
    engine = GatedEngine(saying("Hello"), capabilities=replace(ABILITIES, priority=True))
    dialects = real_dialects(settings={"chat_format": "openai"})
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    service = Service(name="m", engine=engine, tokenizer=ByteTokenizer(), chat_template=template)
    model = ServedModel("m", service, engine, dialects, Admission("m", **admission))
    config = None if directory is None else ServerConfig(store=StoreConfig(directory))
    with (
        running_server(config, dialects=dialects, models=[model]) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client,
    ):
        try:
            yield server, engine, client
        finally:
            engine.open()


def test_a_response_is_polled_until_it_is_there() -> None:
    with serving() as (_, engine, client):
        begun = client.responses.create(model="m", input="Hi", background=True)
        assert (begun.status, begun.background, begun.output) == ("queued", True, [])
        assert client.responses.retrieve(begun.id).status == "in_progress"
        engine.open()
        done = seen_when(lambda: client.responses.retrieve(begun.id), lambda one: one.status == "completed")
        assert (done.output_text, done.id, done.background) == ("Hello", begun.id, True)
        again = client.responses.create(model="m", input="And?", previous_response_id=done.id)
        assert again.output_text == "Hello"


def test_a_cancelled_response_stays_so() -> None:
    with serving() as (_, engine, client):
        begun = client.responses.create(model="m", input="Hi", background=True)
        seen_when(lambda: engine.num_outputs, lambda count: count == 2)
        assert client.responses.cancel(begun.id).status == "cancelled"
        seen_when(lambda: engine.aborted, len)
        assert client.responses.retrieve(begun.id).status == "cancelled"


def test_a_stream_is_resumed_where_it_broke_off() -> None:
    with serving() as (server, engine, client):
        stream = client.responses.create(model="m", input="Hi", background=True, stream=True)
        first = next(iter(stream))
        assert first.type == "response.created"
        stream.close()
        engine.open()
        rest = list(client.responses.retrieve(first.response.id, stream=True, starting_after=first.sequence_number))
        assert [event.sequence_number for event in rest] == list(range(1, len(rest) + 1))
        assert rest[-1].type == "response.completed"
        assert rest[-1].response.output_text == "Hello"
        whole = list(client.responses.retrieve(first.response.id, stream=True))
        assert [event.sequence_number for event in whole] == list(range(len(rest) + 1))
        assert server.http is not None


def test_what_is_wrong_is_told_at_once() -> None:
    with serving(max_running=1, max_queued=0) as (server, engine, client):
        with pytest.raises(openai.BadRequestError, match="temperature must be"):
            client.responses.create(model="m", input="Hi", background=True, temperature=9)
        with pytest.raises(openai.BadRequestError, match="background must be false if store is false"):
            client.responses.create(model="m", input="Hi", background=True, store=False)
        begun = client.responses.create(model="m", input="Hi", background=True)
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError, match="1 allowed"):
                client.responses.create(model="m", input="Hi", background=True, stream=stream)
        for query, told in (
            ({"stream": "true"}, "was not made with background and stream"),
            ({"starting_after": "2"}, "starting_after needs stream=true"),
            ({"starting_after": "x", "stream": "true"}, 'must be the number of an event, got \\"x\\"'),
        ):
            answer = httpx.get(f"{server.url}/v1/responses/{begun.id}", params=query)
            assert answer.status_code == 400
            assert told in answer.text
        engine.open()


def test_a_response_whose_engine_fails_has_failed() -> None:
    with serving() as (_, engine, client):
        engine.fails = True
        begun = client.responses.create(model="m", input="Hi", background=True)
        engine.open()
        failed = seen_when(lambda: client.responses.retrieve(begun.id), lambda one: one.status == "failed")
        assert failed.error is not None
        assert "no more" in failed.error.message


def test_stored_responses_outlive_the_server_where_it_keeps_files(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, engine, client):
        engine.open()
        kept = client.responses.create(model="m", input="Hi")
        gone = client.responses.create(model="m", input="Hi")
        client.responses.delete(gone.id)
    for _ in range(2):
        with serving(tmp_path) as (_, engine, client):
            engine.open()
            assert client.responses.retrieve(kept.id).output_text == "Hello"
            again = client.responses.create(model="m", input="And?", previous_response_id=kept.id)
            assert client.responses.input_items.list(again.id).data[0].id
            with pytest.raises(openai.NotFoundError, match="it was deleted"):
                client.responses.retrieve(gone.id)


def test_what_a_killed_server_was_making_has_failed(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, _, client):
        begun = client.responses.create(model="m", input="Hi", background=True)
        documents = tmp_path / "responses"
        (path,) = seen_when(lambda: list(documents.glob("*.json")), len)
        left = path.read_bytes()
    path.write_bytes(left)  # as if nothing had come after it
    with serving(tmp_path) as (_, _, client):
        failed = client.responses.retrieve(begun.id)
        assert failed.status == "failed"
        assert failed.error is not None
        assert "the server ended" in failed.error.message
