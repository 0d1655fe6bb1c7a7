"""The received part of one answer, read line by line. `events` knows the APIs' formats. On the event loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_LONGEST_MESSAGE = 200  # characters of a server's message
_MOST_KEPT = 4096  # bytes of an error's body


@dataclass(slots=True)
class Answer:
    """The received part of an answer. Times in seconds on the clock `perf_counter`; tokens None = not reported.

    `is_ended`: the API's end mark was seen. `failure`: (kind, message) of an error that the server reported.
    """

    status: int = 0
    piece_times_s: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    is_ended: bool = False
    failure: tuple[str, str] | None = None

    def fail(self, message: object) -> None:
        self.failure = self.failure or ("error in the answer", one_line(message))

    def count(self, prompt_tokens: int | None, output_tokens: int | None) -> None:
        self.prompt_tokens = self.prompt_tokens if prompt_tokens is None else prompt_tokens
        self.output_tokens = self.output_tokens if output_tokens is None else output_tokens


ReadEvent = Callable[[Answer, bytes, float], None]
"""Reads one event (JSON) of an answer at a time in seconds. Raises: ValueError."""


class AnswerReader:
    def __init__(self, read_event: ReadEvent | None, *, is_whole: bool = False) -> None:
        """`read_event` None = the body is the answer's text. `is_whole`: the body is one event."""
        self.answer = Answer()
        self._read_event = read_event
        self._is_whole = is_whole
        self._rest = b""

    def begin(self, status: int, _: Mapping[str, str]) -> None:
        self.answer.status = status

    def feed(self, data: bytes, now_s: float) -> None:
        if self.answer.status >= 300:
            self._rest += data[: max(0, _MOST_KEPT - len(self._rest))]
        elif self._is_whole:
            self._rest += data
        elif self._read_event is None:
            self.answer.piece_times_s.append(now_s)
        else:
            lines = (self._rest + data).split(b"\n")
            self._rest = lines.pop()
            for line in lines:
                self._line(line, now_s)

    def finish(self, now_s: float) -> None:
        if self.answer.status >= 300:
            self.answer.failure = (f"HTTP {self.answer.status}", message_of(self._rest))
            return
        if self._read_event is None:
            self.answer.is_ended = True
        elif self._rest:
            self._line(self._rest.replace(b"\n", b" ") if self._is_whole else self._rest, now_s)
        if self.answer.failure is None and not self.answer.is_ended:
            self.answer.failure = ("broken off", "the answer ended without the mark that ends one")

    def _line(self, line: bytes, now_s: float) -> None:
        if line.startswith(b"data:"):
            line = line[5:]
        elif not line.startswith((b"{", b"[")):
            return  # comments, names of events, empty lines
        line = line.strip()
        if line == b"[DONE]":
            self.answer.is_ended = True
        elif line and self._read_event is not None:
            try:
                self._read_event(self.answer, line, now_s)
            except ValueError as error:
                self.answer.failure = self.answer.failure or ("not understood", f"{error} in {one_line(line)}")


def message_of(body: bytes) -> str:
    """The message in an error's body, on one line; without a known field, the body itself."""
    text = body.decode("utf-8", "replace")
    try:
        return one_line(_words(json.loads(text)))
    except ValueError:
        return one_line(text)


def _words(value: Any) -> Any:
    while isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        for name in ("error", "message", "Message", "detail"):
            if value.get(name):
                return _words(value[name])
    return value


def one_line(message: object) -> str:
    """The message on one line, cut to a bearable length."""
    if isinstance(message, bytes):
        message = message.decode("utf-8", "replace")
    elif isinstance(message, dict | list):
        message = _words(message)
    text = " ".join(str(message).split())
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 3] + "..."
