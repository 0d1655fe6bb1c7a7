"""How calls are run and answered: whole, streamed, failing, late, abandoned; over real HTTP, with a scripted service."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from dragoman.errors import EngineFailed, InvalidParameter, Overloaded, RequestTimeout
from dragoman.server.admission import Admission
from dragoman.server.generation.prepare import ServiceLimits
from dragoman.server.generation.service import Service
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import FakeEngine as SteppingEngine
from tests.support.fake_engine import saying
from tests.support.fake_service import Gate, Script
from tests.support.running_server import RunningServer, post_bytes, read_to_end, read_until, running_server
from tests.support.tables import table

WHOLE = " Deep learning is fun. 🍊"
LINES = [f"0:{word}\n" for word in (" Deep", " learning", " is", " fun", ".", " 🍊", "")]


def body(**fields: Any) -> bytes:
    """A line dialect's request body."""
    return json.dumps(fields).encode()


def reset(connection: socket.socket) -> None:
    """Close a connection the hard way, as a killed client does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class TestWholeAnswers:
    def test_it_comes_with_its_length(self, client: httpx.Client) -> None:
        answer = client.post("/invocations", json={})
        assert answer.text == f"0:{WHOLE}\n"
        assert int(answer.headers["content-length"]) == len(answer.content)
        assert "transfer-encoding" not in answer.headers

    def test_a_call_with_several_prompts_runs_them_at_once_and_keeps_their_order(self, server: RunningServer) -> None:
        gate = Gate()
        server.service.script = Script(gates={2: gate})
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(
                httpx.post, f"{server.url}/invocations", json={"prompts": ["a", "b", "c"]},
                headers={"x-request-id": "several"},
            )  # fmt: skip
            paused = {f"pause several-{index}" for index in range(3)}
            server.service.journal.wait_for(lambda lines: paused <= set(lines))
            gate.open()
            assert answer.result().text == f"0:{WHOLE}\n1:{WHOLE}\n2:{WHOLE}\n"

    def test_one_failing_prompt_cancels_the_others(self, server: RunningServer, client: httpx.Client) -> None:
        server.service.script = Script(gates={1: Gate()})  # never opened: the others cannot end by themselves
        server.service.scripts["b"] = Script(failures={0: EngineFailed("the second prompt failed")})
        answer = client.post("/invocations", json={"prompts": ["a", "b", "c"]}, headers={"x-request-id": "mixed"})
        assert answer.json() == {"dialect": "lmi", "kind": "engine_failed", "message": "the second prompt failed"}
        server.service.journal.wait_for(lambda lines: {"abort mixed-0", "abort mixed-2"} <= set(lines))

    @table("leave", [socket.socket.close, reset], ids=["close", "reset"])
    def test_a_client_that_leaves_aborts_the_request(self, server: RunningServer, leave: Any) -> None:
        server.service.script = Script(gates={3: Gate()})
        request_id = f"left-{leave.__name__}"
        connection = server.connect()
        connection.sendall(post_bytes("/invocations", body(prompts=["a", "b"]), f"x-request-id: {request_id}"))
        server.service.journal.wait_for(lambda lines: f"pause {request_id}-1" in lines)
        leave(connection)
        server.service.journal.wait_for(lambda lines: {f"abort {request_id}-0", f"abort {request_id}-1"} <= set(lines))

    def test_two_calls_with_the_same_request_id_run_under_different_ones(self, server: RunningServer) -> None:
        """Logs and some engines tell requests apart by id: a client that repeats one must not disturb its other call."""
        gate = Gate()
        server.service.script = Script(gates={0: gate})
        headers = {"x-request-id": "twin"}
        with ThreadPoolExecutor() as pool:
            answers = [pool.submit(httpx.post, f"{server.url}/invocations", json={}, headers=headers) for _ in range(2)]
            lines = server.service.journal.wait_for(
                lambda lines: sum(line.startswith("pause twin") for line in lines) == 2
            )
            gate.open()
            assert [answer.result().headers["x-request-id"] for answer in answers] == ["twin", "twin"]
        assert len({line for line in lines if line.startswith("start twin")}) == 2


class TestStreams:
    def test_events_arrive_as_they_are_made(self, server: RunningServer, client: httpx.Client) -> None:
        gates = {position: Gate() for position in range(1, 7)}
        server.service.script = Script(gates=gates)
        with client.stream("POST", "/invocations", json={"stream": True}) as answer:
            assert answer.headers["transfer-encoding"] == "chunked"
            pieces = answer.iter_text()
            for position, line in enumerate(LINES[:-1], start=1):
                assert next(pieces) == line  # the next event is not made before this one was read
                gates[position].open()
            assert "".join(pieces) == LINES[-1] + "the end\n"

    def test_events_that_are_ready_together_travel_together(self, server: RunningServer) -> None:
        with server.connect() as connection:
            connection.sendall(post_bytes("/invocations", body(stream=True), "connection: close"))
            payload = read_to_end(connection).partition(b"\r\n\r\n")[2]
        whole = "".join(LINES).encode() + b"the end\n"
        assert payload == b"%x\r\n%b\r\n0\r\n\r\n" % (len(whole), whole)

    def test_the_head_waits_for_the_first_event(self, server: RunningServer) -> None:
        gate = Gate()
        server.service.script = Script(gates={0: gate})
        with server.connect() as connection:
            connection.sendall(post_bytes("/invocations", body(stream=True), "x-request-id: first"))
            server.service.journal.wait_for(lambda lines: "pause first" in lines)
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)
            connection.setblocking(True)
            gate.open()
            assert read_until(connection, b"the end").startswith(b"HTTP/1.1 200 OK\r\n")

    def test_the_head_may_be_held_until_the_outcome_is_known(self, client: httpx.Client) -> None:
        answer = client.post("/invocations", json={"stream": True, "hold_s": 60})
        assert answer.headers["x-events-at-head"] == "7"
        assert answer.text == "".join(LINES) + "the end\n"

    def test_a_hold_ends_with_its_time(self, server: RunningServer, client: httpx.Client) -> None:
        gate = Gate()
        server.service.script = Script(gates={4: gate})
        with client.stream("POST", "/invocations", json={"stream": True, "hold_s": 0.01}) as answer:
            assert answer.headers["x-events-at-head"] == "4"
            gate.open()
            assert "".join(answer.iter_text()) == "".join(LINES) + "the end\n"

    def test_a_hold_that_ended_still_waits_for_the_first_event(
        self, server: RunningServer, client: httpx.Client
    ) -> None:
        gate = Gate()
        server.service.script = Script(gates={0: gate}, failures={0: RequestTimeout("late")})
        opener = threading.Timer(0.1, gate.open)
        opener.start()
        answer = client.post("/invocations", json={"stream": True, "hold_s": 0.01})
        assert answer.status_code == 504  # had the head gone out after the hold, it would have been 200

    def test_several_prompts_share_one_stream(self, client: httpx.Client) -> None:
        text = client.post("/invocations", json={"prompts": ["a", "b"], "stream": True}).text
        lines = text.splitlines(keepends=True)
        assert lines[-1] == "the end\n"
        for index in "01":
            assert [f"0{line[1:]}" for line in lines if line.startswith(index)] == LINES

    def test_a_stream_of_no_prompts_has_only_its_end(self, client: httpx.Client) -> None:
        assert client.post("/invocations", json={"prompts": [], "stream": True}).text == "the end\n"

    def test_a_connection_serves_one_stream_after_another(self, server: RunningServer) -> None:
        with server.connect() as connection:
            for _ in range(3):
                connection.sendall(post_bytes("/invocations", body(stream=True)))
                assert read_until(connection, b"the end\n\r\n0\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")

    @table("leave", [socket.socket.close, reset], ids=["close", "reset"])
    @table("position", [0, 3], ids=["before the head", "in the middle"])
    def test_a_client_that_leaves_aborts_the_request(self, server: RunningServer, leave: Any, position: int) -> None:
        server.service.script = Script(gates={position: Gate()})
        request_id = f"gone-{leave.__name__}-{position}"
        connection = server.connect()
        connection.sendall(
            post_bytes("/invocations", body(prompts=["a", "b"], stream=True), f"x-request-id: {request_id}")
        )
        server.service.journal.wait_for(lambda lines: f"pause {request_id}-1" in lines)
        if position:
            read_until(connection, b"1: is")
        leave(connection)
        server.service.journal.wait_for(lambda lines: {f"abort {request_id}-0", f"abort {request_id}-1"} <= set(lines))

    def test_a_client_that_does_not_read_delays_nobody(self, server: RunningServer, client: httpx.Client) -> None:
        gate = Gate()
        server.service.scripts["lazy"] = Script(gates={1: gate})
        with server.connect() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            request = body(prompts=["lazy", "lazy"], stream=True, padding=5_000_000)
            lazy.sendall(post_bytes("/invocations", request, "x-request-id: lazy"))
            read_until(lazy, b"Deep")  # from here on nothing is read, and the rest fits into no buffer
            gate.open()
            server.service.journal.wait_for(lambda lines: {"end lazy-0", "end lazy-1"} <= set(lines))
            assert client.post("/invocations", json={"stream": True}).text.endswith("the end\n")
            assert server.admission.num_in_flight >= 2  # both prompts' answers are still waiting to be read


class TestFailures:
    def test_a_parse_error_is_answered_by_the_dialect(self, client: httpx.Client) -> None:
        answer = client.post("/v3/completions", content=b"nonsense")
        assert answer.status_code == 400
        assert answer.json()["kind"] == "invalid_payload"

    @table("stream", [False, True])
    def test_a_failure_before_the_first_event_has_a_status(
        self, server: RunningServer, client: httpx.Client, stream: bool
    ) -> None:
        server.service.script = Script(failures={0: InvalidParameter("top_k -9 is not allowed", param="top_k")})
        answer = client.post("/invocations", json={"stream": stream})
        assert answer.status_code == 400
        assert answer.json()["message"] == "top_k -9 is not allowed"

    def test_a_failure_while_the_head_is_held_has_a_status(self, server: RunningServer, client: httpx.Client) -> None:
        server.service.script = Script(failures={3: EngineFailed("broke")})
        answer = client.post("/invocations", json={"stream": True, "hold_s": 60})
        assert answer.status_code == 400
        assert answer.json()["kind"] == "engine_failed"

    def test_a_failure_after_the_head_is_told_in_the_stream(self, server: RunningServer, client: httpx.Client) -> None:
        gate = Gate()
        server.service.script = Script(gates={3: gate}, failures={3: EngineFailed("broke")})
        with client.stream("POST", "/invocations", json={"stream": True}) as answer:
            assert answer.status_code == 200
            gate.open()
            assert "".join(answer.iter_text()) == "".join(LINES[:3]) + "error engine_failed\n"
        assert client.get("/ping").status_code == 200

    def test_a_failure_after_the_head_cuts_the_connection_if_the_dialect_says_so(self, server: RunningServer) -> None:
        gate = Gate()
        server.service.script = Script(gates={3: gate}, failures={3: EngineFailed("broke")})
        with server.connect() as connection:
            connection.sendall(post_bytes("/invocations", body(stream=True, cut=True)))
            read_until(connection, b"0: is\n")
            gate.open()
            assert not read_to_end(connection).endswith(b"0\r\n\r\n")  # it closed, and without the final chunk

    def test_one_failing_prompt_ends_the_whole_stream(self, server: RunningServer, client: httpx.Client) -> None:
        gate = Gate()
        server.service.scripts["b"] = Script(gates={3: gate}, failures={3: EngineFailed("broke")})
        request = {"prompts": ["a", "b"], "stream": True}
        with client.stream("POST", "/invocations", json=request, headers={"x-request-id": "half"}) as answer:
            gate.open()
            assert "".join(answer.iter_text()).endswith("error engine_failed\n")
        server.service.journal.wait_for(lambda lines: "abort half-1" in lines)

    @table("place", ["parse", "full"])
    def test_a_defect_is_a_500_and_its_traceback_is_logged(
        self, client: httpx.Client, caplog: pytest.LogCaptureFixture, place: str
    ) -> None:
        with caplog.at_level(logging.ERROR, "dragoman.server"):
            answer = client.post("/invocations", json={"fails_at": place}, headers={"x-request-id": "bug-1"})
        assert answer.json()["kind"] == "server_error"
        assert "bug-1" in answer.json()["message"]
        assert "defect" not in answer.json()["message"]
        assert f"defect in {place}" in caplog.text

    @table("place", ["head", "event"])
    def test_a_defect_in_a_stream_ends_it_in_the_dialects_way(
        self, client: httpx.Client, caplog: pytest.LogCaptureFixture, place: str
    ) -> None:
        answer = client.post("/invocations", json={"stream": True, "fails_at": place})
        assert "server_error" in answer.text
        assert f"defect in {place}" in caplog.text

    def test_a_defect_in_telling_an_error_cuts_the_connection(
        self, server: RunningServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        gate = Gate()
        server.service.script = Script(gates={3: gate}, failures={3: EngineFailed("broke")})
        with server.connect() as connection:
            connection.sendall(post_bytes("/invocations", body(stream=True, fails_at="stream_error")))
            read_until(connection, b"0: is\n")
            gate.open()
            assert not read_to_end(connection).endswith(b"0\r\n\r\n")
        assert "defect in stream_error" in caplog.text

    def test_a_stream_that_fails_to_close_does_not_hang_the_answer(
        self, server: RunningServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Stubborn:
            def __aiter__(self) -> Stubborn:
                return self

            async def __anext__(self) -> Any:
                raise StopAsyncIteration

            async def aclose(self) -> None:
                raise RuntimeError("cannot close")

        monkeypatch.setattr(server.service, "stream", lambda request: Stubborn())
        assert client.post("/invocations", json={"stream": True}).json()["kind"] == "server_error"

    def test_overload_from_within_carries_a_hint_when_to_return(
        self, server: RunningServer, client: httpx.Client
    ) -> None:
        server.service.script = Script(failures={0: Overloaded("busy", retry_after_s=9)})
        answer = client.post("/invocations", json={})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "9")


class TestTimeLimit:
    """The service limits time; a request that runs out of it is answered like any other that fails."""

    @pytest.fixture
    def slow_server(self) -> Iterator[RunningServer]:
        """A server whose model `slow` stops after two tokens."""
        engine = SteppingEngine(saying("abc"), gate=asyncio.Event(), gate_after=2)
        limits = ServiceLimits(request_timeout_s=0.2)
        with running_server() as server:
            server.add_model("slow", Service(name="slow", engine=engine, tokenizer=ByteTokenizer(), limits=limits))
            yield server

    def test_a_request_that_takes_too_long_is_answered(self, slow_server: RunningServer) -> None:
        answer = httpx.post(f"{slow_server.url}/predictions/slow", json={})
        assert answer.status_code == 504
        assert "0.2 s" in answer.json()["message"]

    def test_a_stream_that_takes_too_long_is_told_in_the_stream(self, slow_server: RunningServer) -> None:
        url, answer = f"{slow_server.url}/predictions/slow", ""
        while not answer.startswith("0:a\n0:b\n"):  # a busy machine may not get as far
            answer = httpx.post(url, json={"stream": True}).text
        assert answer == "0:a\n0:b\nerror timeout\n"


class TestAdmission:
    def test_a_full_queue_is_refused_until_there_is_room(self) -> None:
        gate = Gate()
        with running_server(max_running=1, max_queued=1) as server, ThreadPoolExecutor() as pool:
            server.service.script = Script(gates={0: gate})
            held = [pool.submit(httpx.post, f"{server.url}/invocations", json={}) for _ in range(2)]
            server.service.journal.wait_for(lambda lines: sum(line.startswith("pause") for line in lines) == 2)
            refused = httpx.post(f"{server.url}/v1/completions", json={})
            assert refused.status_code == 503
            assert refused.json()["dialect"] == "openai.completions"
            assert "2 allowed" in refused.json()["message"]
            assert "retry-after" in refused.headers
            assert httpx.get(f"{server.url}/ping").status_code == 200
            gate.open()
            assert [answer.result().status_code for answer in held] == [200, 200]
            assert httpx.post(f"{server.url}/invocations", json={}).status_code == 200

    def test_whoever_has_the_last_bytes_has_room_for_another_call(self) -> None:
        with running_server(max_running=1, max_queued=0) as server:
            for fields in (
                {"stream": True}, {"stream": True, "prompts": ["a", "b"]}, {"stream": True, "hold_s": 9},
                {"stream": True, "prompts": ["breaks"]}, {"stream": True, "prompts": []}, {}, {"prompts": ["a", "b"]},
            ):  # fmt: skip
                gate = Gate()
                server.service.scripts["breaks"] = Script(gates={1: gate}, failures={1: EngineFailed("boom")})
                call = partial(post_bytes, "/invocations", body(**fields))
                with server.connect() as connection:
                    # The server begins with the second call as soon as it has written the first one's end.
                    connection.sendall(call() + call("connection: close"))
                    answers = read_until(connection, b"\r\n\r\n")
                    gate.open()
                    answers += read_to_end(connection)
                assert (answers.count(b"HTTP/1.1 "), answers.count(b"overloaded")) == (2, 0), (fields, answers)

    def test_a_call_with_more_prompts_than_the_limit_is_taken_by_an_idle_server(self) -> None:
        with running_server(max_running=1, max_queued=1) as server:
            answer = httpx.post(f"{server.url}/invocations", json={"prompts": ["a", "b", "c", "d"]})
            assert answer.status_code == 200
            assert httpx.post(f"{server.url}/invocations", json={}).status_code == 200

    @table(("max_running", "max_queued"), [(0, 1), (1, -1)])
    def test_impossible_limits_are_refused(self, max_running: int, max_queued: int) -> None:
        with pytest.raises(ValueError, match="is not allowed: it must be at least"):
            Admission("fake", max_running=max_running, max_queued=max_queued)
