"""The load generator against a small server of the test's own: what it sends, counts, and calls a failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from itertools import islice

import pytest

from benchmarks.serving.load import FORMS, LoadFailed, Timing, Workload, ask, closed_loop, open_loop, summarize
from benchmarks.serving.model import VOCAB_SIZE, bpe_tables
from dragoman.tools.bench.load import arrivals
from dragoman.tools.plan import workload as plan

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


THREE_PIECES = b"".join(chunk(b'data: {"choices": [%d]}\n\n' % number) for number in range(3))


class Served:
    """Answers every connection with the same bytes and keeps the bodies it was sent."""

    def __init__(self, answer: bytes) -> None:
        self.bodies: list[dict[str, object]] = []
        self.url = ""
        self._answer = answer

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Served]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        writer.write(self._answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def asked(answer: bytes) -> tuple[Timing, dict[str, object]]:
    async with Served(answer).listening() as served:
        timing = await ask(served.url, FORMS["openai"], Workload(5, 3), 7)
        return timing, served.bodies[0]


def test_a_stream_has_a_time_for_every_piece() -> None:
    timing, body = asyncio.run(asked(HEAD + THREE_PIECES + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"))
    assert not timing.error
    assert len(timing.token_times_s) == 3
    assert timing.start_s < timing.token_times_s[0] <= timing.end_s
    assert body["prompt"] == Workload(5, 3).prompt(7)
    assert (body["max_tokens"], body["ignore_eos"], body["stream"]) == (3, True, True)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (HEAD + THREE_PIECES, "BrokenOff"),
        (b"HTTP/1.1 503 Unavailable\r\n\r\nfull", "503"),
        (HEAD + chunk(b'data: {"error": "out of luck"}\n\n') + b"0\r\n\r\n", "out of luck"),
        (HEAD + b"0\r\n\r\n", "no output"),
    ],
    ids=["dies in the middle", "refuses", "fails in the stream", "says nothing"],
)
def test_an_answer_that_is_not_whole_is_an_error(answer: bytes, told: str) -> None:
    timing, _ = asyncio.run(asked(answer))
    assert told in timing.error


def test_a_server_that_is_not_there_is_an_error_and_not_an_exception() -> None:
    async def nobody() -> Timing:
        async with Served(b"").listening() as served:
            url = served.url
        return await ask(url, FORMS["openai"], Workload(5, 3), 0)

    assert "Error" in asyncio.run(nobody()).error


def test_a_closed_loop_sends_every_request_once() -> None:
    async def loop() -> tuple[list[Timing], list[dict[str, object]]]:
        async with Served(HEAD + THREE_PIECES + b"0\r\n\r\n").listening() as served:
            timings = await closed_loop(served.url, FORMS["openai"], Workload(5, 3), clients=3, requests=2)
            return timings, served.bodies

    timings, bodies = asyncio.run(loop())
    assert [timing.error for timing in timings] == [""] * 6
    expected = [Workload(5, 3).prompt(number) for number in range(6)]
    assert sorted(body["prompt"] for body in bodies) == sorted(expected)  # type: ignore[type-var]


def test_requests_arrive_when_the_simulation_has_them_arrive() -> None:
    simulated = [arrival.time_s for arrival in plan.arrivals(plan.Workload(200.0, 5, 3, num_requests=50, seed=4))]
    assert list(islice(arrivals(200.0, Workload(5, 3, seed=4).seed + 1), 50)) == simulated


def test_an_open_loop_sends_every_request_once() -> None:
    workload = Workload(5, 3, seed=4)

    async def loop() -> tuple[list[Timing], list[dict[str, object]]]:
        async with Served(HEAD + THREE_PIECES + b"0\r\n\r\n").listening() as served:
            return await open_loop(served.url, FORMS["openai"], workload, 200.0, 5), served.bodies

    timings, bodies = asyncio.run(loop())
    assert [timing.error for timing in timings] == [""] * 5
    assert sorted(body["prompt"] for body in bodies) == sorted(workload.prompt(number) for number in range(5))  # type: ignore[type-var]


def test_prompts_are_fresh_for_each_seed_and_share_what_they_should() -> None:
    first, second = Workload(40, 1, 30, seed=1), Workload(40, 1, 30, seed=2)
    assert first.prompt(0)[:30] == first.prompt(1)[:30]
    assert first.prompt(0)[30:] != first.prompt(1)[30:]
    assert first.prompt(0)[:30] != second.prompt(0)[:30]
    assert len(first.prompt(0)) == 40


def test_a_summary_counts_what_was_answered() -> None:
    timings = [Timing(0.0, [1.0, 1.5, 2.0], 2.0), Timing(0.0, [2.0, 2.5, 4.0], 4.0), Timing(0.0, error="refused")]
    summary = summarize(timings, 3, ttft_bound_ms=1500, itl_bound_ms=600)
    assert (summary.num_requests, summary.num_errors) == (3, 1)
    assert summary.output_tokens_per_s == 1.5  # 6 tokens in 4 seconds
    assert summary.ttft_ms_p50 == 1500
    assert (summary.itl_ms_p50, summary.itl_ms_p99) == (500, 1500)
    assert summary.goodput == pytest.approx(1 / 3, abs=1e-3)
    assert summary.pieces_per_request == 3


def test_a_run_without_an_answer_has_no_summary() -> None:
    with pytest.raises(LoadFailed, match="refused"):
        summarize([Timing(0.0, error="refused")], 3)


def test_nearly_every_token_of_the_benchmark_vocabulary_is_text_by_itself() -> None:
    vocabulary, merges = bpe_tables()
    assert sorted(vocabulary.values()) == list(range(VOCAB_SIZE))
    assert all(first + second in vocabulary for first, second in merges)
    whole = sum(all("!" <= character <= "~" for character in token) for token in vocabulary)
    assert whole > 0.99 * VOCAB_SIZE
    assert not any(len(token) == 3 and token.islower() for token in vocabulary)
