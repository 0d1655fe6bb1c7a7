"""Two servers behind one: prompts go where their beginning is known, and what happens to them when a server is killed.

The tests share the servers and run in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dragoman.config.resolve import demo_model_dir
from tests.engine.remote.asking import beginning
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.server_process import ServerProcess, serve

LONG = 1500  # tokens: more than are made before a server is killed


pytestmark = pytest.mark.full("four processes; tests/engine/remote has servers that come, go and break off in this one")


@dataclass
class Servers:
    """`front` asks the others, each of which runs one sequence at a time."""

    front: ServerProcess
    behind: list[ServerProcess]

    def ask(self, prompt: str, max_tokens: int = 4) -> httpx.Response:
        """The answer to a completion."""
        return httpx.post(f"{self.front.base_url}/v1/completions", json=body(prompt, max_tokens), timeout=PATIENCE_S)

    def home(self, prompt: str) -> int:
        """The place of the server that answers this."""
        before = [server.metrics()["dragoman_prefix_cache_queries_total"] for server in self.behind]
        assert self.ask(prompt).status_code == 200
        after = [server.metrics()["dragoman_prefix_cache_queries_total"] for server in self.behind]
        (place,) = [place for place in range(len(self.behind)) if after[place] > before[place]]
        return place

    def gauges(self, name: str) -> list[float]:
        """What the front tells of each server behind."""
        text = httpx.get(f"{self.front.base_url}/metrics", timeout=PATIENCE_S).text
        found = {
            sample.labels["upstream"]: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        }
        return [found[f"{server.base_url}/v1"] for server in self.behind]


def body(prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"model": "demo", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        options = ("--name", "demo", "--dtype", "f32", "--speculation", "off", "--max-num-seqs", "1")
        behind = [stack.enter_context(serve(*options)) for _ in range(2)]
        urls = ",".join(server.base_url for server in behind)
        front = stack.enter_context(
            serve(str(demo_model_dir()), "--name", "demo", "--engine", "remote", "--upstream", urls)
        )
        yield Servers(front, behind)


def test_prompts_that_begin_alike_go_to_one_server_which_has_their_beginning(servers: Servers) -> None:
    homes = set[int]()
    for number in range(40):
        place = servers.home(beginning(number))
        hits = servers.behind[place].metrics()["dragoman_prefix_cache_hits_total"]
        assert servers.home(beginning(number) + "Another end.") == place
        assert servers.behind[place].metrics()["dragoman_prefix_cache_hits_total"] >= hits + 32
        homes.add(place)
        if homes == {0, 1}:
            break
    assert homes == {0, 1}


def test_a_server_that_is_killed_takes_only_the_streams_along_that_have_begun(servers: Servers) -> None:
    prompt = beginning(0)
    place = servers.home(prompt)
    expected = servers.ask(prompt, 8).json()["choices"][0]["text"]
    stream = httpx.stream(
        "POST",
        f"{servers.front.base_url}/v1/completions",
        json=body(prompt, LONG) | {"stream": True},
        timeout=PATIENCE_S,
    )
    with ThreadPoolExecutor() as pool, stream as answer:
        lines = answer.iter_lines()
        assert "text" in next(lines)
        waiting = pool.submit(servers.ask, prompt, 8)
        wait_until(lambda: servers.gauges("dragoman_upstream_requests")[place] == 2)
        assert not waiting.done()
        servers.behind[place].process.kill()
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        error = next(json.loads(event) for event in events if '"error"' in event)
        assert error["error"]["type"] == "server_error"
        assert not any('"finish_reason":"' in event for event in events)
        assert waiting.result().json()["choices"][0]["text"] == expected, "the other one has answered it"
    for number in range(4):
        assert servers.ask(beginning(number)).status_code == 200
    healthy = servers.gauges("dragoman_upstream_healthy")
    assert (healthy[place], healthy[1 - place]) == (0, 1)
    assert servers.gauges("dragoman_upstream_requests") == [0, 0]
