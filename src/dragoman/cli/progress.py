"""Shows progress: on a terminal one redrawn line, elsewhere plain lines.

`ProgressDisplay` is called by the loading code, on one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from dragoman.logs import write_to

SURE_S = 5.0  # of a stage, before an estimate is useful
REDRAW_S = 0.1  # enough for a terminal, and cheap for the load
_CLEAR_LINE = "\r\x1b[K"


class StatusLine:
    """A line that is drawn again and again on a terminal until it ends; elsewhere only its end is written."""

    def __init__(self, stream: TextIO) -> None:
        self.is_terminal = stream.isatty()
        self._stream = stream
        self._is_drawn = False

    def draw(self, text: str) -> None:
        if self.is_terminal:
            self._is_drawn = True
            write_to(self._stream, f"{_CLEAR_LINE}{text}")  # a full disk must not end the load

    def end(self, text: str = "") -> None:
        """Write this line in place of the drawn one; "" = only clear that."""
        start, self._is_drawn = _CLEAR_LINE if self._is_drawn else "", False
        write_to(self._stream, start + text)


class ProgressDisplay:
    """A callback (stage, fraction in [0, 1]) that writes to `stream`. A new stage ends the last. `name`: of the model."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic, name: str = "") -> None:
        self.name = name
        self._line = StatusLine(stream)
        self._clock = clock
        self._stage = ""
        self._started_s = self._drawn_s = 0.0

    def __call__(self, stage: str, fraction: float) -> None:
        now = self._clock()
        stage = f"{self.name}: {stage}" if self.name else stage
        if stage != self._stage:
            self.finish()
            self._stage, self._started_s, self._drawn_s = stage, now, float("-inf")
        if self._line.is_terminal and now - self._drawn_s >= REDRAW_S:
            self._drawn_s = now
            done = f" {fraction:4.0%}{self._left(now, fraction)}" if fraction else ""
            self._line.draw(f"  {stage} ...{done}")

    def _left(self, now: float, fraction: float) -> str:
        """The estimated time left for the stage, "" while that is uncertain."""
        spent_s = now - self._started_s
        if spent_s < SURE_S or not 0.05 <= fraction < 1:
            return ""
        return f", about {spent_s * (1 - fraction) / fraction:.0f} s left"

    def finish(self) -> None:
        """End the running stage, if any, and write its duration."""
        if not self._stage:
            return
        self._line.end(f"  {self._stage}: {self._clock() - self._started_s:.1f} s\n")
        self._stage = ""


def note_to(stream: TextIO) -> Callable[[str], None]:
    return lambda text: print(f"dragoman: note: {text}", file=stream, flush=True)
