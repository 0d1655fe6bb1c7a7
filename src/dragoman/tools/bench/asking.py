"""Sends one question to a server and records the answer as a client sees it. On the event loop."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.tools.bench.answer import AnswerReader, Sample, one_line
from dragoman.tools.bench.apis import BenchApi, Question
from dragoman.tools.bench.client import BrokenOff, HttpClient, NotHttp


@dataclass(frozen=True, slots=True)
class Asker:
    """Calls one operation of a server. `model` "" = a name is not needed. `more`: merged into each body, null removes a
    field.
    """

    client: HttpClient
    api: BenchApi
    path: str
    model: str
    timeout_s: float
    more: Mapping[str, Any] = field(default_factory=dict)

    async def ask(self, question: Question, due_s: float | None = None) -> Sample:
        """The question's answer, or its error. `due_s` None = now."""
        content = json.dumps(overlaid(self.api.body(question), self.more), ensure_ascii=False).encode()
        sent_s = time.perf_counter()
        sample = Sample(sent_s if due_s is None else due_s, sent_s)
        reader = AnswerReader(sample, self.api.read, is_whole=self.api.is_batch)
        try:
            async with asyncio.timeout(self.timeout_s):
                await self.client.post(self.path, content, reader)
            sample.end_s = time.perf_counter()
            reader.finish(sample.end_s)
            if not sample.piece_times_s:
                sample.fail("empty answer", "the answer held no output")
        except (OSError, NotHttp) as error:  # TimeoutError is an OSError
            sample.end_s = time.perf_counter()
            sample.error, sample.message = failure_of(error)
        return sample


_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (NotHttp, "not HTTP"),
    (BrokenOff, "broken off"),
    (TimeoutError, "timeout"),
    (ConnectionRefusedError, "connection refused"),
    (ConnectionError, "connection lost"),
    (socket.gaierror, "unknown host"),
    (ssl.SSLError, "TLS"),
)


def failure_of(error: Exception) -> tuple[str, str]:
    kind = next((kind for of, kind in _KINDS if isinstance(error, of)), "connection failed")
    return kind, one_line(error) or "no answer in time"


def overlaid(body: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The body with `more` merged into it, nested objects too; None removes a field."""
    both = dict(body)
    for name, value in more.items():
        below = both.get(name)
        if value is None:
            both.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(below, Mapping):
            both[name] = overlaid(below, value)
        else:
            both[name] = value
    return both
