"""The log of a server: lines without clients' data, written without waiting for their reader. On any thread."""

from __future__ import annotations

import logging
import os
import re
import select
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

MAX_WAITING_CHARS = 1_048_576  # of unread lines; further ones are dropped and counted
CLOSE_TIMEOUT_S = 1.0
DROPPED = "%d lines of the log were dropped: they were not read, or could not be written\n"

TOLD_WHOLE = (
    "dragoman.host.",
    "dragoman.hub.",
    "dragoman.models.",
    "dragoman.nodes.",
    "dragoman.ray.",
    "dragoman.server.run.",
)
"""Loggers of what the operator does: messages of their exceptions hold nothing of clients'."""

_CITING = ("python_multipart", "opentelemetry.trace", "opentelemetry.baggage", "opentelemetry.propagators")
"""Loggers of libraries that cite what they were given to read; the client is told what is wrong with it."""

_HIDDEN = "(its message may hold what a client sent: --log-prompts shows it)"
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class OperatorFormatter(logging.Formatter):
    """Log lines with time and level, each on one line without control characters.

    Exceptions of requests are logged by type and place. `expected`: exceptions whose message explains them.
    """

    def __init__(
        self, expected: tuple[type[Exception], ...] = (), *, shows_values: bool = False, name: str = ""
    ) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {name + ' ' if name else ''}%(name)s: %(message)s")
        self._expected = expected
        self._shows_values = shows_values

    def format(self, record: logging.LogRecord) -> str:
        record.message, record.asctime = record.getMessage(), self.formatTime(record)
        line = _CONTROLS.sub(lambda found: repr(found[0])[1:-1], self.formatMessage(record))
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return line
        if isinstance(error, self._expected):
            return f"{line}\n{error}"
        return f"{line}\n{_told(error, is_whole=self._shows_values or _is_told_whole(record.name))}"


def hide_messages() -> None:
    """Make all formatters of this process omit messages of exceptions, where another program chooses formatters."""
    make = logging.getLogRecordFactory()

    def made(*words: Any, **more: Any) -> logging.LogRecord:
        record = make(*words, **more)
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not _is_told_whole(record.name):
            record.exc_text = _told(error, is_whole=False)  # which formatters take as it is
        return record

    logging.setLogRecordFactory(made)


def _is_told_whole(name: str) -> bool:
    return f"{name}.".startswith(TOLD_WHOLE)


def _told(error: BaseException, *, is_whole: bool) -> str:
    return "".join(_lines_of(error, is_whole=is_whole)).rstrip()


def _lines_of(error: BaseException, *, is_whole: bool) -> Iterator[str]:
    if is_whole:
        yield from traceback.format_exception(error)
        return
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    for number, cause in enumerate(reversed(chain)):
        yield "Traceback (most recent call last):\n" if not number else "\nwhich led to:\n"
        yield from traceback.format_tb(cause.__traceback__)
        yield f"{type(cause).__module__}.{type(cause).__qualname__} {_HIDDEN}\n"
        if isinstance(cause, BaseExceptionGroup):
            for part in cause.exceptions:
                yield from _lines_of(part, is_whole=False)


class BackgroundWriter:
    """A stream that takes text at once and writes it on a thread; excess text is dropped.

    So neither a stopped reader of a pipe nor a full disk blocks an event loop.
    """

    def __init__(self, stream: TextIO, max_chars: int = MAX_WAITING_CHARS) -> None:
        self._stream = stream
        self._max_chars = max_chars
        self._waiting: deque[str] = deque()
        self._num_chars = 0
        self._num_dropped = 0  # since the last report
        self._changed = threading.Condition()
        self._is_writing = False
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def write(self, text: str) -> int:
        with self._changed:
            if self._num_chars + len(text) > self._max_chars:
                self._num_dropped += 1
                self._changed.notify_all()
            else:
                self._waiting.append(text)
                self._num_chars += len(text)
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None: ...

    def drain(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Wait until all is written, at most for this time."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_writing, timeout_s)

    def _run(self) -> None:
        is_written = True
        while True:
            with self._changed:
                # What was dropped while the last lines were written is told without waiting for another line; not so where
                # the stream fails, which would be tried for ever.
                self._changed.wait_for(lambda: self._waiting or (is_written and self._num_dropped))  # noqa: B023
                lines = list(self._waiting)
                self._waiting.clear()
                text, num_dropped = "".join(lines), self._num_dropped
                self._num_dropped, self._is_writing = 0, True
            is_written = self._write(text + (DROPPED % num_dropped if num_dropped else ""))
            with self._changed:
                self._num_chars -= len(text)  # only now: what lies in a full pipe's way counts as waiting
                self._num_dropped += 0 if is_written else num_dropped + len(lines)
                self._is_writing = False
                self._changed.notify_all()

    def _write(self, text: str) -> bool:
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError, AttributeError):
            descriptor = None
        try:
            if descriptor is None:
                self._stream.write(text)
                self._stream.flush()
            else:  # past the stream's own lock, which an interpreter that ends would wait for
                _write_all(descriptor, text.encode("utf-8", "backslashreplace"))
        except (OSError, ValueError):  # a full disk, a pipe that nobody reads any more, a closed stream
            return False
        return True


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # the pipe was made non-blocking elsewhere
            select.select([], [descriptor], [])


def start_logging(writer: BackgroundWriter, formatter: logging.Formatter, level: str) -> None:
    """Make all loggers of this process write there, also uncaught errors of threads and tasks."""
    handler = logging.StreamHandler(writer)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _CITING:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    threading.excepthook = _tell_thread


def _tell_thread(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_type is not SystemExit:
        name = "" if failure.thread is None else failure.thread.name
        logging.getLogger("dragoman").error("the thread %s ended", name, exc_info=failure.exc_value)


def tell_task(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an unawaited error; asyncio itself would print its message, which may have a client's values."""
    logging.getLogger("dragoman").error("%s", context["message"], exc_info=context.get("exception"))


def write_to(stream: TextIO, text: str) -> str:
    """Write an optional text. Returns the reason of a failure, "" = written.

    A failing stream is then replaced, or it would fail again when the interpreter ends.
    """
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
        return error.strerror or str(error)
    return ""
