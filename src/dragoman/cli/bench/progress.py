"""Shows a benchmark's progress: on a terminal a redrawn line with a bar, elsewhere a line per point."""

from __future__ import annotations

from typing import TextIO

from dragoman.tools.bench.loops import Run

_CLEAR_LINE = "\r\x1b[K"
_WIDTH = 24


class BenchDisplay:
    """A callback (label, run) that writes to `stream`, several times a second, on the event loop."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._shown: tuple[str, Run] | None = None

    def __call__(self, label: str, run: Run) -> None:
        if self._shown is not None and self._shown[1] is not run:
            self.finish()
        self._shown = (label, run)
        if self._is_terminal:
            done = round(_WIDTH * run.fraction)
            bar = "#" * done + "-" * (_WIDTH - done)
            minutes, seconds = divmod(int(run.duration_s), 60)
            counts = f"{_counts(run)}, {run.running} running, {minutes}:{seconds:02}"
            self._write(f"{_CLEAR_LINE}  {label} [{bar}] {run.fraction:4.0%} {counts}")

    def finish(self) -> None:
        """End the shown run's line, with its result if it counts."""
        if self._shown is None:
            return
        (label, run), self._shown = self._shown, None
        start = _CLEAR_LINE if self._is_terminal else ""
        line = f"  {label}: {_counts(run)} in {run.duration_s:.1f} s\n" if run.is_counted else ""
        self._write(start + line)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _counts(run: Run) -> str:
    return f"{len(run.samples) - run.failed} answered, {run.failed} failed"
