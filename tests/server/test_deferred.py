"""Asynchronous calls over real HTTP: `x-synchronous: false`, then polling with tokens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.errors import EngineFailed, InvalidRequest, Overloaded
from dragoman.server.api import Head, HttpCall, Reply, json_reply
from dragoman.server.apis.lmi.deferred import RETENTION_S, STARTING_TOKEN, DeferredAnswers
from dragoman.server.app import ServerConfig
from dragoman.server.http.exchange import Exchange, HeaderRules
from dragoman.server.security.keyring import KeySources
from tests.support.aws import aws_runtime
from tests.support.fake_service import Gate, Script
from tests.support.patience import PATIENCE_S
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

TEXT = " Deep learning is fun. 🍊"
BODY = {"inputs": "hi", "parameters": {"max_new_tokens": 50}}
STREAM = {**BODY, "stream": True}
LATER = {"x-synchronous": "false"}


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    """One server with all real dialects."""
    with running_server(dialects=real_dialects()) as server:
        yield server


def begin(client: httpx.Client, body: Any = BODY, path: str = "/invocations", **headers: str) -> str:
    """The first token of an asynchronous call."""
    answer = client.post(path, json=body, headers={**LATER, **headers})
    assert (answer.status_code, answer.content) == (200, b"")
    token = answer.headers["x-next-token"]
    assert answer.headers["x-amzn-sagemaker-custom-attributes"] == f"x-next-token={token}"
    return token


def poll(client: httpx.Client, token: str, path: str = "/invocations", **headers: str) -> httpx.Response:
    return client.post(path, headers={"x-starting-token": token, **headers})


def poll_until_done(client: httpx.Client, token: str, **headers: str) -> list[httpx.Response]:
    """All answers with content, until one without a next token."""
    answers: list[httpx.Response] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        answer = poll(client, token, **headers)
        if answer.status_code != 202:
            answers.append(answer)
            if "x-next-token" not in answer.headers:
                return answers
        token = answer.headers["x-next-token"]
    raise AssertionError("the answer never ended")


def test_the_answer_is_what_a_waiting_client_gets(client: httpx.Client) -> None:
    [answer] = poll_until_done(client, begin(client))
    waiting = client.post("/invocations", json=BODY)
    assert (answer.status_code, answer.content) == (200, waiting.content)
    assert answer.headers["content-type"] == waiting.headers["content-type"]
    assert int(answer.headers["content-length"]) == len(waiting.content)


def test_a_poll_before_there_is_anything_is_202_with_a_token(server: RunningServer, client: httpx.Client) -> None:
    gate = Gate()
    server.service.script = Script(gates={0: gate})
    token = begin(client)
    pending = poll(client, token)
    assert (pending.status_code, pending.content) == (202, b"")
    assert pending.headers["x-next-token"] == token
    gate.open()
    [answer] = poll_until_done(client, pending.headers["x-next-token"])
    assert answer.json() == {"generated_text": TEXT}


def test_a_stream_can_be_read_while_it_is_made(server: RunningServer, client: httpx.Client) -> None:
    gate = Gate()
    server.service.script = Script(gates={2: gate})
    token = begin(client, STREAM)
    while (first := poll(client, token)).status_code == 202:
        pass
    assert first.headers["content-type"] == "application/jsonlines"
    assert first.content.endswith(b"\n")
    assert b"generated_text" not in first.content
    while (behind := poll(client, first.headers["x-next-token"])).status_code != 202:
        first = behind
    gate.open()
    rest = poll_until_done(client, behind.headers["x-next-token"])
    assert json.loads(rest[-1].content.splitlines()[-1])["generated_text"] == TEXT


def test_a_page_has_as_many_records_as_were_asked_for_and_can_be_read_again(client: httpx.Client) -> None:
    token = begin(client, STREAM)
    poll_until_done(client, token)
    pages = poll_until_done(client, token, **{"x-max-items": "2"})
    counts = [len(page.content.splitlines()) for page in pages]
    assert set(counts[:-1]) == {2}
    assert 1 <= counts[-1] <= 2
    records = [json.loads(line) for page in pages for line in page.content.splitlines()]
    assert "".join(record["token"]["text"] for record in records) == TEXT
    again = poll(client, token, **{"x-max-items": "2"})
    assert (again.content, again.headers["x-next-token"]) == (pages[0].content, pages[0].headers["x-next-token"])


def test_events_are_pages_of_their_own_too(client: httpx.Client) -> None:
    token = begin(client, STREAM, accept="text/event-stream")
    pages = poll_until_done(client, token, **{"x-max-items": "1"})
    assert len(pages) > 2
    assert all(page.content.startswith(b"data: ") and page.content.endswith(b"\n\n") for page in pages)


def test_an_error_is_told_by_the_poll(server: RunningServer, client: httpx.Client) -> None:
    [refused] = poll_until_done(client, begin(client, {"inputs": 7}))
    assert (refused.status_code, refused.json()["code"]) == (424, 424)
    server.service.script = Script(failures={0: EngineFailed("the kernel gave up")})
    [failed] = poll_until_done(client, begin(client))
    assert (failed.status_code, failed.json()["error"]) == (424, "the kernel gave up")


def test_nobody_waits_so_nobody_can_leave(server: RunningServer, client: httpx.Client) -> None:
    gate = Gate()
    server.service.script = Script(gates={1: gate})
    token = begin(client, **{"x-request-id": "alone"})
    server.service.journal.wait_for(lambda journal: "pause alone" in journal)
    client.close()
    gate.open()
    server.service.journal.wait_for(lambda journal: "end alone" in journal)
    with httpx.Client(base_url=server.url) as other:
        assert poll_until_done(other, token)[0].json() == {"generated_text": TEXT}


def test_a_token_is_good_for_the_key_that_it_was_given_to(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice: k-alice\nbob: k-bob\n", encoding="utf-8")
    config = ServerConfig(key_sources=KeySources(key_file=tmp_path / "keys"))
    with running_server(config, dialects=real_dialects()) as server, httpx.Client(base_url=server.url) as client:
        token = begin(client, **{"x-api-key": "k-alice"})
        assert poll(client, token, **{"x-api-key": "k-bob"}).status_code == 400
        [answer] = poll_until_done(client, token, **{"x-api-key": "k-alice"})
        assert answer.json() == {"generated_text": TEXT}


@table("path", ["/predictions/fake", "/models/fake/invoke", "/v1/chat/completions", "/invocations"])
def test_every_lmi_route_defers_and_polls(client: httpx.Client, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    token = begin(client, body, path)
    while (answer := poll(client, token, "/invocations")).status_code == 202:
        pass
    assert answer.json()["choices"][0]["message"]["content"] == TEXT


@table("token", ["nonsense", "00000000-0000-0000-0000-000000000000", "{token}-99"], ids=["text", "unknown", "beyond"])
def test_a_token_that_nobody_gave_is_400(client: httpx.Client, token: str) -> None:
    answer = poll(client, token.format(token=begin(client)))
    assert (answer.status_code, answer.json()["type"]) == (400, "BadRequestException")
    assert "x-starting-token" in answer.json()["message"]


@table("items", ["0", "-1", "many", "1.5"])
def test_an_impossible_page_size_is_400(client: httpx.Client, items: str) -> None:
    answer = poll(client, begin(client), **{"x-max-items": items})
    assert answer.status_code == 400
    assert f"got {items!r}" in answer.json()["message"]


def test_custom_attributes_do_the_same_for_aws_clients(server: RunningServer) -> None:
    with aws_runtime(server.url) as client:
        poll_as_aws_does(client)


def poll_as_aws_does(client: Any) -> None:
    """Begin, poll until the answer is there, and poll with a token that nobody gave."""
    answer = client.invoke_endpoint(EndpointName="e", Body=json.dumps(BODY), CustomAttributes="x-synchronous=false")
    name, _, token = answer["CustomAttributes"].partition("=")
    assert (name, answer["Body"].read()) == ("x-next-token", b"")
    status = 202
    while status == 202:
        answer = client.invoke_endpoint(EndpointName="e", Body=b"", CustomAttributes=f"x-starting-token={token}")
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
    assert json.loads(answer["Body"].read()) == {"generated_text": TEXT}
    with pytest.raises(client.exceptions.ModelError, match="x-starting-token"):
        client.invoke_endpoint(EndpointName="e", Body=b"", CustomAttributes="x-starting-token=nonsense")


def test_a_poll_needs_the_key_like_any_call() -> None:
    with running_server(ServerConfig(api_keys=frozenset({"key"})), dialects=real_dialects()) as server:
        with httpx.Client(base_url=server.url, headers={"authorization": "Bearer key"}) as client:
            token = begin(client)
        assert httpx.post(f"{server.url}/invocations", headers={"x-starting-token": token}).status_code == 401


def test_an_answer_that_broke_off_is_told_by_a_broken_connection() -> None:
    with running_server() as server, httpx.Client(base_url=server.url) as client:
        gate = Gate()
        server.service.script = Script(gates={2: gate}, failures={2: EngineFailed("gave up")})
        token = begin(client, {"stream": True, "cut": True})
        while (first := poll(client, token)).status_code == 202:
            pass
        gate.open()
        with pytest.raises(httpx.RemoteProtocolError):
            poll_until_done(client, first.headers["x-next-token"])


def test_a_drain_waits_for_calls_that_nobody_waits_for() -> None:
    with running_server(dialects=real_dialects()) as server:
        gate = Gate()
        server.service.script = Script(gates={1: gate})
        with httpx.Client(base_url=server.url) as client:
            token = begin(client, **{"x-request-id": "last"})
            server.service.journal.wait_for(lambda journal: "pause last" in journal)
            server.http.stop()
            while client.get("/ping").status_code != 503:
                pass
            gate.open()
            server.service.journal.wait_for(lambda journal: "end last" in journal)
            assert token
        assert server.join() == 0


def test_a_server_that_is_stopped_twice_cancels_them() -> None:
    with running_server(dialects=real_dialects()) as server:
        server.service.script = Script(gates={1: Gate()})
        with httpx.Client(base_url=server.url) as client:
            begin(client, **{"x-request-id": "last"})
            server.service.journal.wait_for(lambda journal: "pause last" in journal)
        server.http.stop()
        server.http.stop()
        assert server.join() == 0
        assert "abort last" in server.service.journal.lines


def test_a_handler_cannot_be_chosen_by_a_request(client: httpx.Client) -> None:
    answer = client.post("/invocations", json=BODY, headers={"handler": "own"})
    assert (answer.status_code, answer.json()["message"]) == (400, "The handler can't be overridden in a request")


class TestStore:
    """Bounds of the store, with a clock of the test's own."""

    @staticmethod
    def exchange() -> Exchange:
        async def nothing(*_: Any) -> Any:
            return {}

        scope = {"method": "POST", "path": "/invocations", "headers": [], "query_string": b""}
        return Exchange(scope, nothing, nothing, HeaderRules())

    @staticmethod
    def call(token: str) -> HttpCall:
        return HttpCall("POST", "/invocations", b"", {STARTING_TOKEN: token})

    @staticmethod
    async def work(exchange: Exchange) -> None:
        await exchange.send_reply(json_reply(200, "done"))

    @staticmethod
    async def until_done(store: DeferredAnswers, token: str) -> Reply:
        for _ in range(1000):
            reply, _ = store.poll(TestStore.call(token))
            if reply.status != 202:
                return reply
            await asyncio.sleep(0)
        raise AssertionError("the answer never ended")

    def test_an_answer_is_forgotten_when_nobody_asks_for_it(self) -> None:
        async def run() -> None:
            now = [0.0]
            store = DeferredAnswers(clock=lambda: now[0])
            kept, lost = (store.start(self.exchange(), self.work).headers["x-next-token"] for _ in range(2))
            assert (await self.until_done(store, kept)).body == (await self.until_done(store, lost)).body == b'"done"'
            now[0] = RETENTION_S
            store.poll(self.call(kept))
            now[0] = RETENTION_S + 1
            store.start(self.exchange(), self.work)
            assert store.poll(self.call(kept))[0].status == 200
            with pytest.raises(InvalidRequest, match="Invalid x-starting-token"):
                store.poll(self.call(lost))
            await store.aclose()

        asyncio.run(run())

    def test_a_full_store_forgets_complete_answers_first_and_refuses_when_all_run(self) -> None:
        async def run() -> None:
            store = DeferredAnswers(max_records=2)
            release = asyncio.Event()

            async def slow(exchange: Exchange) -> None:
                await release.wait()
                await self.work(exchange)

            done = store.start(self.exchange(), self.work).headers["x-next-token"]
            await self.until_done(store, done)
            running = [store.start(self.exchange(), slow).headers["x-next-token"] for _ in range(2)]
            with pytest.raises(InvalidRequest):
                store.poll(self.call(done))
            with pytest.raises(Overloaded, match="2 are allowed"):
                store.start(self.exchange(), slow)
            release.set()
            for token in running:
                assert (await self.until_done(store, token)).status == 200
            await store.aclose()

        asyncio.run(run())

    def test_a_defect_is_a_500_for_the_poller(self, caplog: pytest.LogCaptureFixture) -> None:
        async def broken(exchange: Exchange) -> None:
            raise RuntimeError("defect")

        async def run() -> None:
            store = DeferredAnswers()
            token = store.start(self.exchange(), broken).headers["x-next-token"]
            assert (await self.until_done(store, token)).status == 500
            await store.aclose()

        asyncio.run(run())
        assert "defect" in caplog.text

    def test_answers_that_take_too_many_bytes_are_forgotten_or_keep_new_calls_out(self) -> None:
        async def run() -> None:
            store = DeferredAnswers(max_bytes=100)
            release = asyncio.Event()

            async def large(exchange: Exchange) -> None:
                await exchange.send_head(Head("text/plain"))
                await exchange.send_chunk(b"x" * 100)
                await release.wait()
                await exchange.finish()

            first = store.start(self.exchange(), self.work).headers["x-next-token"]
            await self.until_done(store, first)
            running = store.start(self.exchange(), large).headers["x-next-token"]
            assert (await self.until_done(store, running)).body == b"x" * 100
            with pytest.raises(Overloaded, match="may take 100 bytes"):
                store.start(self.exchange(), large)
            with pytest.raises(InvalidRequest):  # the complete answer gave way
                store.poll(self.call(first))
            release.set()
            assert (await self.until_done(store, f"{running}-1")).status == 200
            store.start(self.exchange(), self.work)
            await store.aclose()

        asyncio.run(run())
