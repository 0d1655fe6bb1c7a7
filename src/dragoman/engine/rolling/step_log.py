"""The step log: a line of JSON for each step of an engine, with its begin, duration and work.

Written on the engine thread, which it never stops: after a failed write the file is given up.
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import TracebackType

import msgspec

from dragoman.engine.factory import EngineOptionError
from dragoman.engine.rolling.forward.runner import StepWork

logger = logging.getLogger(__name__)

_FLUSH_S = 1.0
_FLUSH_STEPS = 256


class LoggedStep(msgspec.Struct, frozen=True):
    """A step. `begin_s`: on the machine's monotonic clock. `seconds`: until its tokens were delivered."""

    begin_s: float
    seconds: float
    work: StepWork

    @property
    def end_s(self) -> float:
        return self.begin_s + self.seconds


class StepLog:
    """Writes the steps that run inside its `with` blocks."""

    def __init__(self, path: Path, clock: Callable[[], float] = perf_counter) -> None:
        """Raises: EngineOptionError if the file cannot be written, or another engine writes it."""
        try:
            self._file = path.open("ab", buffering=0)  # batches are made here, and dropped if they cannot be written
        except OSError as error:
            raise EngineOptionError("step_log", f"must be a file that can be written ({error})") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise EngineOptionError("step_log", "must be a file that no other model writes its steps to") from error
        if self._file.tell():
            self._file.truncate(0)
        self._path, self._clock = path, clock
        self._encode = msgspec.json.Encoder().encode
        self._steps: list[LoggedStep] = []
        self._work: StepWork | None = None
        self._begin_s = 0.0
        self._is_broken = False

    def note(self, work: StepWork) -> None:
        self._work = work

    def __enter__(self) -> None:
        self._begin_s, self._work = self._clock(), None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the step; one that computed nothing is not logged."""
        if self._work is None or self._is_broken:
            return
        now_s = self._clock()
        self._steps.append(LoggedStep(self._begin_s, now_s - self._begin_s, self._work))
        if len(self._steps) >= _FLUSH_STEPS or now_s - self._steps[0].begin_s >= _FLUSH_S:
            self._flush()

    def close(self) -> None:
        if not self._file.closed:
            self._flush()
            self._file.close()

    def _flush(self) -> None:
        lines = b"".join(self._encode(step) + b"\n" for step in self._steps)
        self._steps.clear()
        try:
            self._file.write(lines)
        except OSError as error:
            self._is_broken = True
            logger.warning("the step log ends here: %s cannot be written (%s)", self._path, error)


def read_step_log(path: Path) -> list[LoggedStep]:
    """The steps in a file, in order, without an incomplete last line. Raises: OSError, msgspec.DecodeError."""
    lines = path.read_bytes().split(b"\n")
    decode = msgspec.json.Decoder(LoggedStep).decode
    return [decode(line) for line in lines[:-1]]
