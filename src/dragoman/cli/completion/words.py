"""What may stand on the command line of each command, from the tables by which the commands read their words.

Does: gather options, what their values may be, and words besides options. Does not: know any shell.
Used by `completion_command`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dragoman.cli.command_options import CommandOption
from dragoman.config.bundled import BUNDLED
from dragoman.config.kinds import Choice, Integer, Kind, Number, Some, Switch
from dragoman.config.options import OPTIONS as SERVER_OPTIONS

_WITH_TABLE = ("batch", "bench", "compress", "doctor", "eval", "explain", "plan", "selftest", "store", "warm")

_TABLES = {
    "chat": ("dragoman.cli.terminal.arguments", "CHAT_OPTIONS"),
    "complete": ("dragoman.cli.terminal.arguments", "COMPLETE_OPTIONS"),
    **{name: (f"dragoman.cli.{name}.arguments", "OPTIONS") for name in _WITH_TABLE},
}

_WITH_SERVER_OPTIONS = (
    *("serve", "chat", "complete", "batch", "config", "plan", "eval", "explain", "selftest", "doctor", "warm"),
)

_OTHER_OPTIONS: Mapping[str, tuple[CommandOption, ...]] = {
    "pull": (CommandOption("gguf", Choice(("q4_0", "q8_0", "q4_k_m")), "quantisation of a GGUF file"),),
    "models": (
        CommandOption("json", Switch(), "print JSON instead of a table"),
        CommandOption("yes", Switch(), "remove without asking"),
    ),
    "config": (CommandOption("docs", Switch(), "print the page of all options"),),
}

_WORDS: Mapping[str, tuple[str, ...]] = {
    "models": ("rm",),
    "completion": ("bash", "zsh", "fish"),
    "store": ("list", "verify", "trim", "empty"),
}

_SUMMARIES: Mapping[str, str] = {
    "serve": "load a model and answer clients",
    "chat": "a conversation in the terminal",
    "complete": "go on with a text",
    "bench": "measure a server",
    "batch": "answer a file of requests",
    "doctor": "what would run here, and what is wrong",
    "pull": "bring a model of the hub to this machine",
    "models": "list or remove the models on this machine",
    "config": "print what was resolved and from where",
    "plan": "how many replicas a load needs",
    "eval": "perplexity, and how far a model is from another one",
    "compress": "write a checkpoint with weights of 4 or 8 bits",
    "warm": "compute beginnings of prompts before anybody asks",
    "store": "list, verify, trim or empty the prompts on disk",
    "explain": "what would be done with a call",
    "selftest": "whether the model computes here as it should",
    "completion": "a script by which a shell completes these commands",
}


@dataclass(frozen=True, slots=True)
class OptionWords:
    """One option. `takes`: no value, one of `words`, a number, or anything, which may be a file."""

    flag: str
    help: str
    takes: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandWords:
    """One command. `words`: what may stand there besides options and files."""

    name: str
    summary: str
    options: tuple[OptionWords, ...]
    words: tuple[str, ...] = ()


NOTHING, WORDS, NUMBER, ANYTHING = "nothing", "words", "number", "anything"


def command_words(names: Iterable[str]) -> list[CommandWords]:
    """Those of the commands, in their order."""
    return [_command(name) for name in names]


def _command(name: str) -> CommandWords:
    takes_server_options = name in _WITH_SERVER_OPTIONS
    options = {option.flag: option for option in (*_of_command(name), *(_of_server() if takes_server_options else ()))}
    options["--help"] = OptionWords("--help", "how it is used", NOTHING)
    words = _WORDS.get(name, tuple(BUNDLED) if takes_server_options else ())
    return CommandWords(name, _SUMMARIES.get(name, ""), tuple(options.values()), words)


def _of_command(name: str) -> Iterator[OptionWords]:
    for option in (*_own_options(name), *_OTHER_OPTIONS.get(name, ())):
        yield _option(option.flag, option.help, option.kind)
        if isinstance(option.kind, Switch) and option.default is True:
            yield OptionWords("--no-" + option.flag.removeprefix("--"), "not so", NOTHING)


def _own_options(name: str) -> Sequence[CommandOption]:
    """The table of a command, () if it has none."""
    if name not in _TABLES:
        return ()
    module, attribute = _TABLES[name]
    found: Any = getattr(import_module(module), attribute)
    return tuple(found)


def _of_server() -> Iterator[OptionWords]:
    for option in SERVER_OPTIONS:
        if not option.flag:
            continue
        yield _option(option.flag, option.row.help, option.row.kind)
        if isinstance(option.row.kind, Switch) and option.default is True:
            yield OptionWords("--no-" + option.flag.removeprefix("--"), "not so", NOTHING)


def _option(flag: str, help_text: str, kind: Kind) -> OptionWords:
    text = " ".join(help_text.split()).partition(". ")[0].partition(" [")[0].rstrip(".")
    match kind:
        case Switch():
            return OptionWords(flag, text, NOTHING)
        case Integer() | Number():
            return OptionWords(flag, text, NUMBER)
        case Choice() | Some():
            return OptionWords(flag, text, WORDS, kind.words)
    words = getattr(kind, "words", ())
    return OptionWords(flag, text, WORDS if words else ANYTHING, tuple(words))
