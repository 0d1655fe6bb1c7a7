"""Load for the measurements here: prompts of token ids of the benchmark's own vocabulary, as the compared servers take them.

Does: closed loop (N clients, each sends its next request when the last one is answered) and open loop (Poisson arrivals);
time to first token, inter-token latency, throughput, goodput under latency bounds. Does not: start servers, or speak HTTP:
that is `dragoman.tools.bench`'s, whose command measures any server with prompts of text.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.serving.model import VOCAB_SIZE
from dragoman.tools.bench.answer import message_of
from dragoman.tools.bench.client import HttpClient, NotHttp, read_target
from dragoman.tools.bench.load import arrivals
from dragoman.tools.percentiles import percentile


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked: prompts of `prompt_tokens` random token ids, `output_tokens` greedy tokens each, none ends early.

    Token ids are below `vocab_size`.
    """

    prompt_tokens: int = 128
    output_tokens: int = 64
    shared_prefix_tokens: int = 0
    seed: int = 0
    vocab_size: int = VOCAB_SIZE

    def prompt(self, number: int) -> list[int]:
        """The token ids of request `number`; the shared prefix is the same for all."""
        shared = random.Random(self.seed)
        own = random.Random(f"{self.seed}/{number}")
        prefix = [shared.randrange(1, self.vocab_size) for _ in range(self.shared_prefix_tokens)]
        return prefix + [own.randrange(1, self.vocab_size) for _ in range(self.prompt_tokens - len(prefix))]

    def request(self, form: WireForm, number: int) -> bytes:
        """The body of request `number`."""
        return json.dumps(form.body(self.prompt(number), self.output_tokens)).encode()


class Asked(Protocol):
    """What is asked of a server."""

    def request(self, form: WireForm, number: int) -> bytes:
        """The body of request `number`."""
        ...


@dataclass(slots=True)
class Timing:
    """One answered request; times in seconds on one clock. `token_times_s`: when each piece of output arrived."""

    start_s: float
    token_times_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    error: str = ""


class LoadFailed(RuntimeError):
    """A run that says nothing about speed, because requests failed."""


@dataclass(frozen=True, slots=True)
class WireForm:
    """How a dialect is asked for a stream. `is_piece` tells the lines of an answer that carry output."""

    path: str
    body: Callable[[list[int], int], dict[str, object]]
    is_piece: Callable[[bytes], bool]


def _openai(ids: list[int], length: int) -> dict[str, object]:
    return {"model": "bench", "prompt": ids, "max_tokens": length, "temperature": 0, "ignore_eos": True, "stream": True}


def _llamacpp(ids: list[int], length: int) -> dict[str, object]:
    return {
        "prompt": ids,
        "n_predict": length,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "cache_prompt": False,
    }


def _is_event(line: bytes) -> bool:
    return line.startswith(b"data: {")


FORMS: dict[str, WireForm] = {
    "openai": WireForm("/v1/completions", _openai, _is_event),
    "llama.cpp": WireForm("/completion", _llamacpp, _is_event),
}


async def ask(
    url: str, form: WireForm, workload: Asked, number: int, on_piece: Callable[[int], None] | None = None
) -> Timing:
    """Send request `number` and read its stream to the end; failures are told in the timing's `error`.

    `on_piece` is called with the number of pieces so far, whenever one arrives.
    """
    content = workload.request(form, number)
    # A connection of its own, as most clients of servers have: what it takes to open one is part of what they wait for.
    client = HttpClient(read_target(url), {"authorization": "Bearer none", "connection": "close"})
    timing = Timing(time.perf_counter())
    reader = _Pieces(form, timing, on_piece)
    try:
        await client.post(form.path, content, reader)
        timing.end_s = time.perf_counter()
        reader.finish()
    except (OSError, NotHttp) as error:
        timing.error = timing.error or f"{type(error).__name__}: {error}"
    finally:
        client.close()
    if not timing.error and not timing.token_times_s:
        timing.error = "the answer held no output"
    return timing


class _Pieces:
    """Reads one answer by its lines, and notes in the timing when each line with output came."""

    def __init__(self, form: WireForm, timing: Timing, on_piece: Callable[[int], None] | None) -> None:
        self._form, self._timing, self._on_piece = form, timing, on_piece
        self._status = 0
        self._rest = b""

    def begin(self, status: int, _: Mapping[str, str]) -> None:
        self._status = status

    def feed(self, data: bytes, now_s: float) -> None:
        if self._status >= 300:
            self._rest += data
            return
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if self._form.is_piece(line):
                self._timing.token_times_s.append(now_s)
                if line.startswith(b'data: {"error"'):
                    self._timing.error = line.decode("utf-8", "replace")
                if self._on_piece is not None:
                    self._on_piece(len(self._timing.token_times_s))

    def finish(self) -> None:
        """The answer has come to its end."""
        if self._status >= 300:
            self._timing.error = f"status {self._status}: {message_of(self._rest)}"


async def closed_loop(url: str, form: WireForm, workload: Asked, clients: int, requests: int) -> list[Timing]:
    """`clients` clients, each sends `requests` requests one after the other."""

    async def client(first: int) -> list[Timing]:
        return [await ask(url, form, workload, first + i) for i in range(requests)]

    timings = await asyncio.gather(*(client(number * requests) for number in range(clients)))
    return [timing for own in timings for timing in own]


async def open_loop(url: str, form: WireForm, workload: Workload, rate: float, requests: int) -> list[Timing]:
    """`requests` requests that arrive at random, `rate` a second on average, whether or not earlier ones are done."""
    begin, tasks = time.perf_counter(), []
    for number, due_s in zip(range(requests), arrivals(rate, workload.seed + 1), strict=False):
        await asyncio.sleep(max(0.0, begin + due_s - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(url, form, workload, number)))
    return list(await asyncio.gather(*tasks))


@dataclass(frozen=True, slots=True)
class Summary:
    """What the clients of one run saw. Latencies in milliseconds; `goodput` = share of requests within both bounds.

    `pieces_per_request`: how many pieces an answer's stream had on average; the number of output tokens, if the server
    sends every token as soon as it is there.
    """

    num_requests: int
    num_errors: int
    output_tokens_per_s: float
    ttft_ms_p50: float
    ttft_ms_p99: float
    itl_ms_p50: float
    itl_ms_p99: float
    goodput: float
    pieces_per_request: float


def summarize(
    timings: Sequence[Timing], output_tokens: int, *, ttft_bound_ms: float = 4000.0, itl_bound_ms: float = 150.0
) -> Summary:
    """Fold a run. Throughput counts the tokens asked for: servers may put several into one piece."""
    good = [timing for timing in timings if not timing.error]
    if not good:
        raise LoadFailed(f"every request failed; the first: {timings[0].error}")
    span_s = max(timing.end_s for timing in good) - min(timing.start_s for timing in good)
    ttft = [1000 * (timing.token_times_s[0] - timing.start_s) for timing in good]
    itl = [1000 * (b - a) for t in good for a, b in zip(t.token_times_s, t.token_times_s[1:], strict=False)]
    means = [1000 * (t.token_times_s[-1] - t.token_times_s[0]) / max(output_tokens - 1, 1) for t in good]
    within = sum(first <= ttft_bound_ms and mean <= itl_bound_ms for first, mean in zip(ttft, means, strict=True))
    return Summary(
        num_requests=len(timings),
        num_errors=len(timings) - len(good),
        output_tokens_per_s=round(len(good) * output_tokens / span_s, 1),
        ttft_ms_p50=round(statistics.median(ttft), 1),
        ttft_ms_p99=round(percentile(ttft, 0.99), 1),
        itl_ms_p50=round(statistics.median(itl or [0.0]), 2),
        itl_ms_p99=round(percentile(itl or [0.0], 0.99), 2),
        goodput=round(within / len(timings), 3),
        pieces_per_request=round(statistics.mean(len(timing.token_times_s) for timing in good), 1),
    )
