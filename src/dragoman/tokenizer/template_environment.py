"""The Jinja in which chat templates run: Jinja's immutable sandbox, with the extras of Hugging Face's "Chat templates"
pages.

Also the program of the process that renders within limits of the kernel (`main`); it imports no more than this file
does. The sandbox keeps a template away from its process; only the process's limits bound time and memory.
"""

from __future__ import annotations

import json
import marshal
import os
import resource
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

LENGTH_BYTES = 8  # before each message between a server and the process
TEXT, LIMIT, REJECTION, FAILURE = b"TLRF"  # the kinds of answers, their first byte
LAST, MORE = b"\0\1"  # their second byte: the process ends, or continues

_CHANNEL = 0  # the socket, in place of the standard input
_MOST_TEMPLATES = 16  # kept compiled
_MOST_GROWTH = 128 << 20  # bytes; a process that has grown by more ends, to free them
_MOST_WORDS = 4_000  # characters of a template's error
_MEMORY = "it took too much memory"


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Limits of one rendering, far beyond any real conversation. `max_bytes`: memory beyond what the process has."""

    max_size: int = 8_000_000
    max_cpu_s: float = 2.0
    max_bytes: int = 512 << 20


class TemplateRejection(Exception):
    """The template called `raise_exception`: it refuses these messages."""


class TemplateLimit(Exception):
    """The rendering exceeded one of its limits."""


class CompiledTemplate:
    """One template, ready to render; every rendering is independent, on any thread. Raises: jinja2.TemplateSyntaxError."""

    def __init__(self, source: str) -> None:
        self._template = _Environment().from_string(source)
        # Each rendering copies them, and Jinja's chain of maps is slow to copy.
        self._template.globals = dict(self._template.globals)

    def render(self, variables: Mapping[str, Any], now: datetime, max_size: int) -> str:
        """The text, at the time `now`. Raises: TemplateRejection, TemplateLimit, or any error of the template's code."""
        clock = {"strftime_now": _Clock(now)}
        size, pieces = 0, list[str]()
        for piece in self._template.generate({**variables, **clock}):
            size += len(piece)
            if size > max_size:
                raise TemplateLimit(f"it rendered more than {max_size} characters")
            pieces.append(piece)
        return "".join(pieces)


class _Clock:
    """A function for the date, so that templates see no more of the clock."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def __call__(self, form: str) -> str:
        return self._now.strftime(form)


class _Environment(ImmutableSandboxedEnvironment):
    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception


class _Generation(Extension):
    """Accepts `{% generation %}`, which marks an assistant's words for training, and renders its content."""

    tags = {"generation"}  # noqa: RUF012  (declared so by Jinja)

    def parse(self, parser: Parser) -> nodes.Node:
        """The nodes between the tags, in their own scope."""
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(lineno)


def _raise_exception(message: str) -> None:
    raise TemplateRejection(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: Jinja's own filter escapes <, > and & for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def outcome(template: CompiledTemplate, variables: Mapping[str, Any], now: datetime, max_size: int) -> tuple[int, str]:
    try:
        return TEXT, template.render(variables, now, max_size)
    except Exception as error:  # a template is the model author's code: it may raise anything
        return told(error)


def told(error: Exception) -> tuple[int, str]:
    match error:
        case TemplateRejection():
            return REJECTION, str(error)[:_MOST_WORDS]
        case TemplateLimit():
            return LIMIT, str(error)
        case MemoryError():
            return LIMIT, _MEMORY
        case jinja2.TemplateSyntaxError():
            return FAILURE, f"line {error.lineno}: {error.message}"[:_MOST_WORDS]
        case _:
            return FAILURE, f"{type(error).__name__}: {error}"[:_MOST_WORDS]


# --- the process ------------------------------------------------------------------------------------------------------


def main() -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    begin_bytes = _mapped_bytes()
    compiled: dict[str, CompiledTemplate] = {}
    while (request := _received()) is not None:
        max_bytes = int.from_bytes(request[:LENGTH_BYTES], "little")
        _bound_memory(begin_bytes + max_bytes)
        kind, text = _answer(compiled, memoryview(request)[LENGTH_BYTES:])
        signal.setitimer(signal.ITIMER_PROF, 0)
        if text == _MEMORY.encode():
            text = f"it took more than {max_bytes >> 20} MiB".encode()
        goes_on = kind != LIMIT and _mapped_bytes() - begin_bytes < _MOST_GROWTH
        _send(bytes((kind, MORE if goes_on else LAST)), text)
        if not goes_on:
            break


def _answer(compiled: dict[str, CompiledTemplate], question: memoryview) -> tuple[int, bytes]:
    try:
        source, variables, now, max_size, max_cpu_s = marshal.loads(question)
        signal.setitimer(signal.ITIMER_PROF, max_cpu_s)
        if source not in compiled:
            if len(compiled) >= _MOST_TEMPLATES:
                compiled.clear()
            compiled[source] = CompiledTemplate(source)
        if variables is None:
            return TEXT, b""
        kind, text = outcome(compiled[source], variables, datetime.fromisoformat(now), max_size)
        return kind, text.encode("utf-8", "surrogatepass")
    except Exception as error:  # compiling evaluates constants; or memory runs out
        kind, text = told(error)
        return kind, text.encode("utf-8", "replace")


def _bound_memory(max_bytes: int) -> None:
    _, hardest = resource.getrlimit(resource.RLIMIT_AS)
    most = max_bytes if hardest == resource.RLIM_INFINITY else min(max_bytes, hardest)
    resource.setrlimit(resource.RLIMIT_AS, (most, hardest))


def _mapped_bytes() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def _received() -> bytes | None:
    """The next message, None = the server has closed the socket."""
    head = sys.stdin.buffer.read(LENGTH_BYTES)
    size = int.from_bytes(head, "little")
    request = sys.stdin.buffer.read(size)
    return request if len(head) == LENGTH_BYTES and len(request) == size else None


def _send(head: bytes, text: bytes) -> None:
    message = memoryview(b"".join(((len(head) + len(text)).to_bytes(LENGTH_BYTES, "little"), head, text)))
    while message:
        message = message[os.write(_CHANNEL, message) :]
