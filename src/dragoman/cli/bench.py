"""`dragoman bench`: measures a server's speed, prints tables, writes files. `tools.bench` measures.

Called by `main`, on the main thread, where it runs an event loop.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from dragoman.cli.arguments import SOURCE
from dragoman.cli.commands import FAILED, INTERRUPTED
from dragoman.cli.progress import StatusLine
from dragoman.cli.subcommand import Command, CommandOption, Console, ReadWords, as_url, cite, flag_of
from dragoman.config.kinds import Choice, FilePath, Integer, JsonObject, Number, Switch, Text
from dragoman.tools.bench.apis import APIS
from dragoman.tools.bench.client import Target, read_target
from dragoman.tools.bench.load import BenchError, Extent, Lengths, Load, LoadKind, OptionError, Run
from dragoman.tools.bench.measures import SLO_NAMES
from dragoman.tools.bench.probing import AUTO
from dragoman.tools.bench.prompts import FilePrompts, read_prompts
from dragoman.tools.bench.report import MISSING, SUFFIXES, can_draw, draw, report_json, report_text
from dragoman.tools.bench.sweep import Benchmark, BenchSettings, Report

KEY_VARIABLE = "DRAGOMAN_API_KEY"
DEFAULT_DURATION_S = 30.0
_WIDTH = 24  # of the bar
_LARGEST_SEED = 2**31 - 1
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):\s*([^\r\n]*)")


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers above 0, separated by commas: the points of a sweep."""

    is_whole: bool

    @property
    def allowed(self) -> str:
        return f"{'whole numbers' if self.is_whole else 'numbers'} above 0, separated by commas, none of them twice"

    @property
    def placeholder(self) -> str:
        return "N,..." if self.is_whole else "X,..."

    def parse(self, text: str) -> tuple[float, ...]:
        numbers = tuple(map(float, text.split(",")))
        if not all(0 < number < float("inf") for number in numbers) or len(set(numbers)) < len(numbers):
            raise ValueError(text)
        if self.is_whole and not all(number.is_integer() for number in numbers):
            raise ValueError(text)
        return numbers


class _Tokens:
    """A number of tokens, or a range to draw from evenly."""

    allowed = "a number of tokens above 0, or a range such as 64-256"
    placeholder = "N|N-M"

    def parse(self, text: str) -> Lengths:
        low, dash, high = text.partition("-")
        lengths = Lengths(int(low), int(high if dash else low))
        if not 0 < lengths.low <= lengths.high:
            raise ValueError(text)
        return lengths


class _Bounds:
    """Bounds on latencies, in seconds by name."""

    allowed = f"NAME=SECONDS separated by commas, names of {', '.join(SLO_NAMES)}, none of them twice"
    placeholder = "NAME=S,..."

    def parse(self, text: str) -> dict[str, float]:
        pairs = [pair.partition("=") for pair in text.replace(" ", "").split(",")]
        bounds = {name: float(seconds) for name, _, seconds in pairs}
        if not set(bounds) <= set(SLO_NAMES) or len(bounds) < len(pairs):
            raise ValueError(text)
        if not all(0 < seconds < float("inf") for seconds in bounds.values()):
            raise ValueError(text)
        return bounds


class _Fields:
    allowed = 'a JSON object, such as {"temperature": 0.7}'
    placeholder = "JSON"

    def parse(self, text: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(JsonObject().parse(text) or "{}")
        return found


class _Header:
    allowed = "NAME: VALUE"
    placeholder = "'NAME: VALUE'"

    def parse(self, text: str) -> tuple[str, str]:
        found = _HEADER.fullmatch(text.strip())
        if found is None:
            raise ValueError(text)
        return found[1], found[2]


OPTIONS = (
    CommandOption("api", Choice((AUTO, *APIS), short="API"), "what to speak: one of the list below [auto]", AUTO),
    CommandOption("model", Text("NAME"), "which model to ask for [the first that the server lists]", ""),
    CommandOption("concurrency", _Numbers(True), "clients that ask one request after the other; several: a sweep [1]"),
    CommandOption("rate", _Numbers(False), "instead: requests a second that arrive at random, come what may (Poisson)"),
    CommandOption("requests", Integer(1), "how many requests for each point of the sweep"),
    CommandOption("duration", Number(), f"how many seconds each point sends requests [{DEFAULT_DURATION_S:g}]"),
    CommandOption("prompt_tokens", _Tokens(), "tokens of a made-up prompt [128]", Lengths(128, 128)),
    CommandOption("output_tokens", _Tokens(), "most tokens of an answer [64]", Lengths(64, 64)),
    CommandOption("shared_prefix", Integer(1), "tokens with which all made-up prompts begin [none]", 0),
    CommandOption("prompts", FilePath("FILE"), "a file of prompts instead: one in a line, as text or as JSON"),
    CommandOption("ignore_eos", Switch(), "have answers go on to their most tokens, where the API can", False),
    CommandOption("batch", Integer(1), "prompts of a request, with --api embeddings, rerank or text-batch [8]", 8),
    CommandOption("body", _Fields(), "fields to lay over each request's body; null takes one away", {}),
    CommandOption("header", _Header(), "a header of all requests; may be given several times", (), repeats=True),
    CommandOption("api_key", Text("KEY"), "the key to send; others on this machine see it in the list of processes"),
    CommandOption("api_key_env", Text("NAME"), f"the variable that holds the key [{KEY_VARIABLE}]"),
    CommandOption("timeout", Number(), "seconds that an answer may take [600]", 600.0),
    CommandOption("warmup", Integer(0), "requests before each point that do not count [1]", 1),
    CommandOption("seed", Integer(0, _LARGEST_SEED), "of prompts, lengths and arrivals [drawn, and told]"),
    CommandOption("slo", _Bounds(), "bounds in seconds: how many requests keep them, as ttft=0.5,itl=0.05", {}),
    CommandOption("json", FilePath("FILE"), "write what was found there, as JSON"),
    CommandOption("plot", FilePath("FILE"), f"draw it there, as {', '.join(SUFFIXES)} (extra bench)"),
)

_USAGE = """\
usage: dragoman bench URL [options]

Sends requests to a server of language models, this one or another, and tells how fast it answers: requests and tokens a
second, the time to the first token and to each further one, and what failed. URL is a server's address or that of one
of its APIs:

  dragoman bench http://127.0.0.1:8080                                     (finds out what it speaks)
  dragoman bench http://127.0.0.1:8080 --concurrency 1,4,16 --requests 64  (a sweep: so many requests at a time)
  dragoman bench http://127.0.0.1:8080/v3 --rate 1,2,4 --slo ttft=0.5,itl=0.05 --plot out.png
  dragoman bench http://127.0.0.1:11434 --api ollama --model llama3.2 --prompt-tokens 100-2000 --json out.json

The table goes to the standard output. Ctrl-C ends the benchmark and prints what was measured so far. The exit code is 1 if
no request was answered, 2 for options that are wrong. See docs/bench.md.
"""


@dataclass(frozen=True, slots=True)
class BenchArguments:
    """A benchmark's settings, and the files that it writes; None = none."""

    settings: BenchSettings
    json: Path | None
    plot: Path | None


def read_bench(words: ReadWords) -> BenchArguments | None:
    _refuse_contradictions(words)
    target = _target(words)
    key = _key(words)
    values = words.values
    prompts = _prompts(words)
    kind: LoadKind = "rate" if values["rate"] else "concurrency"
    requests, duration, seed = values["requests"], values["duration"], values["seed"]
    settings = words.made(
        BenchSettings,
        target=target,
        loads=tuple(Load(kind, value) for value in values[kind] or (1.0,)),
        extent=Extent(requests, DEFAULT_DURATION_S if requests is None and duration is None else duration),
        header=dict(values["header"]),
        api_key=key,
        prompts=prompts,
        seed=random.randrange(_LARGEST_SEED) if seed is None else seed,
    )
    return None if settings is None else BenchArguments(settings, values["json"], values["plot"])


_EXCLUSIVE = (
    ("rate", "concurrency"),
    ("prompt_tokens", "prompts"),
    ("shared_prefix", "prompts"),
    ("api_key", "api_key_env"),
)


def _refuse_contradictions(words: ReadWords) -> None:
    values = words.values
    for name, other in _EXCLUSIVE:
        if name in words.texts and other in words.texts:
            shown = "..." if name == "api_key" else words.texts[name]
            words.problems.append(f"{cite(name, shown)}: must not be given with {flag_of(other)}")
    shared, least = values["shared_prefix"], values["prompt_tokens"].low
    if shared and shared >= least:
        words.refuse("shared_prefix", f"must be less than --prompt-tokens ({least})")
    for name in ("json", "plot"):
        if values[name] is not None and not values[name].parent.is_dir():
            words.refuse(name, f"must be a file in an existing directory, {values[name].parent} does not exist")
    if values["plot"] is not None and values["plot"].suffix not in SUFFIXES:
        words.refuse("plot", f"must end in one of {', '.join(SUFFIXES)}")
    elif values["plot"] is not None and not can_draw():
        words.refuse("plot", MISSING)


def _target(words: ReadWords) -> Target | None:
    places = words.others
    if len(places) != 1:
        message = f"{places[1]} ({SOURCE}): unexpected; one URL may be given" if places else ""
        words.problems.append(message or "URL: is needed, as in http://127.0.0.1:8080")
        return None
    try:
        return read_target(as_url(places[0]))
    except ValueError as error:
        words.problems.append(f"{places[0]} ({SOURCE}): {error}")
        return None


def _key(words: ReadWords) -> str:
    """The API key, "" = none."""
    if words.values["api_key"]:
        return str(words.values["api_key"])
    name = words.values["api_key_env"]
    if name is not None and not words.variables.get(name):
        words.refuse("api_key_env", "must be a variable of the environment that holds the key")
    return words.variables.get(name or KEY_VARIABLE, "").strip()


def _prompts(words: ReadWords) -> FilePrompts | None:
    if words.values["prompts"] is None:
        return None
    try:
        return read_prompts(words.values["prompts"])
    except OptionError as error:
        words.refuse("prompts", str(error))
        return None


class BenchDisplay:
    """A callback (label, run) that writes to `stream`, several times a second, on the event loop."""

    def __init__(self, stream: TextIO) -> None:
        self._line = StatusLine(stream)
        self._shown: tuple[str, Run] | None = None

    def __call__(self, label: str, run: Run) -> None:
        if self._shown is not None and self._shown[1] is not run:
            self.finish()
        self._shown = (label, run)
        if self._line.is_terminal:
            done = round(_WIDTH * run.fraction)
            bar = "#" * done + "-" * (_WIDTH - done)
            minutes, seconds = divmod(int(run.duration_s), 60)
            counts = f"{_counts(run)}, {run.running} running, {minutes}:{seconds:02}"
            self._line.draw(f"  {label} [{bar}] {run.fraction:4.0%} {counts}")

    def finish(self) -> None:
        """End the shown run's line, with its result if it counts."""
        if self._shown is None:
            return
        (label, run), self._shown = self._shown, None
        self._line.end(f"  {label}: {_counts(run)} in {run.duration_s:.1f} s\n" if run.is_counted else "")


def _counts(run: Run) -> str:
    return f"{len(run.samples) - run.failed} answered, {run.failed} failed"


def run(_: object, arguments: BenchArguments, console: Console) -> int:
    display = BenchDisplay(console.stderr)
    benchmark = Benchmark(arguments.settings, display)
    code = 0
    try:
        _drive(benchmark)
    except BenchError as error:
        display.finish()
        console.tell(f"{flag_of(error.option)}: {error}" if isinstance(error, OptionError) else error)
        code = FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    display.finish()
    if code == 0 or benchmark.report.points:
        console.stdout.write(report_text(benchmark.report))
        problems = _written(benchmark.report, arguments)
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


def _written(report: Report, arguments: BenchArguments) -> list[str]:
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

    write("json", arguments.json)
    write("plot", arguments.plot)
    return problems


COMMAND = Command(
    _USAGE,
    OPTIONS,
    read_bench,
    "dragoman.cli.bench",
    notes="\nAPIs, and their paths behind the server's address:\n"
    + "".join(f"  {api.name:<18}{api.path}\n" for api in APIS.values()),
)
