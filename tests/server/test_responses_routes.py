"""Responses over real HTTP with OpenAI's client: kept, gone on from, listed, deleted, cancelled, per key; made to fit."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from dragoman.errors import EngineFailed
from dragoman.server.api import ModelProfile
from dragoman.server.app import ServerConfig
from dragoman.server.security.keyring import KeySources
from dragoman.types import ChatPrompt, GenerationRequest
from tests.support.fake_service import Gate, Script
from tests.support.patience import PATIENCE_S
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

TEXT = " Deep learning is fun. 🍊"
Client = Any  # openai.OpenAI, whose unions of events would have to be told apart for every field


@contextmanager
def refused(kind: type[openai.APIStatusError], text: str) -> Iterator[None]:
    """Assert that a call is refused so; the text stands in OpenAI's object on /v1, alone on /v3."""
    with pytest.raises(kind) as caught:
        yield
    assert re.search(text, caught.value.response.text), caught.value.response.text


@contextmanager
def client_of(server: RunningServer, route: str, key: str = "key") -> Iterator[Client]:
    """OpenAI's client for a route."""
    with openai.OpenAI(base_url=f"{server.url}/{route}", api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    with running_server(dialects=real_dialects()) as server:
        yield server


@pytest.fixture(params=["v1", "v3"])
def route(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def official(server: RunningServer, route: str) -> Iterator[Client]:
    with client_of(server, route) as client:
        yield client


def asked(server: RunningServer) -> GenerationRequest:
    """The last request."""
    return server.service.requests[-1]


def told(server: RunningServer) -> list[tuple[str, Any]]:
    """Role and content of each message of the last request."""
    prompt = asked(server).prompt
    assert isinstance(prompt, ChatPrompt)
    return [(message["role"], message["content"]) for message in prompt.messages]


def ask(client: Client, text: Any = "Hi", **options: Any) -> Any:
    return client.responses.create(model="fake", input=text, **options)


def test_a_response_is_answered_and_kept(official: Client) -> None:
    made = ask(official, metadata={"a": "b"})
    assert (made.output_text, made.status) == (TEXT, "completed")
    assert official.responses.retrieve(made.id).model_dump() == made.model_dump()


def test_a_stream_ends_in_what_is_kept(official: Client) -> None:
    with official.responses.stream(model="fake", input="Hi") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        made = stream.get_final_response()
    assert text == made.output_text == TEXT
    assert official.responses.retrieve(made.id).output_text == TEXT


def test_a_conversation_goes_on_from_a_response(official: Client, server: RunningServer) -> None:
    first = ask(official, "One", instructions="Be brief.")
    second = ask(official, "Two", previous_response_id=first.id)
    third = ask(official, "Three", previous_response_id=second.id, instructions="Be long.")
    assert (second.previous_response_id, third.previous_response_id) == (first.id, second.id)
    said = ("assistant", TEXT)
    assert told(server) == [
        ("system", "Be long."), ("user", "One"), said, ("user", "Two"), said, ("user", "Three"),
    ]  # fmt: skip
    official.responses.delete(first.id)
    ask(official, "Four", previous_response_id=third.id)
    assert len(told(server)) == 7  # each response keeps what it needs


def test_what_was_not_stored_cannot_be_gone_on_from(official: Client) -> None:
    made = ask(official, store=False)
    assert made.store is False
    with refused(openai.NotFoundError, "it was not stored, since the request said store: false"):
        official.responses.retrieve(made.id)
    with refused(openai.BadRequestError, "it was not stored"):
        ask(official, previous_response_id=made.id)
    with refused(openai.BadRequestError, "this server does not know it"):
        ask(official, previous_response_id="resp_1")


def test_items_may_be_referred_to(official: Client, server: RunningServer) -> None:
    first = ask(official, "One")
    references: Any = [
        {"type": "item_reference", "id": item.id} for item in official.responses.input_items.list(first.id)
    ]
    ask(
        official,
        [*references, {"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "Two"}],
    )
    assert told(server) == [("user", "One"), ("assistant", TEXT), ("user", "Two")]


def test_input_items_come_in_pages(official: Client) -> None:
    first = ask(official, [{"role": "user", "content": f"{number}"} for number in range(5)])
    second = ask(official, "last", previous_response_id=first.id)
    items = official.responses.input_items
    listed = list(items.list(second.id, limit=2, order="asc"))
    assert [item.content[0].text for item in listed] == ["0", "1", "2", "3", "4", TEXT, "last"]
    assert len({item.id for item in listed}) == 7
    page = items.list(second.id, limit=3)
    assert [item.id for item in page.data] == [item.id for item in reversed(listed[4:])]
    assert (page.first_id, page.last_id, page.has_more) == (listed[6].id, listed[4].id, True)
    for wrong in ({"limit": 101}, {"order": "up"}, {"after": "nobody"}):
        with refused(openai.BadRequestError, next(iter(wrong))):
            items.list(second.id, **wrong)


def test_a_deleted_response_is_gone(official: Client, server: RunningServer, route: str) -> None:
    made = ask(official)
    url = f"{server.url}/{route}/responses/{made.id}"
    assert httpx.delete(url).json() == {"id": made.id, "object": "response", "deleted": True}
    with refused(openai.NotFoundError, "it was deleted, did not end, or has expired"):
        official.responses.retrieve(made.id)
    with refused(openai.NotFoundError, "it was deleted"):
        official.responses.delete(made.id)
    if route == "v1":
        error = httpx.get(url).json()["error"]
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "response_id", None)


def test_a_replay_is_refused(official: Client) -> None:
    made = ask(official)
    with refused(openai.BadRequestError, "stream must be false: this response was not made with background and stream"):
        official.responses.retrieve(made.id, stream=True)
    with refused(openai.BadRequestError, "starting_after needs stream=true"):
        official.responses.retrieve(made.id, extra_query={"starting_after": "2"})
    with refused(openai.BadRequestError, r"include .*file_search"):
        official.responses.retrieve(made.id, include=["file_search_call.results"])
    assert official.responses.retrieve(made.id, include=["message.output_text.logprobs"]).id == made.id


def test_compacting_is_refused_by_name(official: Client) -> None:
    with refused(openai.BadRequestError, "compact is not supported: nothing is compacted here; truncation: auto"):
        official.responses.compact(model="fake", input="Hi")


def test_a_response_that_has_ended_cannot_be_cancelled(official: Client) -> None:
    made = ask(official)
    with refused(openai.BadRequestError, "its status is completed"):
        official.responses.cancel(made.id)


@table("way", ["cancel", "delete"])
def test_a_running_response_can_be_ended(way: str, official: Client, server: RunningServer) -> None:
    gate = Gate()
    server.service.script = Script(gates={2: gate})
    try:
        stream = official.responses.create(model="fake", input="Hi", stream=True)
        events = [next(stream)]
        made = events[0].response
        assert official.responses.retrieve(made.id).status == "in_progress"
        with refused(openai.BadRequestError, "still in progress"):
            ask(official, previous_response_id=made.id)
        if way == "cancel":
            assert official.responses.cancel(made.id).status == "cancelled"
        else:
            official.responses.delete(made.id)
        server.service.journal.wait_for(lambda lines: lines[-1].startswith("abort "))
        events += list(stream)
    finally:
        gate.open()
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1].response.status == "cancelled"
    if way == "cancel":
        assert official.responses.retrieve(made.id).status == "cancelled"
        assert official.responses.cancel(made.id).status == "cancelled"
    else:
        with pytest.raises(openai.NotFoundError):
            official.responses.retrieve(made.id)


def test_a_whole_response_can_be_cancelled_too(official: Client, server: RunningServer) -> None:
    gate, num_before = Gate(), len(server.service.journal.lines)
    failures: list[Exception] = []
    server.service.script = Script(gates={2: gate})
    asking = ask_in_thread(official, failures)
    try:
        server.service.journal.wait_for(lambda lines: any(one.startswith("pause") for one in lines[num_before:]))
        call_id = httpx.get(f"{server.url}/debug/requests").json()[0]["id"]
        assert httpx.post(f"{server.url}/cancel/{call_id}").status_code == 200
        asking.join(PATIENCE_S)
    finally:
        gate.open()
    assert [type(failure) for failure in failures] == [openai.InternalServerError]


def ask_in_thread(client: Client, failures: list[Exception]) -> threading.Thread:
    def ask_whole() -> None:
        try:
            ask(client)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=ask_whole, daemon=True)
    thread.start()
    return thread


def test_a_failed_stream_is_kept_as_it_failed(official: Client, server: RunningServer) -> None:
    gate = Gate()
    server.service.script = Script(gates={2: gate}, failures={2: EngineFailed("it broke")})
    with official.responses.create(model="fake", input="Hi", stream=True) as stream:
        next(stream)  # the head is out: what fails now is told in the stream
        gate.open()
        events = list(stream)
    assert events[-1].type == "response.failed"
    kept = official.responses.retrieve(events[-1].response.id)
    assert (kept.status, kept.error.message) == ("failed", "it broke")
    assert kept.output_text == TEXT[: len(kept.output_text)] != ""


def test_what_has_no_effect_is_in_the_header(official: Client) -> None:
    raw = official.responses.with_raw_response.create(model="fake", input="Hi", user="u", metadata={"a": "b"})
    assert raw.headers["x-dragoman-ignored"] == "user"
    assert raw.parse().user == "u"
    strict = {"x-dragoman-strict": "true"}
    with refused(openai.BadRequestError, "user"):
        ask(official, user="u", extra_headers=strict)
    ask(official, metadata={"a": "b"}, store=True, extra_headers=strict)


def test_an_input_s_tokens_are_counted(server: RunningServer, route: str) -> None:
    body = {"model": "fake", "input": "Hi", "instructions": "Be brief."}
    answer = httpx.post(f"{server.url}/{route}/responses/input_tokens", json=body)
    text = "system: Be brief.\nuser: Hi"  # as the service of these tests writes conversations, in bytes
    assert answer.json() == {"input_tokens": len(text), "object": "response.input_tokens"}


def test_the_official_client_counts_too(server: RunningServer) -> None:
    with client_of(server, "v1") as client:
        assert client.responses.input_tokens.count(model="fake", input="Hi").input_tokens == len("user: Hi")


# --- made to fit ------------------------------------------------------------------------------------------------------

LONG = [{"role": role, "content": f"{role[0] * 8}{number}"} for number in range(4) for role in ("user", "assistant")]


def test_the_oldest_go_until_the_input_fits(official: Client, server: RunningServer) -> None:
    last = {"role": "user", "content": "Why?"}
    ask(official, [*LONG, last], instructions="Obey.", truncation="auto", max_output_tokens=10)
    assert told(server) == [("system", "Obey."), ("user", "Why?")]  # 64 tokens in all, 10 of them for the answer
    turn = [("user", "uuuuuuuu0"), ("assistant", "aaaaaaaa0")]
    for room, kept in ((10, []), (2, turn)):  # the whole has 61 tokens of the 64 that there are
        ask(official, [*LONG[:2], last], instructions="Obey.", truncation="auto", max_output_tokens=room)
        assert told(server) == [("system", "Obey."), *kept, ("user", "Why?")]
    ask(official, [*LONG, last], instructions="Obey.", max_output_tokens=10)
    assert len(told(server)) == 10


def test_of_one_long_turn_the_oldest_steps_go(official: Client, server: RunningServer) -> None:
    steps: list[Any] = [{"role": "user", "content": "Go"}]
    for number in range(5):
        steps.append({"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"})
        steps.append({"type": "function_call_output", "call_id": f"c{number}", "output": str(number) * 8})
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    ask(official, steps, tools=[tool], truncation="auto", max_output_tokens=10)
    assert told(server) == [("user", "Go"), ("assistant", ""), ("tool", "4" * 8)]


# --- keys and limits --------------------------------------------------------------------------------------------------


@contextmanager
def two_keys(path: Path) -> Iterator[RunningServer]:
    """A server with the keys k-alice and k-bob."""
    path.write_text("alice: k-alice\nbob: k-bob\n", encoding="utf-8")
    config = ServerConfig(key_sources=KeySources(key_file=path))
    with running_server(config, dialects=real_dialects()) as server:
        yield server


def test_no_key_sees_what_another_one_stored(tmp_path: Path, route: str) -> None:
    with (
        two_keys(tmp_path / "keys") as server,
        client_of(server, route, "k-alice") as alice,
        client_of(server, route, "k-bob") as bob,
    ):
        made = ask(alice)
        item = made.output[0].id
        assert alice.responses.retrieve(made.id).id == made.id
        attempts: list[Any] = [
            lambda: bob.responses.retrieve(made.id),
            lambda: bob.responses.delete(made.id),
            lambda: bob.responses.cancel(made.id),
            lambda: bob.responses.input_items.list(made.id),
            lambda: ask(bob, previous_response_id=made.id),
            lambda: ask(bob, [{"type": "item_reference", "id": item}]),
        ]
        for attempt in attempts:
            with refused(openai.APIStatusError, "belongs to another key"):
                attempt()
        assert ask(alice, previous_response_id=made.id).status == "completed"


def test_no_key_ends_what_another_one_runs(tmp_path: Path) -> None:
    with (
        two_keys(tmp_path / "keys") as server,
        client_of(server, "v1", "k-alice") as alice,
        client_of(server, "v1", "k-bob") as bob,
    ):
        gate = Gate()
        server.service.script = Script(gates={2: gate})
        with alice.responses.create(model="fake", input="Hi", stream=True) as stream:
            made = next(stream).response
            for attempt in (bob.responses.retrieve, bob.responses.cancel, bob.responses.delete):
                with refused(openai.NotFoundError, "another key"):
                    attempt(made.id)
            gate.open()
            assert list(stream)[-1].type == "response.completed"


def test_the_operator_bounds_the_store() -> None:
    server = RunningServer(dialects=real_dialects())
    server.registry.profile = ModelProfile(settings={"max_stored_responses": 2})
    server.start()
    try:
        with client_of(server, "v1") as client:
            made = [ask(client).id for _ in range(3)]
            with refused(openai.NotFoundError, "has expired"):
                client.responses.retrieve(made[0])
            assert [client.responses.retrieve(one).id for one in made[1:]] == made[1:]
    finally:
        server.http.stop()
        server.join()


@table(("path", "nearest"), [("/v1/response", "/v1/responses"), ("/v3/response", "/v3/responses")])
def test_an_unknown_path_names_the_nearest_one(path: str, nearest: str, server: RunningServer) -> None:
    answer = httpx.post(f"{server.url}{path}", json={})
    assert answer.status_code == 404
    assert f"nearest one is {nearest}" in answer.text
