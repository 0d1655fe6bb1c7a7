"""Asks a server over HTTP: many requests at once; what came, and how long it took.

Does: OpenAI's completions as streams, and llama.cpp's own form; prepare prompts, so that their prefixes are kept. Does not:
start servers. Runs an event loop of its own in every call, on the calling thread.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from benchmarks.serving.load import LoadFailed
from benchmarks.speculation.tasks import Task, Turn
from dragoman.tools.bench.client import Collected, HttpClient, read_target

Answer = str | tuple[int, ...]
"""Text, or token ids where that is what the server tells."""


@dataclass(frozen=True, slots=True)
class Request:
    """A turn with its whole prompt, text or token ids. `stream`: where the one before it in the conversation was asked."""

    prompt: str | Sequence[int]
    turn: Turn
    stream: int


class Asked(NamedTuple):
    """An answer: itself, its number of tokens, when it was asked for and when it ended."""

    answer: Answer
    num_tokens: int
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """From the one to the other."""
        return self.end_s - self.begin_s

    def tokens_until(self, end_s: float) -> float:
        """As many as had come by then, if they came evenly."""
        return self.num_tokens * min(max(end_s - self.begin_s, 0.0) / self.seconds, 1.0)


@dataclass(slots=True)
class Phase:
    """What came of requests at once. `guessed`, `accepted`: tokens, if the server counts them.

    `seconds`: until all had been answered. `streams`: of each its tokens and its own seconds; empty = not known.
    """

    seconds: float = 0.0
    num_tokens: float = 0
    answers: list[Answer] = field(default_factory=list)
    guessed: int = 0
    accepted: int = 0
    streams: list[tuple[int, float]] = field(default_factory=list)

    def add(self, other: Phase) -> None:
        """Take in what came of others, after them: of the same streams."""
        self.seconds += other.seconds
        self.num_tokens += other.num_tokens
        self.answers += other.answers
        self.guessed += other.guessed
        self.accepted += other.accepted
        before = self.streams or [(0, 0.0)] * len(other.streams)
        both = zip(before, other.streams, strict=True)
        self.streams = [(count + more, seconds + longer) for (count, seconds), (more, longer) in both]

    @property
    def rate(self) -> float:
        """Tokens per second, until the last stream had its answers."""
        return self.num_tokens / self.seconds

    @property
    def speed(self) -> float:
        """Tokens per second of streams that do not wait for each other: each one's own, together. 0 = not known."""
        return sum(count / seconds for count, seconds in self.streams)


@dataclass(frozen=True, slots=True)
class Form:
    """How a server is asked, and what of its events is the answer, with its number of tokens."""

    path: str
    body: Callable[[Request], dict[str, Any]]
    read: Callable[[Sequence[dict[str, Any]]], tuple[Answer, int]]


def _openai_body(request: Request) -> dict[str, Any]:
    turn = request.turn
    return {
        "model": "bench",
        "prompt": request.prompt,
        "max_tokens": turn.max_tokens,
        "temperature": 0,
        "ignore_eos": turn.ignores_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
        **turn.grammar,
    }


def _read_openai(events: Sequence[dict[str, Any]]) -> tuple[Answer, int]:
    text = "".join(choice["text"] for event in events for choice in event["choices"])
    return text, next(event["usage"]["completion_tokens"] for event in reversed(events) if event.get("usage"))


def _llamacpp_body(request: Request) -> dict[str, Any]:
    return {
        "prompt": request.prompt,
        "n_predict": request.turn.max_tokens,
        "temperature": 0,
        "ignore_eos": request.turn.ignores_eos,
        "stream": True,
        "return_tokens": True,
        "cache_prompt": True,
        "id_slot": request.stream,
    }


def _read_llamacpp(events: Sequence[dict[str, Any]]) -> tuple[Answer, int]:
    ids = tuple(token_id for event in events if not event.get("stop") for token_id in event["tokens"])
    return ids, len(ids)


FORMS = {
    "openai": Form("/v1/completions", _openai_body, _read_openai),
    "llama.cpp": Form("/completion", _llamacpp_body, _read_llamacpp),
}


class Asker:
    """Asks one server. `extras`: what every request's body has besides."""

    def __init__(self, url: str, form: str, extras: Mapping[str, Any] | None = None) -> None:
        self._url, self._form, self._extras = url, FORMS[form], dict(extras or {})

    def prepare(self, requests: Sequence[Request]) -> None:
        """Have the server compute the prompts. Raises: LoadFailed."""
        asyncio.run(self._ask_all([replace(request, turn=Turn(1)) for request in requests]))

    def run(self, requests: Sequence[Request]) -> Phase:
        """Ask all at once. Raises: LoadFailed."""
        before = self._counts()
        begin_s = time.perf_counter()
        found = asyncio.run(self._ask_all(requests))
        seconds = time.perf_counter() - begin_s
        after = self._counts()
        guessed, accepted = (after[name] - before[name] for name in ("draft", "accepted"))
        streams = [(asked.num_tokens, asked.seconds) for asked in found]
        num_tokens = sum(asked.num_tokens for asked in found)
        return Phase(seconds, num_tokens, [asked.answer for asked in found], guessed, accepted, streams)

    def converse(self, streams: Sequence[Sequence[Task]]) -> Phase:
        """All streams at once, none of which waits for another; what counts is until the first has ended.

        Prompts are a part of it. Raises: LoadFailed.
        """
        before, begin_s = self._counts(), time.perf_counter()
        found = asyncio.run(self._converse_all(streams))
        after = self._counts()
        end_s = min(asked[-1].end_s for asked in found)
        everything = [one for asked in found for one in asked]
        guessed, accepted = (after[name] - before[name] for name in ("draft", "accepted"))
        num_tokens = sum(one.tokens_until(end_s) for one in everything)
        return Phase(end_s - begin_s, num_tokens, [one.answer for one in everything], guessed, accepted)

    async def _converse_all(self, streams: Sequence[Sequence[Task]]) -> list[list[Asked]]:
        client = HttpClient(read_target(self._url), {})
        try:
            return list(await asyncio.gather(*(self._converse(client, tasks, i) for i, tasks in enumerate(streams))))
        except OSError as error:
            raise LoadFailed(f"{type(error).__name__}: {error}") from error
        finally:
            client.close()

    async def _converse(self, client: HttpClient, tasks: Sequence[Task], stream: int) -> list[Asked]:
        found: list[Asked] = []
        for task in tasks:
            text = ""
            for turn in task.turns:
                text += turn.text
                found.append(await self._ask(client, Request(turn.ids or text, turn, stream)))
                text += str(found[-1].answer)
        return found

    async def _ask_all(self, requests: Sequence[Request]) -> list[Asked]:
        client = HttpClient(read_target(self._url), {})
        try:
            return list(await asyncio.gather(*(self._ask(client, request) for request in requests)))
        except OSError as error:
            raise LoadFailed(f"{type(error).__name__}: {error}") from error
        finally:
            client.close()

    async def _ask(self, client: HttpClient, request: Request) -> Asked:
        body = json.dumps(self._form.body(request) | self._extras).encode()
        answer, begin_s = Collected(), time.perf_counter()
        await client.post(self._form.path, body, answer)
        end_s = time.perf_counter()
        if answer.status != 200:
            raise LoadFailed(f"status {answer.status}: {answer.body[:300]!r}")
        lines = (line.removeprefix(b"data: ") for line in answer.body.splitlines() if line.startswith(b"data: {"))
        events = [json.loads(line) for line in lines]
        if wrong := next((event["error"] for event in events if "error" in event), None):
            raise LoadFailed(str(wrong))
        text, num_tokens = self._form.read(events)
        return Asked(text, num_tokens, begin_s, end_s)

    def _counts(self) -> Mapping[str, int]:
        """Guessed and accepted tokens since the server's start; zeros if it does not count them."""
        if self._form is not FORMS["openai"]:
            return {"draft": 0, "accepted": 0}
        page = asyncio.run(_get(self._url, "/metrics"))
        return {name: _count(page, f"dragoman_{name}_tokens_total") for name in ("draft", "accepted")}


async def _get(url: str, path: str) -> str:
    client = HttpClient(read_target(url), {})
    try:
        return (await client.get(path)).body.decode()
    finally:
        client.close()


def _count(page: str, name: str) -> int:
    lines = (line for line in page.splitlines() if line.startswith(name))
    return sum(int(float(line.rpartition(" ")[2])) for line in lines)
