"""The options of `dragoman bench`: a URL, what to ask there, how much at a time, and what to do with what is found.

Does: list them, judge how they go together, make the settings of a benchmark of them. Does not: ask anything of the
server. Called by the command.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.cli.command_options import SOURCE, CommandOption, as_url, options_text, read_options
from dragoman.config.kinds import Choice, FilePath, Integer, JsonObject, Number, Switch, Text, Value
from dragoman.tools.bench.apis import APIS
from dragoman.tools.bench.errors import OptionError
from dragoman.tools.bench.load import Extent, Lengths, Load, LoadKind
from dragoman.tools.bench.measures import SLO_NAMES
from dragoman.tools.bench.plot import MISSING, SUFFIXES, can_draw
from dragoman.tools.bench.probing import AUTO
from dragoman.tools.bench.prompts import FilePrompts, read_prompts
from dragoman.tools.bench.sweep import BenchSettings
from dragoman.tools.bench.target import Target, read_target

KEY_VARIABLE = "DRAGOMAN_API_KEY"
DEFAULT_DURATION_S = 30.0
_LARGEST_SEED = 2**31 - 1
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):\s*([^\r\n]*)")


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers above 0, separated by commas: the points of a sweep."""

    is_whole: bool

    @property
    def allowed(self) -> str:
        """The form."""
        return f"{'whole numbers' if self.is_whole else 'numbers'} above 0, separated by commas, none of them twice"

    @property
    def placeholder(self) -> str:
        """The form."""
        return "N,..." if self.is_whole else "X,..."

    def parse(self, text: str) -> tuple[str, ...]:
        """The numbers as they stand there. Raises: ValueError."""
        words = tuple(word.strip() for word in text.split(","))
        numbers = [int(word) if self.is_whole else float(word) for word in words]
        if not all(0 < number < float("inf") for number in numbers) or len(set(numbers)) < len(numbers):
            raise ValueError(text)
        return words


class _Tokens:
    """A number of tokens, or a range of which each is as likely."""

    allowed = "a number of tokens above 0, or a range such as 64-256"
    placeholder = "N|N-M"

    def parse(self, text: str) -> tuple[str, ...]:
        """The lowest and the highest. Raises: ValueError."""
        low, dash, high = text.partition("-")
        numbers = (int(low), int(high if dash else low))
        if not 0 < numbers[0] <= numbers[1]:
            raise ValueError(text)
        return tuple(map(str, numbers))


class _Bounds:
    """Bounds on latencies, in seconds by their names."""

    allowed = f"NAME=SECONDS separated by commas, names of {', '.join(SLO_NAMES)}, none of them twice"
    placeholder = "NAME=S,..."

    def parse(self, text: str) -> tuple[str, ...]:
        """The pairs as they stand there. Raises: ValueError."""
        pairs = [pair.partition("=") for pair in text.replace(" ", "").split(",")]
        names = [name for name, _, _ in pairs]
        if not set(names) <= set(SLO_NAMES) or len(set(names)) < len(names):
            raise ValueError(text)
        if not all(0 < float(seconds) < float("inf") for _, _, seconds in pairs):
            raise ValueError(text)
        return tuple(f"{name}={seconds}" for name, _, seconds in pairs)


class _Fields(JsonObject):
    """Fields of a request."""

    @property
    def allowed(self) -> str:
        """The form."""
        return 'a JSON object, such as {"temperature": 0.7}'


OPTIONS = (
    CommandOption("api", Choice((AUTO, *APIS), short="API"), "what to speak: one of the list below [auto]", AUTO),
    CommandOption("model", Text("NAME"), "which model to ask for [the first that the server lists]"),
    CommandOption("concurrency", _Numbers(True), "clients that ask one request after the other; several: a sweep [1]"),
    CommandOption("rate", _Numbers(False), "instead: requests a second that arrive at random, come what may (Poisson)"),
    CommandOption("requests", Integer(1), "how many requests for each point of the sweep"),
    CommandOption("duration", Number(), f"how many seconds each point sends requests [{DEFAULT_DURATION_S:g}]"),
    CommandOption("prompt_tokens", _Tokens(), "tokens of a made-up prompt [128]", ("128", "128")),
    CommandOption("output_tokens", _Tokens(), "most tokens of an answer [64]", ("64", "64")),
    CommandOption("shared_prefix", Integer(1), "tokens with which all made-up prompts begin [none]"),
    CommandOption("prompts", FilePath("FILE"), "a file of prompts instead: one in a line, as text or as JSON"),
    CommandOption("ignore_eos", Switch(), "have answers go on to their most tokens, where the API can", False),
    CommandOption("batch", Integer(1), "prompts of a request, with --api embeddings, rerank or text-batch [8]", 8),
    CommandOption("body", _Fields(), "fields to lay over each request's body; null takes one away"),
    CommandOption("header", Text("'NAME: VALUE'"), "a header of all requests; may be given several times"),
    CommandOption("api_key", Text("KEY"), "the key to send; others on this machine see it in the list of processes"),
    CommandOption("api_key_env", Text("NAME"), f"the variable that holds the key [{KEY_VARIABLE}]"),
    CommandOption("timeout", Number(), "seconds that an answer may take [600]", 600.0),
    CommandOption("warmup", Integer(0), "requests before each point that do not count [1]", 1),
    CommandOption("seed", Integer(0, _LARGEST_SEED), "of prompts, lengths and arrivals [drawn, and told]"),
    CommandOption("slo", _Bounds(), "bounds in seconds: how many requests keep them, as ttft=0.5,itl=0.05"),
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
    """What a benchmark is asked for, and the files that it writes; None = none."""

    settings: BenchSettings
    json: Path | None
    plot: Path | None


def read_bench_arguments(words: Sequence[str], environ: Mapping[str, str]) -> tuple[BenchArguments | None, list[str]]:
    """(What is asked for, None if something is wrong; one line for each problem)."""
    headers, rest, problems = _headers(words)
    texts, values, others, more = read_options(OPTIONS, rest)
    problems += [*more, *_contradictions(texts, values)]
    target = _target(others, problems)
    key = _key(values, environ, problems)
    prompts = _prompts(values["prompts"], problems)
    if problems or target is None:
        return None, problems
    settings = BenchSettings(
        target=target,
        loads=_loads(values),
        extent=_extent(values),
        api=str(values["api"]),
        model=str(values["model"] or ""),
        headers=headers,
        api_key=key,
        timeout_s=_number(values["timeout"]),
        prompts=prompts,
        prompt_tokens=_lengths(values["prompt_tokens"]),
        shared_tokens=int(_number(values["shared_prefix"])),
        output_tokens=_lengths(values["output_tokens"]),
        ignore_eos=bool(values["ignore_eos"]),
        warm_up=int(_number(values["warmup"])),
        seed=random.randrange(_LARGEST_SEED) if values["seed"] is None else int(_number(values["seed"])),
        batch=int(_number(values["batch"])),
        bounds={name: float(bound) for name, _, bound in (one.partition("=") for one in _words(values["slo"]))},
        more=json.loads(str(values["body"])) if values["body"] else {},
    )
    return BenchArguments(settings, _path(values["json"]), _path(values["plot"])), []


def cite(name: str, value: object) -> str:
    """An option with its value and source, as the beginning of an error message."""
    return next(option for option in OPTIONS if option.name == name).cite(value)


def bench_help() -> str:
    """How the command is used, its options, and the APIs that it speaks."""
    rows = "".join(f"  {api.name:<18}{api.path}\n" for api in APIS.values())
    return _USAGE + options_text(OPTIONS) + "\nAPIs, and their paths behind the server's address:\n" + rows


def _headers(words: Sequence[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """(The headers, which may be several; the other words; problems)."""
    headers: dict[str, str] = {}
    others: list[str] = []
    problems: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, has_value, value = word.partition("=")
        if flag != "--header" or not (has_value or rest):
            others.append(word)
            continue
        text = value if has_value else rest.pop(0)
        found = _HEADER.fullmatch(text.strip())
        if found is None:
            problems.append(f"--header={text} ({SOURCE}): must be NAME: VALUE")
        else:
            headers[found[1]] = found[2]
    return headers, others, problems


def _contradictions(texts: Mapping[str, str], values: Mapping[str, Value]) -> list[str]:
    """What does not go together, one line each."""
    problems = []
    for name, with_which in (
        ("rate", "concurrency"),
        ("prompt_tokens", "prompts"),
        ("shared_prefix", "prompts"),
        ("api_key", "api_key_env"),
    ):
        if name in texts and with_which in texts:
            shown = "..." if name == "api_key" else texts[name]
            problems.append(f"{cite(name, shown)}: must not be given with --{with_which.replace('_', '-')}")
    shared, lengths = values["shared_prefix"], values["prompt_tokens"]
    if isinstance(shared, int) and isinstance(lengths, tuple) and shared >= int(lengths[0]):
        problems.append(cite("shared_prefix", shared) + f": must be less than --prompt-tokens ({lengths[0]})")
    for name in ("json", "plot"):
        path = values[name]
        if isinstance(path, Path) and not path.parent.is_dir():
            problems.append(cite(name, path) + f": must be a file in a directory that is there, {path.parent} is not")
    plot = values["plot"]
    if isinstance(plot, Path) and plot.suffix not in SUFFIXES:
        problems.append(cite("plot", plot) + f": must end in one of {', '.join(SUFFIXES)}")
    elif plot is not None and not can_draw():
        problems.append(f"{cite('plot', plot)}: {MISSING}")
    return problems


def _target(others: Sequence[str], problems: list[str]) -> Target | None:
    """The server; None after what is wrong was noted."""
    unknown = [word for word in others if word.startswith("-")]
    if unknown:
        problems += [
            f"{word.partition('=')[0]} ({SOURCE}): unknown option; `dragoman bench --help` lists all"
            for word in unknown
        ]
        return None
    if len(others) != 1:
        problems.append(
            "URL: is needed, as in http://127.0.0.1:8080"
            if not others
            else f"{others[1]} ({SOURCE}): unexpected; one URL may be given"
        )
        return None
    try:
        return read_target(as_url(others[0]))
    except ValueError as error:
        problems.append(f"{others[0]} ({SOURCE}): {error}")
        return None


def _key(values: Mapping[str, Value], environ: Mapping[str, str], problems: list[str]) -> str:
    """The key to send, "" for none."""
    if values["api_key"]:
        return str(values["api_key"])
    name = values["api_key_env"]
    if name and not environ.get(str(name)):
        problems.append(cite("api_key_env", name) + ": must be a variable of the environment that holds the key")
    return environ.get(str(name or KEY_VARIABLE), "").strip()


def _prompts(path: Value, problems: list[str]) -> FilePrompts | None:
    if not isinstance(path, Path):
        return None
    try:
        return read_prompts(path)
    except OptionError as error:
        problems.append(f"{cite('prompts', path)}: {error}")
        return None


def _loads(values: Mapping[str, Value]) -> tuple[Load, ...]:
    kind: LoadKind = "rate" if values["rate"] else "concurrency"
    return tuple(Load(kind, float(word)) for word in _words(values[kind]) or ("1",))


def _extent(values: Mapping[str, Value]) -> Extent:
    requests, duration = values["requests"], values["duration"]
    if requests is None and duration is None:
        return Extent(duration_s=DEFAULT_DURATION_S)
    return Extent(None if requests is None else int(_number(requests)), None if duration is None else _number(duration))


def _lengths(value: Value) -> Lengths:
    low, high = _words(value)
    return Lengths(int(low), int(high))


def _words(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


def _number(value: Any) -> float:
    return float(value or 0)


def _path(value: Value) -> Path | None:
    return value if isinstance(value, Path) else None
