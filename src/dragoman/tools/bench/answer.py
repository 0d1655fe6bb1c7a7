"""The received part of one answer, read line by line, and its events in each API's format. On the event loop.

Events are decoded by types in C, since a client spends its time here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

_LONGEST_MESSAGE = 200  # characters of a server's message
_MOST_KEPT = 4096  # bytes of an error's body


@dataclass(slots=True)
class Sample:
    """One request, and what has come of its answer. Times in seconds on the clock `perf_counter`.

    `due_s`, `sent_s`: when it should have been sent, and when it was. Tokens None = not reported. `error`: the kind of
    failure, "" = none so far. `is_ended`: the API's end mark was seen.
    """

    due_s: float
    sent_s: float
    piece_times_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""
    message: str = ""
    status: int = 0
    is_ended: bool = False

    @property
    def first_s(self) -> float:
        """Seconds from its due time to the first piece of output."""
        return self.piece_times_s[0] - self.due_s

    @property
    def total_s(self) -> float:
        """Seconds from its due time to the answer's end."""
        return self.end_s - self.due_s

    def fail(self, kind: str, message: str) -> None:
        """Note a failure; the first one counts."""
        if not self.error:
            self.error, self.message = kind, message

    def fail_inside(self, message: object) -> None:
        """Note an error that the server reports in its answer."""
        self.fail("error in the answer", one_line(message))

    def count(self, prompt_tokens: int | None, output_tokens: int | None) -> None:
        self.prompt_tokens = self.prompt_tokens if prompt_tokens is None else prompt_tokens
        self.output_tokens = self.output_tokens if output_tokens is None else output_tokens


ReadEvent = Callable[[Sample, bytes, float], None]
"""Reads one event (JSON) of an answer at a time in seconds. Raises: ValueError."""


class AnswerReader:
    def __init__(self, sample: Sample, read_event: ReadEvent | None, *, is_whole: bool = False) -> None:
        """`read_event` None = the body is the answer's text. `is_whole`: the body is one event."""
        self._sample = sample
        self._read_event = read_event
        self._is_whole = is_whole
        self._rest = b""

    def begin(self, status: int, _: Mapping[str, str]) -> None:
        self._sample.status = status

    def feed(self, data: bytes, now_s: float) -> None:
        if self._sample.status >= 300:
            self._rest += data[: max(0, _MOST_KEPT - len(self._rest))]
        elif self._is_whole:
            self._rest += data
        elif self._read_event is None:
            self._sample.piece_times_s.append(now_s)
        else:
            lines = (self._rest + data).split(b"\n")
            self._rest = lines.pop()
            for line in lines:
                self._line(line, now_s)

    def finish(self, now_s: float) -> None:
        if self._sample.status >= 300:
            self._sample.fail(f"HTTP {self._sample.status}", message_of(self._rest))
            return
        if self._read_event is None:
            self._sample.is_ended = True
        elif self._rest:
            self._line(self._rest.replace(b"\n", b" ") if self._is_whole else self._rest, now_s)
        if not self._sample.is_ended:
            self._sample.fail("broken off", "the answer ended without the mark that ends one")

    def _line(self, line: bytes, now_s: float) -> None:
        if line.startswith(b"data:"):
            line = line[5:]
        elif not line.startswith((b"{", b"[")):
            return  # comments, names of events, empty lines
        line = line.strip()
        if line == b"[DONE]":
            self._sample.is_ended = True
        elif line and self._read_event is not None:
            try:
                self._read_event(self._sample, line, now_s)
            except ValueError as error:
                self._sample.fail("not understood", f"{error} in {one_line(line)}")


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


# --- events -----------------------------------------------------------------------------------------------------------


class _Usage(msgspec.Struct):
    """The counts of tokens, each under the names of several APIs."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    thinking: Any = None
    tool_calls: Any = None

    @property
    def has_output(self) -> bool:
        return bool(self.content or self.reasoning or self.reasoning_content or self.thinking or self.tool_calls)


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None  # of a server that does not stream
    text: str | None = None
    finish_reason: str | None = None


class _OpenAiEvent(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None  # of an error in older servers, which are flat


_openai_event = msgspec.json.Decoder(_OpenAiEvent)


def read_openai(sample: Sample, event: bytes, now_s: float) -> None:
    read = _openai_event.decode(event)
    if read.error is not None or read.object == "error":
        sample.fail_inside(read.error or read.message)
    for choice in read.choices or ():
        delta = choice.delta or choice.message
        if choice.text or (delta is not None and delta.has_output):
            sample.piece_times_s.append(now_s)
        sample.is_ended = sample.is_ended or choice.finish_reason is not None
    if read.usage is not None:
        sample.count(read.usage.prompt_tokens, read.usage.completion_tokens)


class _Response(msgspec.Struct):
    usage: _Usage | None = None
    error: Any = None


class _ResponsesEvent(msgspec.Struct):
    type: str = ""
    response: _Response | None = None
    message: str | None = None
    error: Any = None


_responses_event = msgspec.json.Decoder(_ResponsesEvent)


def read_responses(sample: Sample, event: bytes, now_s: float) -> None:
    read = _responses_event.decode(event)
    if read.type.endswith(".delta"):
        sample.piece_times_s.append(now_s)
    elif read.type in ("error", "response.failed"):
        error = read.response.error if read.response is not None else None
        sample.fail_inside(error or read.error or read.message or read.type)
    elif read.type in ("response.completed", "response.incomplete"):
        sample.is_ended = True
    if read.response is not None and read.response.usage is not None:
        sample.count(read.response.usage.input_tokens, read.response.usage.output_tokens)


class _Message(msgspec.Struct):
    usage: _Usage | None = None


class _MessagesEvent(msgspec.Struct):
    type: str = ""
    message: _Message | None = None
    usage: _Usage | None = None
    error: Any = None


_messages_event = msgspec.json.Decoder(_MessagesEvent)


def read_messages(sample: Sample, event: bytes, now_s: float) -> None:
    read = _messages_event.decode(event)
    if read.type == "content_block_delta":
        sample.piece_times_s.append(now_s)
    elif read.type == "error":
        sample.fail_inside(read.error or "error")
    sample.is_ended = sample.is_ended or read.type == "message_stop"
    for usage in (read.message.usage if read.message is not None else None, read.usage):
        if usage is not None:
            # All tokens of the prompt: cached ones are reported separately.
            cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
            sample.count(None if usage.input_tokens is None else usage.input_tokens + cached, usage.output_tokens)


class _Details(msgspec.Struct):
    generated_tokens: int | None = None
    input_length: int | None = None
    finish_reason: str | None = None


class _TokenEvent(msgspec.Struct):
    token: Any = None
    generated_text: str | None = None
    details: _Details | None = None
    error: Any = None
    outputs: list[str] | None = None  # LMI's dynamic batches: a string for each prompt


_token_event = msgspec.json.Decoder(_TokenEvent | list[_TokenEvent])


def read_tokens(sample: Sample, event: bytes, now_s: float) -> None:
    """LMI's answers and Text Generation Inference's: an event for each token, the text again in the last."""
    read = _token_event.decode(event)
    for piece in read if isinstance(read, list) else (read,):
        _read_token(sample, piece, now_s)


def _read_token(sample: Sample, read: _TokenEvent, now_s: float) -> None:
    details = read.details
    if read.error is not None or (details is not None and details.finish_reason == "error"):
        sample.fail_inside(read.error or "finish_reason is error")
        return
    is_unstreamed = bool(read.generated_text) and not sample.piece_times_s
    if read.token is not None or any(read.outputs or ()) or is_unstreamed:
        sample.piece_times_s.append(now_s)
    # A stream in LMI's dynamic batches has no mark at its end.
    sample.is_ended = sample.is_ended or read.generated_text is not None or read.outputs is not None
    if details is not None:
        sample.count(details.input_length, details.generated_tokens)


class _OllamaEvent(msgspec.Struct):
    message: _Delta | None = None
    response: str | None = None
    thinking: str | None = None
    done: bool = False
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    error: Any = None


_ollama_event = msgspec.json.Decoder(_OllamaEvent)


def read_ollama(sample: Sample, event: bytes, now_s: float) -> None:
    read = _ollama_event.decode(event)
    if read.error is not None:
        sample.fail_inside(read.error)
    if read.response or read.thinking or (read.message is not None and read.message.has_output):
        sample.piece_times_s.append(now_s)
    sample.is_ended = sample.is_ended or read.done
    sample.count(read.prompt_eval_count, read.eval_count)


class _BatchItem(msgspec.Struct):
    data: str


_batch = msgspec.json.Decoder(list[_BatchItem])


def read_text_batch(sample: Sample, event: bytes, now_s: float) -> None:
    """The plain-text service's batch: all texts at once."""
    if any(item.data for item in _batch.decode(event)):
        sample.piece_times_s.append(now_s)
    sample.is_ended = True


class _Rows(msgspec.Struct):
    data: list[Any] | None = None
    results: list[Any] | None = None
    usage: _Usage | None = None


_rows = msgspec.json.Decoder(_Rows)


def read_rows(sample: Sample, event: bytes, now_s: float) -> None:
    """Vectors or scores of texts, all at once, in OpenAI's or Jina's shape."""
    read = _rows.decode(event)
    if read.data or read.results:
        sample.piece_times_s.append(now_s)
    if read.usage is not None:
        sample.count(read.usage.prompt_tokens or read.usage.total_tokens, 0)
    sample.is_ended = True
