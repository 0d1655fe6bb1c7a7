"""A soak's books: each way in which log, metrics and clients can disagree is found, and told by the request's name."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.soak.books import (
    Books,
    Sample,
    client_mismatches,
    log_mismatches,
    metric_mismatches,
    rest_mismatches,
    shown,
)
from benchmarks.soak.client import KEY, Client, End, Seen
from benchmarks.soak.memory import Memory, Reading, comparable, slope
from benchmarks.soak.request import ANSWERED, REFUSED, Request, last_detail_tokens, last_usage_tokens
from tests.support.tables import table

PATH = "/v1/completions"
USAGE = b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3}}'
FINE = Request("completion", PATH, b"{}", ANSWERED | REFUSED, tokens=lambda body: last_usage_tokens(b"data: " + body))
LINE = {
    "id": "a", "api": "openai", "path": PATH, "model": "soak", "outcome": "finished", "status": 200, "error": None,
    "prompt_tokens": 7, "cached_tokens": 0, "completion_tokens": 3,
}  # fmt: skip


def books_of(*noted: tuple[str, Request, Seen]) -> Books:
    books = Books()
    for call_id, request, seen in noted:
        books.note(call_id, request, seen)
    return books


def answered(status: int = 200, body: bytes = USAGE) -> Seen:
    return Seen(End.ANSWERED, status, body)


def line(**changes: Any) -> dict[str, Any]:
    return {**LINE, **changes}


def found(checks: dict[str, list[str]]) -> list[str]:
    return [text for mismatches in checks.values() for text in mismatches]


def test_books_that_agree_have_no_mismatch() -> None:
    books = books_of(
        ("a", FINE, answered()),
        ("b", FINE, answered(429, b"")),
        ("c", FINE, Seen(End.LEFT)),
        ("d", replace(FINE, is_call=False, sent_bytes=1), Seen(End.LEFT)),
    )
    refused = line(id="b", status=429, outcome="refused", error="full", prompt_tokens=0, completion_tokens=0)
    gone = line(id="c", status=0, outcome="client_gone", completion_tokens=1)
    assert books.num_calls == 3
    assert not found(client_mismatches(books))
    assert not found(log_mismatches(books, [line(), refused, gone]))
    assert books.outcomes() == {"completion": {"200": 1, "429": 1, "left": 2}}


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (Seen(End.LATE), "late, status 0"),
        (Seen(End.BROKEN, 200), "broken, status 200"),
        (answered(500), "status 500, not one of 200, 206, 429, 503"),
    ],
)
def test_what_a_client_saw_is_judged(seen: Seen, words: str) -> None:
    assert found(client_mismatches(books_of(("a", FINE, seen)))) == [f"a (completion) on {PATH}: {words}"]


def test_cancelling_is_judged_beside_what_was_cancelled() -> None:
    books = books_of(("a", FINE, replace(answered(), cancel=Seen(End.ANSWERED, 500))))
    assert books.num_calls == 1
    assert found(client_mismatches(books)) == ["a-cancel (cancel) on /cancel/a: status 500, not one of 200, 404"]


def test_a_request_that_is_hurt_on_purpose_may_be_cut_off() -> None:
    assert not found(client_mismatches(books_of(("a", replace(FINE, may_be_cut=True), Seen(End.BROKEN, 200)))))


@table(
    ("lines", "words"),
    [
        ([], ["a (completion) on /v1/completions: no line", "/v1/completions: 1 calls were made, 0 logged"]),
        ([line(), line()], ["a on /v1/completions: a second line", "/v1/completions: 1 calls were made, 2 logged"]),
        (
            [line(), line(id="x", path="/invocations")],
            ["x on /invocations: a line for what is no call", "/invocations: 0 calls were made, 1 logged"],
        ),
        ([line(status=206)], ["a (completion) on /v1/completions: 200 was answered, 206 logged"]),
        ([line(outcome="client_gone")], ["the client read it all, and is logged as gone"]),
        ([line(outcome="refused", error="no")], ["200 with all of its answer is logged as refused"]),
        ([line(outcome="failed")], ["failed with error None"]),
        ([line(error="odd")], ["finished with error 'odd'"]),
        ([line(completion_tokens=4)], ["(7, 3) tokens were told, (7, 4) logged"]),
        ([line(prompt_tokens=6)], ["(7, 3) tokens were told, (6, 3) logged"]),
    ],
)
def test_a_log_that_says_something_else_is_found(lines: list[dict[str, Any]], words: list[str]) -> None:
    mismatches = found(log_mismatches(books_of(("a", FINE, answered())), lines))
    assert len(mismatches) == len(words)
    assert all(told.endswith(word) for told, word in zip(mismatches, words, strict=True))


def test_an_error_that_is_logged_as_finished_is_found() -> None:
    books = books_of(("a", FINE, answered(429, b"")))
    assert found(log_mismatches(books, [line(status=429)])) == [f"a (completion) on {PATH}: 429 is logged as finished"]


def test_a_line_for_a_half_sent_request_is_found() -> None:
    books = books_of(("a", replace(FINE, is_call=False, sent_bytes=1), Seen(End.LEFT)))
    assert "a on /v1/completions: a line for what is no call" in found(log_mismatches(books, [line()]))


def test_what_may_have_a_line_has_one_if_it_was_answered() -> None:
    perhaps = replace(FINE, is_call=None, tokens=None)
    behind = replace(perhaps, behind=(perhaps,))
    cases: tuple[tuple[Request, Seen, list[dict[str, Any]], list[str]], ...] = (
        (perhaps, answered(429), [], ["a (completion) on /v1/completions: no line"]),
        (perhaps, answered(431), [], []),
        (perhaps, answered(431), [line()], ["a on /v1/completions: a line for what is no call"]),
        (perhaps, Seen(End.LEFT), [], []),
        (perhaps, Seen(End.LEFT), [line()], []),
        (perhaps, Seen(End.LEFT), [line(), line()], ["a on /v1/completions: a second line"]),
        (behind, Seen(End.LEFT, behind=(Seen(End.LEFT),)), [line(id="a-behind-1")], []),
        (
            behind,
            replace(answered(), behind=(answered(),)),
            [line()],
            ["a-behind-1 (completion) on /v1/completions: no line"],
        ),
        (
            replace(perhaps, sent_bytes=1),
            Seen(End.LEFT),
            [line()],
            ["not all of it was sent, and it is logged as finished"],
        ),
        (replace(perhaps, sent_bytes=1), Seen(End.LEFT), [line(outcome="refused", error="full")], []),
    )
    for request, seen, lines, words in cases:
        told = [
            text
            for text in found(log_mismatches(books_of(("a", request, seen)), lines))
            if "calls were made" not in text
        ]
        assert len(told) == len(words), (told, words)
        assert all(word in text for text, word in zip(told, words, strict=True))


def samples(**changes: float) -> list[Sample]:
    labels = {"api": "openai", "model": "soak"}
    values = {
        "dragoman_request_seconds_count": 2.0,
        "dragoman_prompt_tokens_of_requests_total": 14.0,
        "dragoman_cached_tokens_of_requests_total": 0.0,
        "dragoman_completion_tokens_of_requests_total": 6.0,
        **{name: value for name, value in changes.items() if name.startswith("dragoman_")},
    }
    return [
        ("dragoman_requests_total", {**labels, "outcome": "finished"}, changes.get("finished", 1.0)),
        ("dragoman_requests_total", {**labels, "outcome": "failed"}, changes.get("failed", 1.0)),
        ("dragoman_errors_total", {"api": "openai", "reason": "timeout"}, changes.get("errors", 1.0)),
        ("dragoman_steps_total", {"model": "soak"}, 99.0),
        *((name, labels, value) for name, value in values.items()),
    ]


LOGGED = [line(), line(id="b", outcome="failed", error="late")]


def test_metrics_that_agree_have_no_mismatch() -> None:
    assert not found(metric_mismatches(LOGGED, samples()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"finished": 2.0}, "dragoman_requests_total{openai, soak, finished}: 2 in /metrics, 1 in the log"),
        ({"errors": 0.0}, "dragoman_errors_total{openai}: 0 in /metrics, 1 in the log"),
        (
            {"dragoman_request_seconds_count": 3.0},
            "dragoman_request_seconds_count{openai, soak}: 3 in /metrics, 2 in the log",
        ),
        (
            {"dragoman_completion_tokens_of_requests_total": 5.0},
            "dragoman_completion_tokens_of_requests_total{openai, soak}: 5 in /metrics, 6 in the log",
        ),
    ],
)
def test_metrics_that_say_something_else_are_found(changes: dict[str, float], words: str) -> None:
    assert found(metric_mismatches(LOGGED, samples(**changes))) == [words]


def test_a_call_that_only_metrics_know_is_found() -> None:
    other = ("dragoman_requests_total", {"api": "lmi", "model": "soak", "outcome": "finished"}, 1.0)
    assert found(metric_mismatches(LOGGED, [*samples(), other])) == [
        "dragoman_requests_total{lmi, soak, finished}: 1 in /metrics, 0 in the log"
    ]


def test_what_is_held_in_the_end_is_found() -> None:
    held = [("dragoman_kv_blocks_used", {"model": "soak"}, 2.0), ("dragoman_requests_waiting", {"model": "soak"}, 0.0)]
    running = [{"id": "a", "path": PATH, "state": "waiting"}]
    assert found(rest_mismatches(held, running)) == [
        "dragoman_kv_blocks_used of soak is 2",
        f"a on {PATH} is listed as waiting",
    ]
    assert not found(rest_mismatches([("dragoman_kv_blocks_used", {"model": "soak"}, 0.0)], []))
    memory = ("dragoman_body_memory_bytes", "dragoman_image_memory_bytes")
    assert found(rest_mismatches([(name, {}, 7.0) for name in memory], [])) == [
        f"{name} of all is 7" for name in memory
    ]


def test_of_many_mismatches_a_few_are_shown() -> None:
    assert list(shown("all is well", [])) == ["ok  all is well"]
    told = list(shown("all is well", [str(number) for number in range(8)]))
    assert told[0] == "NOT all is well"
    assert told[-1].strip() == "and 3 more"


def test_a_stream_that_ends_with_an_error_tells_no_tokens() -> None:
    assert last_usage_tokens(b'data: {"choices": [], "usage": null}\n\ndata: {"error": {}}\n\ndata: [DONE]\n') is None
    assert last_detail_tokens(b'data:{"error": "late", "error_type": "generation"}\n\n') is None
    assert last_detail_tokens(b'data: {"details": {"input_length": 2, "generated_tokens": 5}}\n\n') == (2, 5)


def readings(*sizes: float, is_settled: bool = False) -> list[Reading]:
    return [
        Reading(number * 5_000, number, Memory(size, size, size - 10), is_settled) for number, size in enumerate(sizes)
    ]


def test_the_slope_of_memory_is_that_of_settled_readings() -> None:
    line = readings(100, 101, 102, 103, is_settled=True)
    assert slope(line, of="rss") == (2.0, 0.0)
    assert comparable([*readings(500, 100, 900), *line]) == line
    assert comparable(readings(100, 101)) == readings(100, 101)
    assert slope(readings(100, 101), of="rss") is None
    uneven = slope(readings(100, 110, 100, 110), of="anonymous")
    assert uneven is not None
    assert uneven.error > 0


@table(
    ("answer", "request_", "seen"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", FINE, Seen(End.ANSWERED, 200, b"{}")),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", FINE, Seen(End.BROKEN, 200, b"{}")),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", replace(FINE, leave_after=1), Seen(End.LEFT)),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
            replace(FINE, pause_s=0.001),
            Seen(End.ANSWERED, 200, b"{}"),
        ),
        (b"", replace(FINE, leave_after=0), Seen(End.LEFT)),
        (b"", FINE, Seen(End.BROKEN)),
        (b"what is this\r\n\r\n", FINE, Seen(End.BROKEN)),
    ],
)
def test_a_client_reads_as_it_is_told(answer: bytes, request_: Request, seen: Seen) -> None:
    async def ask() -> tuple[Seen, bytes]:
        came, is_served = bytearray(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.extend(await reader.readuntil(b"\r\n\r\n{}"))
            writer.write(answer)
            writer.close()
            with contextlib.suppress(ConnectionError):  # the client may have left
                await writer.wait_closed()
            is_served.set()

        async with await asyncio.start_server(serve, "127.0.0.1") as server:
            client = Client(server.sockets[0].getsockname()[1])
            result = await client.ask(request_, "a")
            client.leave()
            await is_served.wait()
        return result, bytes(came)

    result, came = asyncio.run(ask())
    assert result == seen
    assert f"authorization: Bearer {KEY}".encode() in came


def test_a_client_sends_what_is_behind_and_leaves_what_it_holds_back() -> None:
    """Requests in a row are answered in a row; a body in chunks has trailers; one that is held back has no end."""
    two = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 429 No\r\ncontent-length: 1\r\n\r\nx"
    row = replace(FINE, trailers=b"a: b\r\n", behind=(replace(FINE, content=b"[]"),))
    held = replace(FINE, content=b"0123456789" * 2, trailers=b"", sent_bytes=12, hold_s=0.01)
    cases = (
        (two, row, Seen(End.ANSWERED, 200, b"{}", behind=(Seen(End.ANSWERED, 429, b"x"),))),
        (two[:-1], row, Seen(End.ANSWERED, 200, b"{}", behind=(Seen(End.BROKEN, 429),))),
        (two[:50], row, Seen(End.ANSWERED, 200, b"{}", behind=(Seen(End.BROKEN),))),
        (two[:40], replace(row, leave_after=2), Seen(End.ANSWERED, 200, b"{}", behind=(Seen(End.LEFT),))),
        (b"", held, Seen(End.LEFT)),
        (two[40:], held, Seen(End.ANSWERED, 429, b"x")),
    )

    async def ask(answer: bytes, request: Request) -> tuple[Seen, bytes]:
        came, is_served = bytearray(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.extend(await reader.readuntil(b"[]" if request.behind else b"90"))
            writer.write(answer)
            if request.behind:
                writer.close()
            came.extend(await reader.read())
            writer.close()
            is_served.set()

        async with await asyncio.start_server(serve, "127.0.0.1") as server:
            client = Client(server.sockets[0].getsockname()[1])
            seen = await client.ask(request, "a")
            client.leave()
            await is_served.wait()
        return seen, bytes(came)

    for answer, request, wanted in cases:
        seen, came = asyncio.run(ask(answer, request))
        assert seen == wanted
        if request.behind:
            assert b"\r\n\r\n1;soak=1\r\n{\r\n1;soak=1\r\n}\r\n0\r\na: b\r\n\r\nPOST " in came
            assert b"x-request-id: a-behind-1\r\n" in came
        else:
            assert came.endswith(b"1;soak=1\r\n0\r\n8;soak=1\r\n12345678\r\n3;soak=1\r\n901\r\n")
