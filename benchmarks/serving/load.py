"""Generates load over HTTP and measures what a client sees, for every dialect.

Does: closed loop (N clients, each sends its next request when the last one is answered) and open loop (Poisson arrivals);
time to first token, inter-token latency, throughput, goodput under latency bounds. Does not: start servers.

    python -m benchmarks.serving.load --url http://127.0.0.1:8080 --dialect openai --clients 32 --requests 4

A client speaks HTTP/1.1 over a plain asyncio stream, so that measuring costs little on a machine that also serves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from benchmarks.serving.model import VOCAB_SIZE


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
        body = form.body(self.prompt(number), self.output_tokens)
        return json.dumps({key: value for key, value in body.items() if value != []}).encode()


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


def _text(token_ids: Sequence[int]) -> str:
    # single bytes of the benchmark tokenizer: letters only, two to a token
    return "".join(chr(97 + token_id % 26) + chr(97 + token_id // 26 % 26) for token_id in token_ids)


def _openai(ids: list[int], length: int) -> dict[str, object]:
    return {"model": "bench", "prompt": ids, "max_tokens": length, "temperature": 0, "ignore_eos": True, "stream": True}


def _chat(ids: list[int], length: int) -> dict[str, object]:
    messages = [{"role": "user", "content": _text(ids)}]
    return {**_openai([], length), "messages": messages} | {"stream_options": {}}


def _lmi(ids: list[int], length: int) -> dict[str, object]:
    return {"inputs": _text(ids), "parameters": {"max_new_tokens": length, "ignore_eos_token": True}, "stream": True}


def _llamacpp(ids: list[int], length: int) -> dict[str, object]:
    return {
        "prompt": ids,
        "n_predict": length,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "cache_prompt": False,
    }


def _tgi(ids: list[int], length: int) -> dict[str, object]:
    return {"inputs": _text(ids), "parameters": {"max_new_tokens": length}}


def _plain(ids: list[int], length: int) -> dict[str, object]:
    return {"id": 1, "prompt": _text(ids), "maxLength": length}


def _is_event(line: bytes) -> bool:
    return line.startswith(b"data: {")


FORMS: dict[str, WireForm] = {
    "openai": WireForm("/v1/completions", _openai, _is_event),
    "ovms": WireForm("/v3/completions", _openai, _is_event),
    "chat": WireForm("/v1/chat/completions", _chat, _is_event),
    "lmi": WireForm("/invocations", _lmi, lambda line: line.startswith(b'{"token"')),
    "tgi": WireForm("/generate_stream", _tgi, _is_event),
    "text": WireForm("/api/generate-one", _plain, bool),
    "llama.cpp": WireForm("/completion", _llamacpp, _is_event),
}


async def ask(
    url: str, form: WireForm, workload: Asked, number: int, on_piece: Callable[[int], None] | None = None
) -> Timing:
    """Send request `number` and read its stream to the end; failures are told in the timing's `error`.

    `on_piece` is called with the number of pieces so far, whenever one arrives.
    """
    timing = Timing(time.perf_counter())
    try:
        await _exchange(url, form, workload.request(form, number), timing, on_piece)
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:  # ValueError: a line beyond the reader's limit
        timing.error = f"{type(error).__name__}: {error}"
    if not timing.error and not timing.token_times_s:
        timing.error = "the answer held no output"
    return timing


async def _exchange(
    url: str, form: WireForm, content: bytes, timing: Timing, on_piece: Callable[[int], None] | None
) -> None:
    target = urlsplit(url)
    head = (
        f"POST {form.path} HTTP/1.1\r\nHost: {target.netloc}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer none\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(target.hostname, target.port, limit=2**20)
    try:
        writer.write(head.encode() + content)
        status = await reader.readline()
        if b" 20" not in status:
            timing.error = (status + await reader.read(2000)).decode("utf-8", "replace")
            return
        is_chunked = False
        while line := (await reader.readline()).strip().lower():
            is_chunked = is_chunked or (line.startswith(b"transfer-encoding:") and line.endswith(b"chunked"))
        is_ended = not is_chunked
        while line := (await reader.readline()):
            line = line.rstrip()
            is_ended = is_ended or line == b"0"  # the last chunk's size: a server that dies does not send it
            if form.is_piece(line):
                timing.token_times_s.append(time.perf_counter())
                if line.startswith(b'data: {"error"'):
                    timing.error = line.decode("utf-8", "replace")
                if on_piece is not None:
                    on_piece(len(timing.token_times_s))
        timing.end_s = time.perf_counter()
        if not is_ended:
            timing.error = timing.error or "the answer broke off"
    finally:
        writer.close()


async def closed_loop(url: str, form: WireForm, workload: Asked, clients: int, requests: int) -> list[Timing]:
    """`clients` clients, each sends `requests` requests one after the other."""

    async def client(first: int) -> list[Timing]:
        return [await ask(url, form, workload, first + i) for i in range(requests)]

    timings = await asyncio.gather(*(client(number * requests) for number in range(clients)))
    return [timing for own in timings for timing in own]


async def open_loop(url: str, form: WireForm, workload: Workload, rate: float, requests: int) -> list[Timing]:
    """`requests` requests that arrive at random, `rate` a second on average, whether or not earlier ones are done."""
    clock = random.Random(workload.seed + 1)
    begin, due, tasks = time.perf_counter(), 0.0, []
    for number in range(requests):
        due += clock.expovariate(rate)
        await asyncio.sleep(max(0.0, begin + due - time.perf_counter()))
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


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed, by nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def main() -> None:
    """Run one load and print its summary as a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--dialect", choices=sorted(FORMS), default="openai")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=4, help="per client; in all with --rate")
    parser.add_argument("--rate", type=float, help="open loop: arrivals a second")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--shared-prefix-tokens", type=int, default=0)
    parser.add_argument("--ttft-bound-ms", type=float, default=1000.0)
    parser.add_argument("--itl-bound-ms", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    workload = Workload(given.prompt_tokens, given.output_tokens, given.shared_prefix_tokens, given.seed)
    form = FORMS[given.dialect]
    if given.rate:
        timings = asyncio.run(open_loop(given.url, form, workload, given.rate, given.requests))
    else:
        timings = asyncio.run(closed_loop(given.url, form, workload, given.clients, given.requests))
    bounds = {"ttft_bound_ms": given.ttft_bound_ms, "itl_bound_ms": given.itl_bound_ms}
    print(json.dumps(asdict(summarize(timings, given.output_tokens, **bounds))))


if __name__ == "__main__":
    main()
