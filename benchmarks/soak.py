"""Asks a server for everything at once for a while, and tells what its memory does meanwhile.

Does: start a server of its own on the loopback interface, with little room; send eleven kinds of requests in five APIs
from many clients, some of them invalid, some leaving before their answer has ended; read the server's resident memory
every so many requests. The last line is JSON. Does not: measure speed, or judge answers beyond their status.

    python -m benchmarks.soak                              (the bundled model; a few minutes)
    python -m benchmarks.soak --kinds schema --requests 20000

Requests follow from the seed; which of them are refused depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httptools

from benchmarks.serving.processes import Server, ServerProcess
from dragoman.server.run import loop_factory

ROOM = ("--max-num-seqs", "16", "--job-queue-size", "24", "--kv-cache-gb", "0.05")
WORDS = ("the", "ship", "sailed", "on", "a", "sea", "of", "glass", "until", "night", "came", "and", "Ahab", "spoke")
_INVALID_SHARE, _LEAVING_SHARE = 1 / 6, 0.15
_EXPECTED = frozenset({200, 206, 400, 404, 412, 413, 422, 424, 429, 503})
_MIB = 1 << 20

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request. `valid` and `invalid` make its body from dice."""

    path: str
    valid: Callable[[random.Random], Body]
    invalid: Callable[[random.Random], Body]


def _text(dice: random.Random) -> str:
    """A prompt of 1 to 150 words, some of which nobody has used before."""
    words = [dice.choice(WORDS) if dice.random() < 0.8 else f"{dice.getrandbits(24):x}" for _ in range(_length(dice))]
    return " ".join(words)


def _length(dice: random.Random) -> int:
    return dice.choice((1, 8, 30, 150))


def _size(dice: random.Random) -> int:
    return dice.choice((1, 4, 16, 48))


def _messages(dice: random.Random) -> list[Body]:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": _text(dice)}]


def _schema(dice: random.Random) -> Body:
    """A JSON schema whose names differ from every other's."""
    kinds = ({"type": "string"}, {"type": "integer"}, {"enum": ["red", "green"]}, {"type": "boolean"})
    names = [f"field_{dice.getrandbits(20):x}" for _ in range(dice.randint(1, 5))]
    return {"type": "object", "properties": {name: dice.choice(kinds) for name in names}, "required": names}


def _completion(dice: random.Random, **more: Any) -> Body:
    return {"model": "soak", "prompt": _text(dice), "max_tokens": _size(dice), **more}


def _chat(dice: random.Random, **more: Any) -> Body:
    return {"model": "soak", "messages": _messages(dice), "max_tokens": _size(dice), **more}


def _lmi(dice: random.Random, stream: bool = False, **more: Any) -> Body:
    return {"inputs": _text(dice), "parameters": {"max_new_tokens": _size(dice), **more}, "stream": stream}


def _schema_chat(dice: random.Random) -> Body:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _schema(dice)}}
    return _chat(dice, response_format=wanted)


def _batch(dice: random.Random) -> Body:
    prompts = [{"id": number, "prompt": _text(dice)} for number in range(dice.randint(1, 4))]
    return {"prompts": prompts, "maxLength": _size(dice)}


KINDS: dict[str, Kind] = {
    "completion": Kind(
        "/v1/completions", lambda d: _completion(d, logprobs=3), lambda d: _completion(d, temperature=-1)
    ),
    "completion-stream": Kind(
        "/v1/completions",
        lambda d: _completion(d, stream=True, temperature=0.8, top_p=0.9, frequency_penalty=0.5),
        lambda d: _completion(d, stream=True, top_p=7),
    ),
    "chat": Kind("/v1/chat/completions", lambda d: _chat(d, n=2, seed=d.randrange(99)), lambda d: _chat(d, n=0)),
    "chat-stream": Kind(
        "/v1/chat/completions",
        lambda d: _chat(d, stream=True, logprobs=True, top_logprobs=2, stream_options={"include_usage": True}),
        lambda d: _chat(d, stream=True, top_logprobs=99, logprobs=True),
    ),
    "schema": Kind("/v1/chat/completions", _schema_chat, lambda d: _chat(d, response_format={"type": "poem"})),
    "beams": Kind("/v3/completions", lambda d: _completion(d, best_of=3, n=2), lambda d: _completion(d, best_of=-1)),
    "ovms-chat-stream": Kind(
        "/v3/chat/completions", lambda d: _chat(d, stream=True, stop=["night"]), lambda d: {"model": "soak"}
    ),
    "lmi": Kind("/invocations", lambda d: _lmi(d, details=True), lambda d: _lmi(d, temperature="warm")),
    "lmi-stream": Kind(
        "/invocations",
        lambda d: _lmi(d, stream=True, do_sample=True, top_k=20, stop=["sea"]),
        lambda d: {"inputs": 5, "stream": True},
    ),
    "tgi-stream": Kind(
        "/generate_stream",
        lambda d: {"inputs": _text(d), "parameters": {"max_new_tokens": _size(d), "details": True, "top_n_tokens": 2}},
        lambda d: {"inputs": _text(d), "parameters": {"max_new_tokens": 0}},
    ),
    "text-batch": Kind("/api/generate-batch", _batch, lambda d: {"prompts": [], "maxLength": _size(d)}),
}


@dataclass(frozen=True, slots=True)
class Memory:
    """A process's memory in MiB: all of it, its share of what several processes map, and what is no file's."""

    rss: float
    pss: float
    anonymous: float

    @classmethod
    def of(cls, pid: int) -> Memory:
        """What the kernel counts for a process. Raises: OSError if it has ended."""
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return cls(*(round(kib[name] / 1024, 1) for name in ("Rss", "Pss", "Anonymous")))


@dataclass(frozen=True, slots=True)
class Reading:
    """The server's memory after so many requests."""

    num_requests: int
    seconds: float
    memory: Memory


@dataclass(frozen=True, slots=True)
class SoakReport:
    """What a soak saw. `growth_mib`: how far resident memory rose, at most and in the end, above the warm server's."""

    ready: Memory
    warm: Memory
    readings: tuple[Reading, ...]
    outcomes: dict[str, int]

    @property
    def growth_mib(self) -> dict[str, float]:
        """Above `warm`."""
        sizes = [reading.memory.rss for reading in self.readings]
        return {"at most": round(max(sizes) - self.warm.rss, 1), "at the end": round(sizes[-1] - self.warm.rss, 1)}


class _Answer:
    """The answer to one request, as httptools reports it."""

    def __init__(self) -> None:
        self.is_complete = False
        self.num_body_bytes = 0

    def on_body(self, body: bytes) -> None:
        self.num_body_bytes += len(body)

    def on_message_complete(self) -> None:
        self.is_complete = True


@dataclass
class _Client:
    """One connection, opened anew whenever it was left."""

    port: int
    outcomes: Counter[str]
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: Body, leave_after: int | None) -> None:
        """Send a request and read its answer, but leave once `leave_after` bytes of it have come (0: do not wait)."""
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer none\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        try:
            self.streams = self.streams or await asyncio.open_connection("127.0.0.1", self.port)
            self.streams[1].write(head.encode() + content)
            await self._read(self.streams[0], leave_after)
        except OSError:
            self.outcomes["broken"] += 1
            self.leave()

    async def _read(self, reader: asyncio.StreamReader, leave_after: int | None) -> None:
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        while not answer.is_complete:
            if leave_after is not None and answer.num_body_bytes >= leave_after:
                self.outcomes["left"] += 1
                return self.leave()
            piece = await reader.read(65_536)
            if not piece:
                self.outcomes["broken"] += 1
                return self.leave()
            parser.feed_data(piece)
        self._count(parser.get_status_code())
        if not parser.should_keep_alive():
            self.leave()
        return None

    def _count(self, status: int) -> None:
        if status in (429, 503):
            self.outcomes["refused"] += 1
        elif status in (200, 206):
            self.outcomes["answered"] += 1
        else:
            self.outcomes["told what is wrong" if status in _EXPECTED else f"odd: {status}"] += 1

    def leave(self) -> None:
        """Close the connection, whatever is on its way."""
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


@dataclass
class Soak:
    """The load on one server. `run` may be called once."""

    pid: int
    port: int
    kinds: Sequence[str]
    num_clients: int
    num_requests: int
    every: int
    seed: int = 0
    num_warm_requests: int = 300  # each kind some thirty times: what a server needs that has done everything
    outcomes: Counter[str] = field(default_factory=Counter)
    readings: list[Reading] = field(default_factory=list)
    num_sent: int = 0

    async def run(self, on_reading: Callable[[Reading], None]) -> SoakReport:
        """Warm the server up, then load it; readings are also told as they are made."""
        ready = Memory.of(self.pid)
        await self._warm_up()
        warm = Memory.of(self.pid)
        self.outcomes.clear()
        begin_s = time.monotonic()

        def read() -> None:
            reading = Reading(self.num_sent, round(time.monotonic() - begin_s, 1), Memory.of(self.pid))
            self.readings.append(reading)
            on_reading(reading)

        await asyncio.gather(*(self._client(number, read) for number in range(self.num_clients)))
        read()
        return SoakReport(ready, warm, tuple(self.readings), dict(self.outcomes))

    async def _warm_up(self) -> None:
        """Every kind in turn, valid and read to the end, on a few connections."""

        async def client(number: int, step: int) -> None:
            dice, connection = random.Random(f"{self.seed}/warm/{number}"), _Client(self.port, self.outcomes)
            for index in range(number, self.num_warm_requests, step):
                kind = KINDS[self.kinds[index % len(self.kinds)]]
                await connection.ask(kind.path, kind.valid(dice), None)
            connection.leave()

        await asyncio.gather(*(client(number, 8) for number in range(8)))

    async def _client(self, number: int, read: Callable[[], None]) -> None:
        dice, connection = random.Random(f"{self.seed}/{number}"), _Client(self.port, self.outcomes)
        while self.num_sent < self.num_requests:
            self.num_sent += 1
            if self.num_sent % self.every == 0:
                read()
            kind = KINDS[dice.choice(self.kinds)]
            make = kind.invalid if dice.random() < _INVALID_SHARE else kind.valid
            leave_after = dice.choice((0, 1, 400)) if dice.random() < _LEAVING_SHARE else None
            await connection.ask(kind.path, make(dice), leave_after)
        connection.leave()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def soak(arguments: argparse.Namespace) -> SoakReport:
    """Start a server, load it, end it; the table is written meanwhile."""
    port = _free_port()
    command = [sys.executable, "-m", "dragoman", "serve", *([arguments.model] if arguments.model else [])]
    command += ["--name", "soak", "--host", "127.0.0.1", "--port", str(port), *ROOM, *arguments.server]
    with contextlib.ExitStack() as stack:
        log_dir = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(ServerProcess(Server("soak", command, port, "openai"), log_dir))
        load = Soak(
            server.pid, port, arguments.kinds, arguments.clients, arguments.requests, arguments.every, arguments.seed
        )
        sys.stdout.write(f"{'requests':>10} {'seconds':>8} {'RSS MiB':>8} {'PSS':>8} {'anonymous':>10}\n")
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            report = runner.run(load.run(_show))
        server.check_alive()
        return report


def _show(reading: Reading) -> None:
    memory = reading.memory
    sys.stdout.write(
        f"{reading.num_requests:>10} {reading.seconds:>8} {memory.rss:>8} {memory.pss:>8} {memory.anonymous:>10}\n"
    )
    sys.stdout.flush()


def main() -> None:
    """Run one soak, show its table, then its report as a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="model directory; default: the bundled one")
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=list(KINDS))
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=10_000, help="requests between two readings of the memory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--server", nargs=argparse.REMAINDER, default=[], help="further arguments of the server; last")
    report = soak(parser.parse_args())
    print(json.dumps({**asdict(report), "growth_mib": report.growth_mib}))


if __name__ == "__main__":
    main()
