"""`dragoman bench`: measures a server's speed, prints tables, writes files. `tools.bench` measures.

Called by `main`, on the main thread, where it runs an event loop.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TextIO

from dragoman.cli.bench.arguments import BenchArguments
from dragoman.cli.command_options import cite
from dragoman.cli.commands import FAILED, INTERRUPTED
from dragoman.cli.run_command import Console
from dragoman.tools.bench.errors import BenchError, OptionError
from dragoman.tools.bench.loops import Run
from dragoman.tools.bench.plot import draw
from dragoman.tools.bench.report import report_json, report_text
from dragoman.tools.bench.sweep import Benchmark, Report

_CLEAR_LINE = "\r\x1b[K"
_WIDTH = 24  # of the bar


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


def run(_: object, asked: BenchArguments, console: Console) -> int:
    display = BenchDisplay(console.stderr)
    benchmark = Benchmark(asked.settings, display)
    code = 0
    try:
        _drive(benchmark)
    except BenchError as error:
        display.finish()
        console.tell(_told(error))
        code = FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    display.finish()
    if code == 0 or benchmark.report.points:
        console.stdout.write(report_text(benchmark.report))
        problems = _written(benchmark.report, asked)
        console.tell(*problems)
        is_answered = any(point.measures.answered for point in benchmark.report.points)
        code = code or (FAILED if problems or not is_answered else 0)
    return code


def _drive(benchmark: Benchmark) -> None:
    """Run to the end. Raises: BenchError; KeyboardInterrupt, after noting the results so far."""
    try:
        import uvloop
    except ImportError:  # on Windows
        asyncio.run(benchmark.run())
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(benchmark.run())


def _told(error: BenchError) -> str:
    return f"--{error.option.replace('_', '-')}: {error}" if isinstance(error, OptionError) else str(error)


def _written(report: Report, asked: BenchArguments) -> list[str]:
    """Write the files. Returns a line for each failure."""
    problems = []

    def write(name: str, path: Path | None) -> None:
        if path is None:
            return
        try:
            if name == "json":
                path.write_text(report_json(report), encoding="utf-8")
            else:
                draw(report, path)
        except (OSError, ValueError) as error:
            problems.append(f"{cite(name, path)}: {error}")

    write("json", asked.json)
    write("plot", asked.plot)
    return problems
