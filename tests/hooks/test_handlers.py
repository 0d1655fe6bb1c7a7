"""Handlers behind a real server: what they are given, what becomes of what they answer, and that they stall nobody."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np

from tests.hooks.handling import handling, png, post
from tests.support.patience import PATIENCE_S
from tests.support.running_server import post_bytes, read_to_end
from tests.support.tables import table

ECHO = """
def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    return Output().add({"got": inputs.get_as_json(), "by": inputs.get_function_name()})
"""

WAITS = """
import threading
entered, release, closed = threading.Semaphore(0), threading.Event(), threading.Event()

def handle(inputs):
    if inputs.is_empty():
        return None
    word = inputs.get_as_string()
    if word == "wait":
        entered.release()
        release.wait()
    return Output().add(word)
"""

STREAM = "def handle(inputs):\n    return None if inputs.is_empty() else Output().add_stream_content(%s)\n"

ENDLESS = """
import itertools, threading
closed, finalized = threading.Event(), threading.Event()

def numbers():
    try:
        yield from itertools.count()
    finally:
        closed.set()

def handle(inputs):
    if inputs.is_empty():
        return None
    return Output().add_stream_content(numbers()).finalize(finalized.set)
"""


class TestAnswers:
    def test_a_value_is_json_and_the_status_is_200(self, tmp_path: Path) -> None:
        with handling(tmp_path, ECHO) as (server, _):
            answer = post(server, {"inputs": "hi"})
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
            assert answer.json() == {"got": {"inputs": "hi"}, "by": "handle"}
            assert answer.headers["content-length"] == str(len(answer.content))
            assert answer.headers["x-request-id"]

    @table(
        "body",
        [{"inputs": "a"}, {"messages": [{"role": "user", "content": "b"}]}, {"prompt": "c"}, {"mine": 1}, [1, 2], 3],
    )
    def test_every_json_body_of_the_lmi_routes_is_the_handlers(self, tmp_path: Path, body: object) -> None:
        with handling(tmp_path, ECHO) as (server, _):
            for path in ("/invocations", "/predictions/fake", "/models/fake/invoke"):
                assert post(server, body, path).json()["got"] == body

    def test_other_routes_generate_as_ever(self, tmp_path: Path) -> None:
        with handling(tmp_path, ECHO) as (server, _):
            chat = {"messages": [{"role": "user", "content": "q"}], "max_tokens": 2}
            assert post(server, chat, "/v1/chat/completions").json()["choices"][0]["message"]["content"]
            assert "generated_text" in post(server, {"inputs": "hi"}, "/generate").json()

    def test_status_header_fields_and_content_type_are_the_handlers(self, tmp_path: Path) -> None:
        source = """
        def handle(inputs):
            if inputs.is_empty():
                return None
            made = Output(code=201, message="made").add("word").add_property("CONTENT-TYPE", "text/x-own")
            return made.add_property("X-Seen", inputs.get_property("X-SENT")).add_property("Content-Length", 1)
        """
        with handling(tmp_path, source) as (server, _):
            answer = post(server, b"", headers={"x-sent": "yes"})
            assert (answer.status_code, answer.text) == (201, "word")
            assert (answer.headers["content-type"], answer.headers["x-seen"]) == ("text/x-own", "yes")
            assert answer.headers["content-length"] == "4", "what frames the answer is the server's"

    def test_a_line_break_in_a_property_begins_no_header_field(self, tmp_path: Path) -> None:
        source = """
        def handle(inputs):
            return Output().add_property("x-own", "a\\r\\nx-evil: b").add_property("bad name", "c").add("d")
        """
        with handling(tmp_path, source) as (server, _):
            answer = post(server)
            assert (answer.status_code, answer.headers["x-own"]) == (200, "a x-evil: b")
            assert not {"x-evil", "bad name"} & set(answer.headers)

    @table(
        ("made", "status", "body"),
        [
            ("None", 204, b""),
            ("Output(code=503, message='later')", 503, b'{"code": 503, "message": "later"}'),
            ("Output().add(b'\\x00\\xff')", 200, b"\x00\xff"),
            ("Output().add('first').add('data', key='data')", 200, b"data"),
            ("Output()", 200, b""),
        ],
    )
    def test_what_an_output_sends(self, tmp_path: Path, made: str, status: int, body: bytes) -> None:
        source = f"def handle(inputs):\n    return None if inputs.is_empty() else {made}\n"
        with handling(tmp_path, source) as (server, _):
            answer = post(server)
            assert (answer.status_code, answer.content) == (status, body)

    def test_an_error_has_lmis_shape(self, tmp_path: Path) -> None:
        source = "def handle(inputs):\n    return None if inputs.is_empty() else Output().add('x').error('no', 422)\n"
        with handling(tmp_path, source) as (server, _):
            answer = post(server)
            assert answer.status_code == 422
            assert answer.json() == {"code": 422, "message": "invoke handler failure", "error": "no"}

    def test_the_route_of_sagemaker_reports_errors_in_its_own_shape(self, tmp_path: Path) -> None:
        source = """
        def handle(inputs):
            if inputs.is_empty():
                return None
            if inputs.get_as_string() == "fail":
                raise ValueError("bad luck")
            return Output().add_stream_content(iter("ab"))
        """
        with handling(tmp_path, source) as (server, _):
            failed = post(server, b"fail", "/endpoints/any/invocations")
            assert (failed.status_code, failed.headers["x-amzn-errortype"]) == (424, "ModelError")
            assert json.loads(failed.json()["OriginalMessage"])["error"] == "bad luck"
            assert post(server, b"ok", "/endpoints/any/invocations").text == '{"outputs": "a"}\n{"outputs": "b"}\n'
            framed = post(server, b"ok", "/endpoints/any/invocations-response-stream")
            assert framed.headers["content-type"] == "application/vnd.amazon.eventstream"
            assert b'{"outputs": "a"}\n' in framed.content

    def test_a_stream_of_sagemaker_that_breaks_is_a_model_stream_error(self, tmp_path: Path) -> None:
        source = STREAM % "(1 / (2 - n) for n in range(1, 3))"
        with handling(tmp_path, source) as (server, _):
            framed = post(server, path="/endpoints/any/invocations-response-stream").content
            assert b'{"outputs": 1.0}' in framed
            assert b"ModelStreamError" in framed
            assert b"division by zero" in framed

    def test_what_is_done_at_the_end_cannot_spoil_the_answer(self, tmp_path: Path) -> None:
        source = """
        called = []

        def fail(word):
            called.append(word)
            raise RuntimeError(word)

        def handle(inputs):
            if not inputs.is_empty():
                return Output().add("fine").finalize(fail, "end")
        """
        with handling(tmp_path, source) as (server, module):
            assert [post(server).text for _ in range(2)] == ["fine", "fine"]
            while len(module.called) < 2:
                pass
            assert module.called == ["end", "end"]

    def test_an_answer_can_be_polled_for(self, tmp_path: Path) -> None:
        with handling(tmp_path, WAITS) as (server, module):
            token = post(server, b"wait", headers={"x-synchronous": "false"}).headers["x-next-token"]
            assert module.entered.acquire(timeout=PATIENCE_S)
            assert post(server, headers={"x-starting-token": token}).status_code == 202
            module.release.set()
            answer = post(server, headers={"x-starting-token": token})
            while answer.status_code == 202:
                answer = post(server, headers={"x-starting-token": token})
            assert (answer.status_code, answer.text) == (200, "wait")


class TestRequests:
    def test_query_and_form_fields_are_pieces_of_content(self, tmp_path: Path) -> None:
        source = """
        def handle(inputs):
            if inputs.is_empty():
                return None
            keys = inputs.get_content().get_keys()
            return Output().add({key: inputs.get_as_string(key) for key in keys} | {"q": inputs.get_property("Q")})
        """
        with handling(tmp_path, source) as (server, _):
            form = {"content-type": "application/x-www-form-urlencoded"}
            got = post(server, b"name=me&age=4", "/invocations?q=1", form).json()
            assert got == {"data": "name=me&age=4", "name": "me", "age": "4", "q": "1"}
            parts = httpx.post(f"{server.url}/invocations", files={"picture": b"bytes"}, timeout=PATIENCE_S)
            assert parts.json()["picture"] == "bytes"

    def test_arrays_travel_both_ways(self, tmp_path: Path) -> None:
        source = """
        def handle(inputs):
            if inputs.is_empty():
                return None
            arrays = inputs.get_as_npz()
            return Output().add_as_npz([array * 2 for array in arrays]).add_property("Content-Type", "tensor/npz")
        """
        buffer = io.BytesIO()
        np.savez(buffer, np.arange(4), np.ones((2, 2)))
        with handling(tmp_path, source) as (server, _):
            answer = post(server, buffer.getvalue(), headers={"content-type": "tensor/npz"})
            assert answer.headers["content-type"] == "tensor/npz"
            with np.load(io.BytesIO(answer.content)) as arrays:
                assert [arrays[name].tolist() for name in arrays.files] == [[0, 2, 4, 6], [[2, 2], [2, 2]]]

    def test_an_image_comes_in_as_bytes_and_a_png_goes_out(self, tmp_path: Path) -> None:
        source = """
        def handle(inputs):
            if inputs.is_empty():
                return None
            assert inputs.get_property("content-type") == "image/png"
            return Output().add(inputs.get_as_bytes()[::-1][::-1]).add_property("Content-Type", "image/png")
        """
        image = png()
        with handling(tmp_path, source) as (server, _):
            answer = post(server, image, headers={"content-type": "image/png"})
            assert (answer.headers["content-type"], answer.content) == ("image/png", image)

    def test_a_call_looks_like_a_batch_of_one(self, tmp_path: Path) -> None:
        source = """
        def handle(inputs):
            if inputs.is_empty():
                return None
            assert (inputs.is_batch(), inputs.get_batch_size()) == (False, 1)
            made = Output()
            for index, one in enumerate(inputs.get_batches()):
                made.add(one.get_as_json()["inputs"].upper(), batch_index=index)
            return made
        """
        with handling(tmp_path, source) as (server, _):
            assert post(server, {"inputs": "hi"}).text == "HI"

    def test_the_first_call_brings_the_options_and_no_content(self, tmp_path: Path) -> None:
        source = """
        started = []

        def handle(inputs):
            if inputs.is_empty():
                started.append(dict(inputs.get_properties()))
                return None
            return Output().add(started)
        """
        with handling(tmp_path, source) as (server, _):
            got = post(server).json()
            assert got == [{"model_dir": "/models/m", "device_id": "-1", "tensor_parallel_degree": "1", "task": "say"}]


class TestStreams:
    def test_each_item_is_a_line_by_default(self, tmp_path: Path) -> None:
        source = STREAM % "iter(['a', 1])"
        with handling(tmp_path, source) as (server, _):
            answer = post(server)
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/jsonlines")
            assert (answer.text, answer.headers.get("transfer-encoding")) == (
                '{"outputs": "a"}\n{"outputs": 1}\n',
                "chunked",
            )

    def test_items_go_out_as_they_are_made(self, tmp_path: Path) -> None:
        source = """
        import threading
        go = threading.Event()

        def words():
            yield "one"
            go.wait()
            yield b"two"

        def handle(inputs):
            if not inputs.is_empty():
                return Output(201).add_stream_content(words(), None).add_property("Content-Type", "text/plain")
        """
        with handling(tmp_path, source) as (server, module), httpx.stream(
            "POST", f"{server.url}/invocations", timeout=PATIENCE_S
        ) as answer:  # fmt: skip
            assert (answer.status_code, answer.headers["content-type"]) == (201, "text/plain")
            pieces = answer.iter_bytes()
            assert next(pieces) == b"one"
            module.go.set()
            assert b"".join(pieces) == b"two"

    def test_whoever_has_the_last_bytes_has_room_for_another_call(self, tmp_path: Path) -> None:
        for made in ("'abc'", "(1 / (2 - n) for n in range(3))"):
            with handling(tmp_path, STREAM % made) as (server, _), server.connect() as connection:
                server.admission.max_running, server.admission.max_queued = 1, 0
                connection.sendall(
                    post_bytes("/invocations", b"x") + post_bytes("/invocations", b"x", "connection: close")
                )
                assert read_to_end(connection).count(b"HTTP/1.1 200 OK\r\n") == 2, made

    def test_a_stream_that_fails_at_once_is_a_status(self, tmp_path: Path) -> None:
        source = STREAM % "(0 / 0 for _ in 'a')"
        with handling(tmp_path, source) as (server, _):
            answer = post(server)
            assert (answer.status_code, answer.json()["error"]) == (424, "division by zero")

    @table(
        ("media_type", "end"),
        [
            ("application/jsonlines", '{"error": "no more", "code": 424}\n'),
            ("text/event-stream", 'data: {"error": "no more", "code": 424}\n\n'),
            ("text/plain", "no more"),
        ],
    )
    def test_a_stream_that_fails_later_ends_with_the_text(self, tmp_path: Path, media_type: str, end: str) -> None:
        source = f"""
        def words():
            yield "one "
            raise RuntimeError("no more")

        def handle(inputs):
            if not inputs.is_empty():
                return Output().add_stream_content(words(), None).add_property("Content-Type", "{media_type}")
        """
        with handling(tmp_path, source) as (server, _):
            answer = post(server)
            assert (answer.status_code, answer.text) == (200, "one " + end)

    def test_a_client_that_leaves_closes_the_generator(self, tmp_path: Path) -> None:
        with handling(tmp_path, ENDLESS) as (server, module):
            with httpx.stream("POST", f"{server.url}/invocations", timeout=PATIENCE_S) as answer:
                assert next(answer.iter_lines()) == '{"outputs": 0}'
            assert module.closed.wait(PATIENCE_S)
            assert module.finalized.wait(PATIENCE_S)

    def test_a_stream_without_end_meets_the_time_limit(self, tmp_path: Path) -> None:
        with handling(tmp_path, ENDLESS, timeout_s=0.3) as (server, module):
            last = post(server).text.splitlines()[-1]
            assert json.loads(last)["error"] == "The handler took longer than the 0.3 s that the server allows"
            assert module.closed.wait(PATIENCE_S)


class TestFailures:
    @table(
        ("line", "status", "error"),
        [
            ("raise ValueError('bad luck')", 424, "bad luck"),
            ("inputs.get_as_bytes('missing')", 424, "KeyError: 'missing'"),
            ("return 'text'", 424, "Invalid output type: <class 'str'>"),
            ("return Output(code=99)", 424, "the handler's status must be an integer from 200 to 599, got 99"),
            ("return Output().add({1, 2})", 424, "JSON cannot hold a set"),
            ("import sys; sys.exit(3)", 424, "The handler raised SystemExit"),
        ],
    )
    def test_are_424_and_cost_one_request(self, tmp_path: Path, line: str, status: int, error: str) -> None:
        source = f"""
        def handle(inputs):
            if inputs.is_empty() or inputs.get_as_string() == "fine":
                return None
            {line}
        """
        with handling(tmp_path, source) as (server, _):
            answer = post(server, b"fail")
            assert answer.status_code == status
            assert answer.json() == {"code": status, "message": "invoke handler failure", "error": error}
            assert post(server, b"fine").status_code == 204

    def test_too_little_memory_is_507(self, tmp_path: Path) -> None:
        source = "def handle(inputs):\n    if not inputs.is_empty():\n        raise MemoryError('cannot hold it')\n"
        with handling(tmp_path, source) as (server, _):
            assert (post(server).status_code, post(server).json()["message"]) == (507, "cannot hold it")

    def test_a_handler_that_waits_stalls_no_other_request(self, tmp_path: Path) -> None:
        with handling(tmp_path, WAITS) as (server, module), ThreadPoolExecutor(3) as clients:
            waiting = [clients.submit(post, server, b"wait") for _ in range(3)]
            for _ in waiting:
                assert module.entered.acquire(timeout=PATIENCE_S)
            assert post(server, b"next").text == "next"
            assert post(server, {"inputs": "hi"}, "/generate").status_code == 200
            assert httpx.get(f"{server.url}/ping").status_code == 200
            module.release.set()
            assert [one.result().text for one in waiting] == ["wait"] * 3

    def test_a_handler_that_hangs_costs_its_own_request_only(self, tmp_path: Path) -> None:
        with handling(tmp_path, WAITS, timeout_s=0.3, num_threads=1) as (server, module):
            answer = post(server, b"wait")
            assert (answer.status_code, answer.json()["code"]) == (424, 424)
            assert answer.json()["error"] == "The handler took longer than the 0.3 s that the server allows"
            while (answer := post(server, b"next")).status_code != 200:  # a busy machine may take longer, too
                assert answer.status_code == 424
            assert answer.text == "next"
            module.release.set()

    def test_one_thread_runs_one_call_at_a_time(self, tmp_path: Path) -> None:
        with handling(tmp_path, WAITS, num_threads=1) as (server, module), ThreadPoolExecutor(2) as clients:
            first = clients.submit(post, server, b"wait")
            assert module.entered.acquire(timeout=PATIENCE_S)
            second = clients.submit(post, server, b"wait")
            while httpx.get(f"{server.url}/ping").status_code != 200 or server.admission.num_in_flight < 2:
                pass
            assert not module.entered.acquire(blocking=False), "the second call waits for the first one's thread"
            module.release.set()
            assert [first.result().text, second.result().text] == ["wait", "wait"]
