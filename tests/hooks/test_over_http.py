"""Hooks behind a real server: failures as statuses and in streams, and that they stall nobody."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from dragoman.server.apis.lmi.hooks.threads import HookPool
from tests.hooks.hooked import ECHO, hooked_dialects, loaded, prompt
from tests.support.fake_service import Script
from tests.support.patience import PATIENCE_S
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

STREAM = {"stream": True}
FAILS_AT = """
@output_formatter
def write(output: RequestOutput):
    token, first, last = output.sequences[0].get_next_token()
    if token.text == output.input.parameters["fails_at"]:
        raise ValueError("cannot write this")
    return token.text + chr(10)
"""
WAITS = """
import threading
entered, release = threading.Semaphore(0), threading.Event()

@input_formatter
def read(item, **kwargs):
    body = item.get_as_json()
    if body.get("wait"):
        entered.release()
        release.wait()
    return TextInput(input_text="hi", parameters={"max_new_tokens": 1})
"""


@contextmanager
def serving(directory: Path, source: str, timeout_s: float = PATIENCE_S) -> Iterator[tuple[RunningServer, Any]]:
    """A server with the formatters of such a file, and the file's module."""
    hooks = loaded(directory, source)
    dialects = hooked_dialects(hooks, HookPool(timeout_s).run)
    with running_server(dialects=dialects) as server:
        server.service.script = Script()
        yield server, hooks.module


def post(server: RunningServer, body: Any, path: str = "/invocations") -> httpx.Response:
    """The answer to a JSON body."""
    return httpx.post(f"{server.url}{path}", json=body, timeout=PATIENCE_S * 2)


def test_answers_and_streams_are_the_formatters_words(tmp_path: Path) -> None:
    with serving(tmp_path, ECHO) as (server, _):
        for body, media_type in ((prompt(), "application/json"), (prompt() | STREAM, "application/jsonlines")):
            answer = post(server, body)
            assert (answer.status_code, answer.text) == (200, "[ Deep][ learning][ is].")
            assert answer.headers["content-type"] == media_type
        assert server.service.journal.lines.count("end") == 0
        assert len([line for line in server.service.journal.lines if line.startswith("end ")]) == 2


def test_a_body_that_an_input_formatter_rewrote_is_the_one_that_is_served(tmp_path: Path) -> None:
    renames = """
    @input_formatter
    def read(decoded_payload: dict, **kwargs) -> dict:
        return {"inputs": decoded_payload["question"], "parameters": {"max_new_tokens": 2}}
    """
    with serving(tmp_path, renames) as (server, _):
        answer = post(server, {"question": "What is it?", "inputs": 5})
        assert (answer.status_code, answer.json()) == (200, {"generated_text": " Deep learning"})


@table("stream", [False, True])
def test_a_failure_before_the_head_is_424(tmp_path: Path, stream: bool) -> None:
    with serving(tmp_path, FAILS_AT) as (server, _):
        answer = post(server, prompt(fails_at=" Deep") | {"stream": stream})
        assert answer.status_code == 424
        assert answer.json() == {
            "error": "Output formatter write failed: ValueError: cannot write this", "code": 424,
        }  # fmt: skip
        assert post(server, prompt(fails_at="")).status_code == 200, "the next request is fine"


def test_a_failure_in_a_stream_is_its_last_line_and_ends_the_generation(tmp_path: Path) -> None:
    with serving(tmp_path, FAILS_AT) as (server, _):
        with httpx.stream(
            "POST", f"{server.url}/invocations", json=prompt(fails_at=" is") | STREAM, timeout=PATIENCE_S
        ) as answer:
            status, lines = answer.status_code, list(answer.iter_lines())
        if status == 200:  # else everything was ready before the head was sent
            assert json.loads(lines[-1])["details"]["finish_reason"] == "error"
        assert json.loads(lines[-1])["error"] == "Output formatter write failed: ValueError: cannot write this"


def test_hooks_that_wait_stall_no_other_request(tmp_path: Path) -> None:
    with serving(tmp_path, WAITS) as (server, module), ThreadPoolExecutor(3) as clients:
        waiting = [clients.submit(post, server, {"wait": True}) for _ in range(3)]
        for _ in waiting:
            assert module.entered.acquire(timeout=PATIENCE_S)
        assert post(server, {"wait": False}).status_code == 200
        chat = {"messages": [{"role": "user", "content": "q"}], "max_tokens": 2}
        assert post(server, chat, "/v1/chat/completions").status_code == 200
        assert httpx.get(f"{server.url}/ping").status_code == 200
        assert not any(future.done() for future in waiting)
        module.release.set()
        assert [future.result().status_code for future in waiting] == [200] * 3


def test_a_hook_that_hangs_costs_its_own_request_only(tmp_path: Path) -> None:
    with serving(tmp_path, WAITS, timeout_s=0.5) as (server, module):
        answer = post(server, {"wait": True})
        assert (answer.status_code, answer.json()["code"]) == (424, 424)
        assert "longer than 0.5 s" in answer.json()["error"]
        module.release.set()


def test_hooks_run_away_from_the_event_loop(tmp_path: Path) -> None:
    source = """
    import threading
    names = set()

    @input_formatter
    def read(item, **kwargs):
        names.add(threading.current_thread().name)
        return TextInput(input_text="hi", parameters={"max_new_tokens": 2, "stream": item.get_as_json()["live"]})

    @output_formatter
    def write(output: RequestOutput):
        names.add(threading.current_thread().name)
        return output.sequences[0].get_next_token()[0].text
    """
    with serving(tmp_path, source) as (server, module):
        for live in (True, False):
            assert post(server, {"live": live}).text == " Deep learning"
        assert module.names == {"dragoman-hook"}
        assert threading.current_thread().name not in module.names


@table("route", ["invocations", "invocations-response-stream"])
def test_sagemakers_routes_run_them_too_and_away_from_the_event_loop(tmp_path: Path, route: str) -> None:
    source = """
    import threading

    @output_formatter
    def write(output: RequestOutput):
        output.sequences[0].get_next_token()
        return threading.current_thread().name + " "
    """
    with serving(tmp_path, source) as (server, _):
        answer = post(server, prompt(max_new_tokens=1) | STREAM, f"/endpoints/any/{route}")
        assert answer.status_code == 200
        assert b"dragoman-hook " in answer.content
