"""The serving benchmarks' commands: measure rows of the table, and turn what was measured into a table and a plot.

    python -m benchmarks.serving.model MODEL --gguf                       (once: the model; needs the extra `bench`)
    python -m benchmarks.serving.peers install vllm llama.cpp genai       (once: who we compare with)
    python -m benchmarks.serving run --model MODEL --out DIR              (every row)
    python -m benchmarks.serving run --model MODEL --out DIR --only 1,3 --rounds 5
    python -m benchmarks.serving report DIR                               (DIR/report.md and DIR/report.png)

Each result is added to DIR/results.jsonl as soon as there is one; the report shows the newest of each kind. On an
otherwise idle machine.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.serving import peers, report, results
from benchmarks.serving.results import Result
from benchmarks.serving.rows import (
    beside_llama_cpp,
    cold_start,
    decode,
    installed_size,
    interference,
    prefix,
    pressure,
    scaling,
    server_cost,
    throughput,
)
from benchmarks.serving.settings import QUICK, Settings
from benchmarks.serving.turns import say

PEERS = ("vllm", "llama.cpp", "genai")
PARTS_OF_PEERS = ("llama.cpp (q8_0)", "llama.cpp (q4_0)")  # which row 1 can leave out one by one


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table. `has_peers`: whether it measures anything besides our own server."""

    title: str
    run: Callable[[Settings], Iterator[Result]]
    has_peers: bool = False


ROWS: Mapping[int, Row] = {
    throughput.ROW: Row(throughput.TITLE, throughput.run, has_peers=True),
    decode.ROW: Row(decode.TITLE, decode.run, has_peers=True),
    server_cost.ROW: Row(server_cost.TITLE, server_cost.run),
    prefix.ROW: Row(prefix.TITLE, prefix.run),
    interference.ROW: Row(interference.TITLE, interference.run),
    cold_start.ROW: Row(cold_start.TITLE, cold_start.run, has_peers=True),
    installed_size.ROW: Row(installed_size.TITLE, installed_size.run, has_peers=True),
    scaling.ROW: Row(scaling.TITLE, scaling.run),
    pressure.ROW: Row(pressure.TITLE, pressure.run),
    beside_llama_cpp.ROW: Row(beside_llama_cpp.TITLE, beside_llama_cpp.run, has_peers=True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 1 if a row failed."""
    given = _parser().parse_args(arguments)
    if given.command == "report":
        named = given.markdown or given.directory / "report.md", given.plot or given.directory / "report.png"
        return write_report(given.directory, *named)
    settings = settings_of(given)
    numbers = [number for number in given.only if not settings.peers_only or ROWS[number].has_peers]
    num_failed = sum(not measure_row(number, settings) for number in numbers)
    return 1 if num_failed else 0


def measure_row(number: int, settings: Settings) -> bool:
    """Measure one row and store its results as they come; False if it broke off, which is told."""
    row, begin_s = ROWS[number], time.perf_counter()
    say(f"--- row {number}: {row.title}")
    try:
        for result in row.run(settings):
            results.append(settings.out, result)
            say(report.table([result]).splitlines()[-1])
    except Exception as error:  # a row must not keep the others from being measured
        traceback.print_exc()
        say(f"row {number} broke off: {error}")
        return False
    say(f"--- row {number} took {time.perf_counter() - begin_s:.0f} s")
    return True


def write_report(directory: Path, markdown: Path, plot: Path) -> int:
    """Write the table and the plot, print the table; without matplotlib there is no plot, which is said."""
    try:
        lines = results.read(directory)
    except FileNotFoundError:
        say(f"{directory} holds no {results.FILE_NAME}")
        return 1
    text = report.markdown(lines, {number: row.title for number, row in ROWS.items()})
    markdown.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    try:
        from benchmarks.serving.figure import draw

        draw(lines, plot)
    except (ModuleNotFoundError, ValueError) as error:
        say(f"no plot: {error} (the extra `bench` brings matplotlib)")
    return 0


def settings_of(given: argparse.Namespace) -> Settings:
    """The settings of a `run`: defaults, those of `--quick`, then what was named."""
    names = {one.name for one in fields(Settings)}
    named = {name: value for name, value in vars(given).items() if name in names and value is not None}
    return Settings(**{**(QUICK if given.quick else {}), **named})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure")
    run.add_argument("--model", type=Path, required=True, help="made by benchmarks.serving.model --gguf")
    run.add_argument("--out", type=Path, required=True, help="results, logs and built graphs")
    run.add_argument("--peers", type=Path, help=f"where the peers are installed; default: {peers.DEFAULT_ROOT}")
    run.add_argument("--only", type=_rows, default=list(ROWS), help="rows, such as 1,3; default: all")
    run.add_argument("--without", type=_peers, help=f"peers to leave out, such as vllm,genai; of {_LEFT_OUT}")
    run.add_argument(
        "--vllm-dtype",
        choices=("bfloat16", "float32", "float16"),
        help="default: bfloat16 where the processor has it, else float32",
    )
    run.add_argument("--gguf", type=Path, help="a file for rows 6 and 10; default: the model's Q4_K_M")
    run.add_argument("--peers-only", action="store_true", default=None, help="not our own server")
    run.add_argument("--quick", action="store_true", help="small counts, to see that the tools work")
    for name, text in _COUNTS.items():
        run.add_argument(f"--{name.replace('_', '-')}", type=_positive, help=f"{text}; default: {_default(name)}")
    shown = commands.add_parser("report", help="write the table and the plot")
    shown.add_argument("directory", type=Path, help="what --out named")
    shown.add_argument("--markdown", type=Path, help="where to write the table; default: report.md in the directory")
    shown.add_argument("--plot", type=Path, help="where to write the plot; default: report.png in the directory")
    return parser


_LEFT_OUT = f"{', '.join(PEERS)}; in row 1 also {', '.join(PARTS_OF_PEERS)}"
_COUNTS = {
    "rounds": "repetitions that a median is taken over",
    "long_rounds": "the same for rows 5, 8 and 9 and for starts of peers",
    "clients": "streams of rows 1, 3 and 10",
    "requests": "requests per stream of rows 1, 3 and 10",
    "prompt_tokens": "prompt length of rows 1, 3 and 10",
    "output_tokens": "output length of rows 1, 3 and 10",
    "prefix_tokens": "shared prefix of row 4; half of it in row 9",
    "prefill_tokens": "long prompt of row 5",
    "most_streams": "streams of rows 8 and 9",
    "longest_prompt": "longest prompt of rows 8 and 9",
}


def _default(name: str) -> Any:
    return next(one.default for one in fields(Settings) if one.name == name)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer >= 1")
    return int(text)


def _rows(text: str) -> list[int]:
    numbers = [word.strip() for word in text.split(",")]
    for number in numbers:
        if not number.isdigit() or int(number) not in ROWS:
            raise argparse.ArgumentTypeError(f"{number!r} is no row, must be one of: {', '.join(map(str, ROWS))}")
    return sorted({int(number) for number in numbers})


def _peers(text: str) -> frozenset[str]:
    names = frozenset(word.strip() for word in text.split(","))
    for name in sorted(names - {*PEERS, *PARTS_OF_PEERS}):
        raise argparse.ArgumentTypeError(f"{name!r} is no peer, must be one of: {_LEFT_OUT}")
    return names


if __name__ == "__main__":
    sys.exit(main())
