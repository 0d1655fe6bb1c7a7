"""Asynchronous handlers behind a real server: answers, streams, what they share, what they leave to the engine."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.errors import HookError
from dragoman.server.apis.lmi.hooks.handler_io import Output, create_non_stream_output, handle_streaming_response
from dragoman.server.apis.lmi.hooks.threads import HandlerLoop
from tests.hooks.handling import handling, post
from tests.support.patience import PATIENCE_S
from tests.support.tables import table

pytestmark = pytest.mark.varies("asyncio's loops and tasks differ between Pythons")

HELPERS = "from djl_python.async_utils import create_non_stream_output, create_stream_chunk_output\n"


def handler(body: str) -> str:
    """An asynchronous handler with these lines."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return f"{HELPERS}import asyncio, threading\n\nasync def handle(inputs: Input):\n{lines}\n"


class TestAnswers:
    def test_a_helper_makes_a_line_of_json(self, tmp_path: Path) -> None:
        source = handler('return create_non_stream_output({"got": inputs.get_as_json()}, properties={"x-own": "1"})')
        with handling(tmp_path, source) as (server, _):
            answer = post(server, {"inputs": "é"})
            assert (answer.status_code, answer.text) == (200, '{"got": {"inputs": "é"}}\n')
            assert (answer.headers["content-type"], answer.headers["x-own"]) == ("application/json", "1")

    @table(
        ("line", "status", "error"),
        [
            ("return create_non_stream_output('', error='not so', code=409)", 409, "not so"),
            ("return create_non_stream_output('', error='not so')", 424, "not so"),
            ("raise ValueError('bad luck')", 424, "Custom handler failed: bad luck"),
            ("import sys; sys.exit(2)", 424, "Custom handler failed: 2"),
        ],
    )
    def test_errors_have_lmis_short_shape(self, tmp_path: Path, line: str, status: int, error: str) -> None:
        with handling(tmp_path, handler(line)) as (server, _):
            for _ in range(2):
                answer = post(server, {})
                assert (answer.status_code, answer.json()) == (status, {"error": error, "code": status})

    def test_none_leaves_the_call_to_the_engine(self, tmp_path: Path) -> None:
        source = handler('return None if b"inputs" in inputs.get_as_bytes() else Output().add("mine")')
        with handling(tmp_path, source) as (server, _):
            assert post(server, {"mine": 1}).text == "mine"
            body = {"inputs": "hi", "parameters": {"max_new_tokens": 3}}
            assert post(server, body).json() == {"generated_text": " Deep learning is"}
            assert post(server, body, "/endpoints/any/invocations").json() == {"generated_text": " Deep learning is"}
            streamed = post(server, {**body, "stream": True}).text.splitlines()
            assert json.loads(streamed[-1])["generated_text"] == " Deep learning is"
            assert post(server, {"inputs": 5}).status_code == 424

    def test_as_the_entry_point_it_is_initialised_and_none_is_no_content(self, tmp_path: Path) -> None:
        source = "started = []\n" + handler("started.append(inputs.is_empty())")
        with handling(tmp_path, source, entry_point="own.py") as (server, module):
            assert post(server, {"inputs": "hi"}).status_code == 204
            assert module.started == [True, False]

    def test_beside_lmis_own_handler_there_is_no_first_call_and_requests_bring_the_options(
        self, tmp_path: Path
    ) -> None:
        source = handler('return Output().add([inputs.get_property("TASK"), inputs.get_property("model_dir")])')
        with handling(tmp_path, source) as (server, _):
            assert post(server, {}).json() == ["say", "/models/m"]
            assert post(server, {}, headers={"task": "sing"}).json()[0] == "sing", "the client's own goes before"


class TestStreams:
    def test_a_generator_of_outputs_is_a_stream(self, tmp_path: Path) -> None:
        source = handler(
            """
async def words():
    for word in ("one", "two"):
        yield create_stream_chunk_output({"word": word}, False)
    yield create_stream_chunk_output({"word": "three"}, True)
    yield create_stream_chunk_output({"word": "after the last one"}, True)
return words()
"""
        )
        with handling(tmp_path, source) as (server, _):
            answer = post(server, {})
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/jsonlines")
            assert answer.text == '{"word": "one"}\n{"word": "two"}\n{"word": "three"}\n'

    def test_the_handler_may_be_a_generator_itself(self, tmp_path: Path) -> None:
        source = handler('yield Output().add("a").add_property("Content-Type", "text/plain")\nyield Output().add("b")')
        with handling(tmp_path, source) as (server, _):
            answer = post(server, {})
            assert (answer.text, answer.headers["content-type"]) == ("ab", "text/plain")

    def test_an_output_with_an_iterator_blocks_nobody(self, tmp_path: Path) -> None:
        source = "import threading\ngo = threading.Event()\n" + handler(
            """
if inputs.get_as_string() == "quick":
    return Output().add("quick")
def words():
    yield "one"
    go.wait()
    yield "two"
return Output().add_stream_content(words())
"""
        )
        with handling(tmp_path, source) as (server, module), httpx.stream(
            "POST", f"{server.url}/invocations", content=b"slow", timeout=PATIENCE_S
        ) as answer:  # fmt: skip
            lines = answer.iter_lines()
            assert next(lines) == '{"outputs": "one"}'
            assert post(server, b"quick").text == "quick"
            module.go.set()
            assert list(lines) == ['{"outputs": "two"}']

    @table(
        ("line", "text"),
        [
            ('raise RuntimeError("no more")', "Custom handler failed: no more"),
            ('yield create_stream_chunk_output("", True, error="not so", code=400)', "not so"),
            ("yield 5", "Custom handler failed: Invalid output type: <class 'int'>"),
        ],
    )
    def test_a_failure_is_the_last_line_or_a_status(self, tmp_path: Path, line: str, text: str) -> None:
        source = handler(
            f'if inputs.get_as_string() == "late":\n    yield create_stream_chunk_output("one", False)\n{line}'
        )
        with handling(tmp_path, source) as (server, _):
            late = post(server, b"late")
            assert (late.status_code, late.text.splitlines()[0]) == (200, "one")
            assert json.loads(late.text.splitlines()[1]) == {"error": text, "code": 424}
            early = post(server, b"early")
            assert early.status_code == early.json()["code"] == (400 if "not so" in line else 424)
            assert early.json()["error"] == text

    def test_a_client_that_leaves_closes_the_generator(self, tmp_path: Path) -> None:
        source = "import threading\nclosed = threading.Event()\n" + handler(
            """
try:
    yield create_stream_chunk_output("one", False)
    await asyncio.Event().wait()
finally:
    closed.set()
"""
        )
        with handling(tmp_path, source) as (server, module):
            with httpx.stream("POST", f"{server.url}/invocations", timeout=PATIENCE_S) as answer:
                assert next(answer.iter_lines()) == "one"
            assert module.closed.wait(PATIENCE_S)


class TestTheEventLoop:
    def test_calls_run_side_by_side_on_one_loop(self, tmp_path: Path) -> None:
        source = "meeting, loops = [], set()\n" + handler(
            """
meeting.append(asyncio.Event())
loops.add(asyncio.get_running_loop())
if len(meeting) == 2:
    for event in meeting:
        event.set()
await meeting[0].wait()
return Output().add(threading.current_thread().name)
"""
        )
        with handling(tmp_path, source) as (server, module), ThreadPoolExecutor(2) as clients:
            answers = list(clients.map(lambda _: post(server, {}).text, range(2)))
            assert answers == ["dragoman-handler"] * 2
            assert len(module.loops) == 1

    def test_a_call_that_blocks_it_costs_those_beside_it_and_no_later_one(self, tmp_path: Path) -> None:
        source = "import threading\nrelease = threading.Event()\n" + handler(
            'if inputs.get_as_string() == "block":\n    release.wait()\nreturn Output().add("done")'
        )
        with handling(tmp_path, source, timeout_s=0.3) as (server, module):
            late = post(server, b"block")
            assert late.status_code == 424
            assert "longer than the 0.3 s" in late.json()["error"]
            answer = post(server, b"next")
            while answer.status_code != 200:  # until the server has noticed that the loop does not answer
                answer = post(server, b"next")
            assert answer.text == "done"
            module.release.set()

    def test_calls_beside_one_that_blocks_the_loop_for_good_fail_and_are_ended(self) -> None:
        release, ended = threading.Event(), threading.Event()

        async def wait(is_begun: threading.Event) -> None:
            is_begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async def block(is_begun: threading.Event) -> None:
            is_begun.set()
            release.wait()

        async def scenario() -> None:
            handler_loop = HandlerLoop(probe_s=0.01)
            begun = [threading.Event(), threading.Event()]
            beside = asyncio.create_task(handler_loop.run(lambda: wait(begun[0])))
            await asyncio.to_thread(begun[0].wait)
            blocking = asyncio.create_task(handler_loop.run(lambda: block(begun[1])))
            await asyncio.to_thread(begun[1].wait)
            never_begun = asyncio.create_task(handler_loop.run(lambda: wait(threading.Event())))
            await asyncio.sleep(0)
            blocking.cancel()
            while not handler_loop.num_stuck:  # noqa: ASYNC110  # there is no event for it
                await asyncio.sleep(0)
            release.set()
            for call in (beside, never_begun):
                with pytest.raises(HookError, match="blocked by another call"):
                    await call

        asyncio.run(scenario())
        assert ended.is_set()

    def test_it_stops_when_nobody_can_use_it_any_more(self) -> None:
        async def current() -> asyncio.AbstractEventLoop:
            return asyncio.get_running_loop()

        handler_loop: HandlerLoop | None = HandlerLoop()
        assert handler_loop is not None
        loop = asyncio.run(handler_loop.run(current))
        assert loop.is_running()
        handler_loop = None
        while not loop.is_closed():
            pass


class TestHelpers:
    def test_a_text_is_sent_as_it_is(self) -> None:
        assert create_non_stream_output("text").body() == b"text\n"

    @table("accumulate", [True, False])
    def test_streams_go_through_a_formatter(self, accumulate: bool) -> None:
        def write(chunk: str, history: list[str] | None = None, mark: str = "") -> tuple[Any, ...]:
            if chunk == "bad":
                raise ValueError("cannot write this")
            if history is None:
                return chunk + mark, chunk == "end"
            return "".join([*history, chunk]) + mark, chunk == "end", [*history, chunk]

        async def outputs(*chunks: str) -> list[Output]:
            async def source() -> Any:
                for chunk in chunks:
                    yield chunk

            made = handle_streaming_response(source(), write, accumulate, mark="!")
            return [output async for output in made]

        ended = asyncio.run(outputs("a", "end", "b"))
        assert [one.body() for one in ended] == [b"a!\n", b"aend!\n" if accumulate else b"end!\n"]
        assert [one.is_last for one in ended] == [False, True]
        failed = asyncio.run(outputs("a", "bad", "b"))
        assert [one.failure for one in failed] == [None, "cannot write this"]
