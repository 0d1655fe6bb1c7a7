"""Files and batches over real HTTP, by OpenAI's and Anthropic's own clients: whole lives, faults, restarts, bounds."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import anthropic
import httpx
import openai
import pytest

from dragoman.server.admission import Admission
from dragoman.server.api import Reply
from dragoman.server.app import ServerConfig
from dragoman.server.batches.store import Store, StoreConfig, StoreError, lines_of
from dragoman.server.generation.service import Service
from dragoman.server.registry import ServedModel
from dragoman.server.security.keyring import KeySources
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import EngineRequest
from tests.support.batch_desk import Case, good, lines
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import ABILITIES, FakeEngine, saying
from tests.support.patience import seen_when
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server

TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
T = TypeVar("T")


class Slow(FakeEngine):
    """An engine that answers prompts with "wait" in them only once it may."""

    def __init__(self) -> None:
        super().__init__(saying("Hello"), capabilities=replace(ABILITIES, priority=True))
        self.may_answer = False

    async def generate(self, request: EngineRequest) -> Any:
        if b"wait" in bytes(request.prompt_ids) and not self.may_answer:
            self.requests.append(request)
            await asyncio.Event().wait()
        async for output in super().generate(request):
            yield output


@contextmanager
def serving(directory: Path, engine: Slow | None = None, **config: Any) -> Iterator[tuple[RunningServer, Slow]]:
    """A server that keeps files and batches in the directory, and whose model `m` says Hello."""
    engine = engine or Slow()
    store = StoreConfig(directory, **config.pop("store", {}))
    dialects = real_dialects(settings={"chat_format": "openai"})
    service = Service(name="m", engine=engine, tokenizer=ByteTokenizer(), chat_template=TEMPLATE)
    model = ServedModel("m", service, engine, dialects, Admission("m"))
    with running_server(ServerConfig(store=store, **config), dialects=dialects, models=[model]) as server:
        yield server, engine


def of_openai(server: RunningServer, key: str = "k") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def of_anthropic(server: RunningServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0)


def begin(client: openai.OpenAI, content: bytes, **fields: Any) -> Any:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", **fields)


def ended(client: openai.OpenAI, batch_id: str) -> Any:
    return seen_when(
        lambda: client.batches.retrieve(batch_id), lambda one: one.status in ("completed", "failed", "cancelled")
    )


def answers(client: openai.OpenAI, file_id: str) -> dict[str, Any]:
    read = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    found = {one["custom_id"]: one for one in read}
    assert len(found) == len(read), "each request is answered once"
    return found


def test_a_batch_from_upload_to_answers(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, engine), of_openai(server) as client:
        content = lines(["a", "b", "c"], max_tokens=5) + lines(["d"], max_tokens=-1).replace(b"c0", b"bad")
        begun = begin(client, content, metadata={"of": "me"})
        assert (begun.object, begun.endpoint, begun.completion_window) == ("batch", "/v1/completions", "24h")
        assert begun.expires_at == begun.created_at + 24 * 3600
        done = ended(client, begun.id)
        assert (done.status, done.metadata, done.model) == ("completed", {"of": "me"}, "m")
        assert done.request_counts.to_dict() == {"total": 4, "completed": 3, "failed": 1}
        assert done.in_progress_at <= done.finalizing_at <= done.completed_at
        good, bad = answers(client, done.output_file_id), answers(client, done.error_file_id)
        assert {name: one["response"]["body"]["choices"][0]["text"] for name, one in good.items()} == dict.fromkeys(
            ("c0", "c1", "c2"), "Hello"
        )
        assert bad["bad"]["response"]["status_code"] == 400
        assert "max_tokens" in bad["bad"]["response"]["body"]["error"]["message"]
        assert done.usage.input_tokens == 3
        assert done.usage.total_tokens == 3 + done.usage.output_tokens
        assert all(request.is_background for request in engine.requests)
        assert [one.id for one in client.batches.list()] == [done.id]
        listed = {one.id: one.purpose for one in client.files.list()}
        assert listed == {
            done.input_file_id: "batch",
            done.output_file_id: "batch_output",
            done.error_file_id: "batch_output",
        }
        assert client.files.retrieve(done.input_file_id).bytes == len(content)
        assert client.files.content(done.input_file_id).content == content
        assert client.files.delete(done.output_file_id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.content(done.output_file_id)


def test_conversations_and_responses_in_batches(tmp_path: Path) -> None:
    asked = {
        "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
        "/v1/responses": {"model": "m", "input": "Hi"},
    }
    with serving(tmp_path) as (server, _), of_openai(server) as client:
        for path, body in asked.items():
            line = json.dumps({"custom_id": "1", "method": "POST", "url": path, "body": body}).encode()
            file = client.files.create(file=("in", line), purpose="batch")
            endpoint: Any = path
            batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
            done = ended(client, batch.id)
            assert done.status == "completed", done
            assert "Hello" in json.dumps(answers(client, done.output_file_id)["1"])


def test_an_input_with_mistakes_is_refused_line_by_line(tmp_path: Path) -> None:
    content = (
        lines(["a", "b"]) + lines(["c"]) + b"nonsense\n" + lines(["d"]).replace(b"/v1/completions", b"/v1/embeddings")
    )
    with serving(tmp_path) as (server, engine), of_openai(server) as client:
        for text, codes in (
            (content, [(3, "duplicate_custom_id"), (4, "invalid_json_line"), (5, "mismatched_url")]),
            (b"\n", [(None, "empty_file")]),
        ):
            done = ended(client, begin(client, text).id)
            assert done.status == "failed"
            assert done.errors is not None
            assert [(one.line, one.code) for one in done.errors.data or []] == codes
            assert done.output_file_id is None
        assert not engine.requests


def test_a_cancelled_batch_keeps_what_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, _), of_openai(server) as client:
        begun = begin(client, lines(["a", "wait", "wait", "b"]))
        seen_when(
            lambda: client.batches.retrieve(begun.id).request_counts, lambda counts: counts and counts.completed == 2
        )
        with pytest.raises(openai.ConflictError, match="cancel that first"):
            client.files.delete(begun.input_file_id)
        assert client.batches.cancel(begun.id).status in ("cancelling", "cancelled")
        done = ended(client, begun.id)
        assert done.status == "cancelled"
        assert set(answers(client, done.output_file_id)) == {"c0", "c3"}
        left = answers(client, done.error_file_id)
        assert {name: one["error"]["code"] for name, one in left.items()} == dict.fromkeys(
            ("c1", "c2"), "batch_cancelled"
        )
        assert client.batches.cancel(begun.id).status == "cancelled", "again changes nothing"


def test_a_batch_goes_on_where_a_server_left_off(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, first), of_openai(server) as client:
        begun = begin(client, lines(["a", "wait", "b", "wait", "c"]))
        seen_when(
            lambda: client.batches.retrieve(begun.id).request_counts, lambda counts: counts and counts.completed == 3
        )
    second = Slow()
    second.may_answer = True
    with serving(tmp_path, second) as (server, _), of_openai(server) as client:
        done = ended(client, begun.id)
        assert done.status == "completed"
        assert set(answers(client, done.output_file_id)) == {f"c{n}" for n in range(5)}
    asked = [bytes(request.prompt_ids) for request in second.requests]
    assert asked == [b"wait", b"wait"], "what was answered is not asked again"
    assert len(first.requests) == 5


def test_keys_see_their_own_alone(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice: a\nbob: b\n")
    with serving(tmp_path / "store", key_sources=KeySources(key_file=keys)) as (server, engine):
        alice, bob = of_openai(server, "a"), of_openai(server, "b")
        done = ended(alice, begin(alice, lines(["x"])).id)
        assert engine.requests[0].caller == "alice"
        assert not list(bob.files.list())
        assert not list(bob.batches.list())
        for look in (
            lambda: bob.batches.retrieve(done.id),
            lambda: bob.batches.cancel(done.id),
            lambda: bob.files.content(done.output_file_id),
            lambda: bob.files.delete(done.input_file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                look()
        with pytest.raises(openai.BadRequestError, match="must be the id of a file of yours"):
            bob.batches.create(input_file_id=done.input_file_id, endpoint="/v1/completions", completion_window="24h")


def test_what_one_key_keeps_is_bounded(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice: a\nbob: b\n")
    bounds = {"max_bytes": 250, "max_caller_bytes": 150}
    with serving(tmp_path / "store", key_sources=KeySources(key_file=keys), store=bounds) as (server, _):
        alice, bob = of_openai(server, "a"), of_openai(server, "b")
        kept = alice.files.create(file=("f", b"x" * 140), purpose="batch")
        with pytest.raises(openai.APIStatusError, match=r"your files .* 150 allowed .*--store-gb-per-key") as caught:
            alice.files.create(file=("f", b"x" * 20), purpose="batch")
        assert caught.value.status_code == 413
        with pytest.raises(openai.APIStatusError, match=r"all files .* 250 allowed .*--store-gb"):
            bob.files.create(file=("f", b"x" * 120), purpose="batch")
        alice.files.delete(kept.id)
        bob.files.create(file=("f", b"x" * 120), purpose="batch")


def test_without_a_place_they_are_refused_by_name() -> None:
    with running_server(dialects=real_dialects(settings={"chat_format": "openai"})) as server:
        for method, path in (("GET", "/v1/files"), ("GET", "/v1/batches/x"), ("GET", "/v1/messages/batches")):
            answer = httpx.request(method, f"{server.url}{path}")
            assert answer.status_code == 400
            assert "start the server with --store-dir DIRECTORY" in answer.json()["error"]["message"]


BAD_BATCHES = (
    ({"endpoint": "/v1/messages"}, "endpoint must be /v1/chat/completions"),
    ({"completion_window": "1h"}, "completion_window must be '24h', got \"1h\""),
    ({"input_file_id": "../../etc"}, "input_file_id must be the id of a file of yours"),
    ({"metadata": {"k": "v" * 513}}, "every value in metadata must have at most 512 characters, got 513"),
    ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor must be 'created_at'"),
    (
        {"output_expires_after": {"anchor": "created_at", "seconds": 5}},
        "must be an integer from 3600 to 2592000, got 5",
    ),
)
BAD_FILES = (
    ({"data": {"purpose": "batch"}, "files": None}, "file must be given"),
    ({"data": {"purpose": "vision"}}, "purpose must be 'batch', got \"vision\""),
    ({"data": {"purpose": "batch", "expires_after[seconds]": "3600"}}, "expires_after[anchor] must be 'created_at'"),
)


def test_bad_values_are_told_by_name(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, _), of_openai(server) as client, httpx.Client(base_url=server.url) as http:
        file = client.files.create(file=("f", lines(["a"])), purpose="batch")
        usual = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"}
        for change, told in BAD_BATCHES:
            answer = http.post("/v1/batches", json={**usual, **change})
            assert (answer.status_code, told in answer.json()["error"]["message"]) == (400, True), answer.text
        for fields, told in BAD_FILES:
            answer = http.post("/v1/files", **{"files": {"file": ("f", b"x")}, **fields})  # type: ignore[arg-type]
            assert answer.status_code == 400
            assert told in answer.json()["error"]["message"] or "multipart" in answer.json()["error"]["message"]
        for query, told in (
            ("limit=0", "limit must be an integer from 1"),
            ("after=x", "after must be an id of this list"),
        ):
            assert told in http.get(f"/v1/batches?{query}").json()["error"]["message"]
        assert "order must be asc or desc" in http.get("/v1/files?order=up").json()["error"]["message"]


def test_a_message_batch_from_requests_to_results(tmp_path: Path) -> None:
    def params(text: str, **more: Any) -> Any:
        return {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": text}], **more}

    with serving(tmp_path) as (server, engine), of_anthropic(server) as client:
        requests: Any = [
            {"custom_id": "good", "params": params("a")},
            {"custom_id": "bad", "params": params("b", temperature=7)},
            {"custom_id": "slow", "params": params("wait")},
        ]
        begun = client.messages.batches.create(requests=requests)
        assert (begun.processing_status, begun.request_counts.processing) == ("in_progress", 3)
        with pytest.raises(anthropic.BadRequestError, match="cannot be deleted before it has ended"):
            client.messages.batches.delete(begun.id)
        seen_when(lambda: len(engine.finished), lambda count: count == 1)
        assert client.messages.batches.cancel(begun.id).processing_status in ("canceling", "ended")
        done = seen_when(
            lambda: client.messages.batches.retrieve(begun.id), lambda one: one.processing_status == "ended"
        )
        counts = done.request_counts
        assert (counts.succeeded, counts.errored, counts.canceled, counts.processing) == (1, 1, 1, 0)
        found = {one.custom_id: one.result for one in client.messages.batches.results(begun.id)}
        good, bad = found["good"], found["bad"]
        assert good.type == "succeeded"
        assert good.message.content[0].to_dict() == {"type": "text", "text": "Hello"}
        assert bad.type == "errored"
        assert bad.error.error.type == "invalid_request_error"
        assert found["slow"].type == "canceled"
        assert done.results_url is not None
        assert len(httpx.get(done.results_url).text.splitlines()) == 3
        assert [one.id for one in client.messages.batches.list()] == [begun.id]
        assert client.messages.batches.delete(begun.id).type == "message_batch_deleted"
        assert not client.messages.batches.list().data
        assert not list((tmp_path / "contents").iterdir()), "and nothing of it is left"


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ([], "requests must be an array of 1 to 100000 requests"),
        ([{"custom_id": "a b", "params": {}}], "requests.0.custom_id must be 1 to 64 letters"),
        ([{"custom_id": "a"}], "requests.0.params must be an object, got null"),
        ([{"custom_id": "a", "params": {}}] * 2, "requests.1.custom_id must be another one than that of requests.0"),
        ([{"custom_id": "a", "params": {"stream": True}}], "requests.0.params.stream must be false"),
    ],
)
def test_bad_message_batches_are_told_by_name(tmp_path: Path, requests: Any, told: str) -> None:
    with serving(tmp_path) as (server, _):
        answer = httpx.post(f"{server.url}/v1/messages/batches", json={"requests": requests})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(told)


def test_a_batch_whose_time_is_over_ends_with_what_is_answered(tmp_path: Path) -> None:
    async def run() -> None:
        async def some(body: bytes) -> Reply:
            if b"wait" in body:
                await asyncio.Event().wait()
            return await good(body)

        case = Case(tmp_path, some)
        done = await case.until_ended(await case.submit(["a", "wait"], max_age_s=1))
        assert (done.state, done.num_good, done.num_bad) == ("expired", 1, 1)
        assert done.errors_id is not None
        assert b"batch_expired" in case.store.content(done.errors_id).read_bytes()
        await case.desk.aclose()

    asyncio.run(run())


def test_files_and_batches_go_when_they_are_old(tmp_path: Path) -> None:
    async def run() -> None:
        case = Case(tmp_path, good)
        done = await case.until_ended(await case.submit(["a"]))
        case.now_s += 29 * 24 * 3600
        assert case.store.files("")
        case.now_s += 2 * 24 * 3600
        assert not case.store.files("")
        assert not case.store.batches()
        assert not list((tmp_path / "contents").iterdir())
        assert done.state == "completed"
        await case.desk.aclose()

    asyncio.run(run())


def test_a_model_that_is_not_there_yet_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.batch.run.FIRST_DELAY_S", 0.001)

    async def run() -> None:
        async def late(body: bytes) -> Reply:
            return Reply(503, b"{}", "application/json") if len(case.asked) < 4 else await good(body)

        case = Case(tmp_path, late)
        done = await case.until_ended(await case.submit(["a"]))
        assert (done.state, done.num_good, len(case.asked)) == ("completed", 1, 4)
        await case.desk.aclose()

    asyncio.run(run())


_KILLED = """
import asyncio, os, sys
from pathlib import Path
from tests.support.batch_desk import Case, good

async def run():
    left = int(sys.argv[2])
    async def some(body):
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return await good(body)
    case = Case(Path(sys.argv[1]), some)
    case.desk.start()
    if not case.store.batches():
        await case.submit([str(n) for n in range(40)])
    await case.until_ended(case.store.batches()[0])

asyncio.run(run())
"""


def test_a_process_that_is_killed_loses_no_answer_and_repeats_none(tmp_path: Path) -> None:
    for left in (0, 3, 17):
        done = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path), str(left)], check=False)
        assert done.returncode == -signal.SIGKILL

    async def run() -> None:
        case = Case(tmp_path, good)
        (batch,) = case.store.batches()
        num_answered = len(list(lines_of(case.store.answers(batch.id))))
        assert num_answered >= 3 - 1 + 17 - 1
        case.desk.start()
        done = await case.until_ended(batch)
        assert len(case.asked) == 40 - num_answered
        assert done.output_id is not None
        read = [json.loads(line)["custom_id"] for line in lines_of(case.store.content(done.output_id))]
        assert sorted(read) == sorted(f"c{n}" for n in range(40))
        await case.desk.aclose()

    asyncio.run(run())


def test_a_directory_is_one_servers_and_its_owners(tmp_path: Path) -> None:
    store = Store(StoreConfig(tmp_path))
    with pytest.raises(StoreError, match="another server uses it"):
        Store(StoreConfig(tmp_path))
    stored = store.add_file("", "f", "batch", b"x")
    modes = {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}
    assert (modes, store.content(stored.id).read_bytes()) == ({0o600}, b"x")
    store.close()
    (tmp_path / "files" / "file-bad.json").write_text("{")
    (tmp_path / "contents" / "file-stray").write_text("left by a process that was killed")
    again = Store(StoreConfig(tmp_path))
    assert [one.id for one in again.files("")] == [stored.id]
    assert not (tmp_path / "contents" / "file-stray").exists()
    again.close()
    (tmp_path / "not").write_text("")
    with pytest.raises(StoreError, match="must be a directory to write in"):
        Store(StoreConfig(tmp_path / "not"))
