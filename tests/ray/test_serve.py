"""Two replicas of the demo model on Ray Serve, on this machine: every API, a killed replica, clients that leave, the end.

Needs Ray (`make test-ray`); skipped where it is not installed. The tests share one application and run in their order.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from dragoman.server.apis import NAMES, load_apis
from dragoman.server.operations import GenerateOperation
from tests.support.server_process import free_port

ray = pytest.importorskip("ray", reason="Ray is not installed; see `make test-ray`")
serve = pytest.importorskip("ray.serve")

PATIENCE_S = 240.0
RUNNING = 2  # sequences that a replica runs at a time; the others wait in its engine
QUESTION = {"model": "demo", "prompt": "What is deep learning?", "temperature": 0}
LONG = 900  # tokens: on every machine more than these tests have patience for
SEEN_AFTER = 3  # lines of a stream that show that it goes on


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the application answers."""
    from dragoman.ray import build

    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0",
        OMP_NUM_THREADS="1",
        RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="60",  # on a busy machine Python alone takes longer than the default
    )
    ray.init(
        "local", num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, _node_ip_address="127.0.0.1",
        namespace="serve", log_to_driver=False,
    )  # fmt: skip
    port = free_port()
    try:
        with suppress(TimeoutError):  # on a busy machine the proxy takes longer than Serve waits; it comes nevertheless
            serve.start(http_options={"host": "127.0.0.1", "port": port})
        options = {
            "dtype": "f32",
            "max_num_seqs": RUNNING,
            "kv_cache_gb": 0.0625,
            "drain_timeout": 120,
            "speculation": "off",
            "prefix_store_gb": 0.1,
            "prefix_store_dir": str(tmp_path_factory.mktemp("ray") / "store"),
        }
        serve.run(build({"num_replicas": 2, "num_cpus": 0.5, **options}))
        until(lambda: answers(f"http://127.0.0.1:{port}/ping"))
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def answers(url: str) -> bool:
    """True once the proxy has found the application."""
    try:
        return httpx.get(url, timeout=PATIENCE_S).status_code == 200
    except httpx.TransportError:
        return False


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.2)


def replicas(application: str = "default") -> dict[str, Any]:
    """The health of each of the two replicas, by name; Serve chooses whom it asks, so it is asked until both have told."""
    found: dict[str, Any] = {}
    handle = serve.get_deployment_handle("Engine", application)

    def ask() -> bool:
        health = handle.health.remote().result()
        found[health.replica] = health
        return len(found) == 2

    until(ask)
    return found


def num_running() -> int:
    return sum(one.engine.num_running + one.engine.num_waiting for one in replicas().values())


def num_generated() -> int:
    return sum(one.stats.num_generated_tokens for one in replicas().values())


def test_each_api_answers(url: str) -> None:
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        lmi = client.post("/invocations", json={"inputs": QUESTION["prompt"], "parameters": {"max_new_tokens": 8}})
        assert lmi.json()["generated_text"] == "\n\nDeep learning is a kind of"
        text = client.post("/api/generate-one", json={"id": "1", "prompt": QUESTION["prompt"], "maxLength": 8})
        assert text.text == "\n\nDeep learning is a kind of"
        chat = {"model": "demo", "messages": [{"role": "user", "content": "What is deep learning?"}], "max_tokens": 8}
        assert client.post("/v1/chat/completions", json=chat).json()["choices"][0]["finish_reason"] == "length"
        several = {**QUESTION, "prompt": [QUESTION["prompt"]] * 3, "max_tokens": 8}
        choices = client.post("/v1/completions", json=several).json()["choices"]
        assert [one["text"] for one in choices] == ["\n\nDeep learning is a kind of"] * 3
        assert client.get("/ping").status_code == 200
        assert len(chat_id := client.get("/ping").headers.get_list("x-request-id")) == 1, chat_id


NO_TEXT = "embed|rerank|score|predict$|classify|pooling"
GENERATING = [
    operation
    for api in load_apis(NAMES)
    for operation in api.operations
    if isinstance(operation, GenerateOperation) and not re.search(NO_TEXT, operation.path)
]


@pytest.mark.parametrize("operation", GENERATING, ids=lambda operation: operation.path)
def test_each_operation_generates(operation: GenerateOperation, url: str) -> None:
    body = {**operation.example, **({"model": "demo"} if "model" in operation.example else {})}
    before = num_generated()
    path = re.sub(r"{\w+}", "demo", operation.path)
    answer = httpx.request(operation.method, url + path, json=body, timeout=PATIENCE_S)
    assert answer.status_code == (206 if operation.path.startswith("/api/generate-") else 200)  # 206: cut at its length
    assert not re.search(r'"error": ?[^n ]', answer.text), answer.text  # null where there is none
    assert num_generated() > before


def test_a_stream_comes_in_pieces(url: str) -> None:
    body = {**QUESTION, "max_tokens": 24, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE_S) as answer:
        chunks = list(answer.iter_raw())
    assert len(chunks) > 3
    assert b"".join(chunks).endswith(b"data: [DONE]\n\n")


def test_errors_are_told_in_the_words_of_each_api(url: str) -> None:
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        wrong = client.post("/v1/completions", json={**QUESTION, "temperature": -1})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "temperature")
        assert client.post("/invocations", json={"parameters": {}}).json()["code"] == 424


def test_a_client_that_leaves_ends_its_request_on_the_replica(url: str) -> None:
    body = {**QUESTION, "max_tokens": LONG, "ignore_eos": True, "stream": True}
    for _ in range(2):
        before = num_generated()
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE_S) as answer:
            next(answer.iter_raw())
        until(lambda: num_running() == 0)
        assert 0 < num_generated() - before < LONG


@dataclass
class Outcome:
    """What came of one request. `lines`: what its stream said, without the end mark.

    `is_enough`: from when on its client leaves as soon as it has seen that the stream goes on.
    """

    status: int = 0
    lines: list[str] = field(default_factory=list)
    began: threading.Event = field(default_factory=threading.Event)
    is_enough: threading.Event = field(default_factory=threading.Event)
    was_cut: bool = False
    has_left: bool = False

    @property
    def error(self) -> bool:
        """True if the last line tells of one, in the shape of OpenAI's or of LMI's streams."""
        last = json.loads(self.lines[-1].removeprefix("data: "))
        return "error" in last or last.get("code", 200) >= 400


def ask(url: str, path: str, body: object, outcome: Outcome) -> None:
    """Send one request and read its answer."""
    num_after = 0
    with httpx.stream("POST", url + path, json=body, timeout=PATIENCE_S) as answer:
        outcome.status = answer.status_code
        try:
            for line in answer.iter_lines():
                if not line or line == "data: [DONE]":
                    continue
                outcome.lines.append(line)
                outcome.began.set()
                num_after += outcome.is_enough.is_set()
                if num_after > SEEN_AFTER and not outcome.error:
                    outcome.has_left = True
                    return
        except httpx.RemoteProtocolError:
            outcome.was_cut = True


def test_a_killed_replica_costs_nothing_but_the_streams_that_had_begun(url: str) -> None:
    stream = {**QUESTION, "max_tokens": LONG, "ignore_eos": True, "stream": True}
    parameters = {"max_new_tokens": LONG, "ignore_eos_token": True}
    lmi_stream = {"inputs": QUESTION["prompt"], "parameters": parameters, "stream": True}
    streams = [("/v1/completions", stream), ("/invocations", lmi_stream)] * 4
    wholes = [("/v1/completions", {**QUESTION, "max_tokens": 16})] * 8
    asked = [*streams, *wholes]
    outcomes = [Outcome() for _ in asked]
    victim, _ = replicas().values()  # before they have so much to do that nobody else gets a turn
    with ThreadPoolExecutor(len(asked)) as pool:
        futures = [pool.submit(ask, url, *one, outcome) for one, outcome in zip(asked, outcomes, strict=True)]
        until(lambda: sum(one.began.is_set() for one in outcomes[: len(streams)]) >= 2 * RUNNING)
        os.kill(victim.pid, signal.SIGKILL)
        had_begun = [one.began.is_set() for one in outcomes]
        for one in outcomes[: len(streams)]:
            one.is_enough.set()
        for future in futures:
            future.result()
    assert [one.status for one in outcomes] == [200] * len(outcomes)
    assert not any(one.was_cut for one in outcomes)
    for one in outcomes[len(streams) :]:
        assert json.loads(one.lines[0])["choices"][0]["text"].startswith("\n\nDeep learning is a kind of")
    failed = [number for number, one in enumerate(outcomes) if one.error]
    assert 1 <= len(failed) <= RUNNING, (
        "the killed replica ran streams that had begun, and no more than it runs at a time"
    )
    assert all(had_begun[number] for number in failed)
    assert all(one.error or one.has_left for one in outcomes[: len(streams)]), "all others have gone on"


def test_the_replica_is_replaced(url: str) -> None:
    assert len(replicas()) == 2
    answer = httpx.post(f"{url}/v1/completions", json={**QUESTION, "max_tokens": 8}, timeout=PATIENCE_S)
    assert answer.json()["choices"][0]["text"] == "\n\nDeep learning is a kind of"


def test_what_a_replica_has_computed_others_read_from_the_disk_when_it_was_killed(url: str) -> None:
    text = "Rivers carry water from the mountains to the sea, and what they carry with it they leave on the way. " * 12

    def answer(number: int) -> Any:
        body = {**QUESTION, "prompt": f"{number}. {text}", "max_tokens": 8}
        return httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE_S).json()

    def num_written() -> dict[str, int]:
        return {one.replica: sum(one.stats.stored_write_s.counts) for one in replicas().values()}

    before = num_written()
    computed = [answer(number) for number in range(12)]
    num_blocks = sum(one["usage"]["prompt_tokens"] // 32 for one in computed)
    until(lambda: sum(num_written().values()) - sum(before.values()) >= num_blocks)
    victim = max(replicas().values(), key=lambda one: sum(one.stats.stored_write_s.counts) - before[one.replica])
    num_hits = sum(one.stats.num_stored_hits for one in replicas().values() if one.pid != victim.pid)
    os.kill(victim.pid, signal.SIGKILL)
    numbers = itertools.cycle(range(12))  # the others look for what was written every five seconds

    def is_read() -> bool:
        number = next(numbers)
        assert answer(number)["choices"] == computed[number]["choices"]
        return bool(sum(one.stats.num_stored_hits for one in replicas().values()) > num_hits)

    until(is_read)


def test_an_application_that_is_deleted_finishes_the_requests_that_run(url: str) -> None:
    begin = time.monotonic()
    httpx.post(f"{url}/v1/completions", json={**QUESTION, "max_tokens": 16}, timeout=PATIENCE_S)
    num_tokens = round(min(LONG, max(20.0, 16 * 15 / (time.monotonic() - begin))))  # about 15 s of work
    outcome = Outcome()
    body = {**QUESTION, "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    with ThreadPoolExecutor(2) as pool:
        asking = pool.submit(ask, url, "/v1/completions", body, outcome)
        assert outcome.began.wait(PATIENCE_S)
        serve.delete("default")
        asking.result()
    assert outcome.status == 200
    assert not outcome.was_cut
    assert json.loads(outcome.lines[-1].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    until(lambda: httpx.get(f"{url}/ping", timeout=PATIENCE_S).status_code == 404)
