"""`dragoman bench`: measures a server's speed, prints tables, writes files. `tools.bench` measures.

Called by `main`, on the main thread, where it runs an event loop.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from dragoman.cli.bench.arguments import BenchArguments
from dragoman.cli.bench.progress import BenchDisplay
from dragoman.cli.command_options import cite
from dragoman.cli.run_command import Console
from dragoman.tools.bench.errors import BenchError, OptionError
from dragoman.tools.bench.plot import draw
from dragoman.tools.bench.report import report_json, report_text
from dragoman.tools.bench.sweep import Benchmark, Report

FAILED = 1
INTERRUPTED = 130  # the exit code of a process that Ctrl-C ended


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
