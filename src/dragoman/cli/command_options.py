"""The options that a subcommand has for itself, beside those of the server.

Does: take them off the command line, by the rules of `arguments`, judge their values one by one, list them for `--help`.
Does not: know any of them, or read the server's options. Used by the modules of the subcommands' arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dragoman.cli.arguments import is_flag, is_truth
from dragoman.config.kinds import Kind, Switch, Value
from dragoman.hub.names import hub_model

SOURCE = "command line"
_COLUMN = 34
_HOST_PORT = re.compile(r"(?:[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}(?:/.*)?")


def as_url(word: str) -> str:
    """The word; with http:// before it if it is HOST:PORT."""
    return f"http://{word}" if _HOST_PORT.fullmatch(word) else word


def is_url(word: str) -> bool:
    """True for the address of a server, HOST:PORT included; a page of the hub is the name of a model."""
    return as_url(word).lower().startswith(("http://", "https://")) and hub_model(word) is None


@dataclass(frozen=True, slots=True)
class CommandOption:
    """One option. `default` None = not set; `is_needed`: without it there is nothing to do."""

    name: str
    kind: Kind
    help: str
    default: Value = None
    is_needed: bool = False

    @property
    def flag(self) -> str:
        """How it is written."""
        return "--" + self.name.replace("_", "-")

    def cite(self, value: object) -> str:
        """The option with its value and source, as the beginning of an error message."""
        return f"{self.flag}={value} ({SOURCE})"


class ReadOptions(NamedTuple):
    """What a command line gives: `texts` as they stand there, `values` of all options, the words of others, problems."""

    texts: dict[str, str]
    values: dict[str, Value]
    others: list[str]
    problems: list[str]


def read_options(options: Sequence[CommandOption], words: Sequence[str]) -> ReadOptions:
    """The values of these options among the words; one line for each problem."""
    texts, others, problems = _taken(options, words)
    values: dict[str, Value] = {}
    for option in options:
        values[option.name] = option.default
        if option.name in texts:
            try:
                values[option.name] = option.kind.parse(texts[option.name])
            except ValueError:
                problems.append(option.cite(texts[option.name]) + f": must be {option.kind.allowed}")
        elif option.is_needed and not any(problem.startswith(option.flag + " ") for problem in problems):
            problems.append(f"{option.flag}: is needed, must be {option.kind.allowed}")
    return ReadOptions(texts, values, others, problems)


def options_text(options: Sequence[CommandOption]) -> str:
    """The options for `--help`, one or two lines each."""
    return (
        "\n".join(f"  {option.flag} {option.kind.placeholder}".ljust(_COLUMN) + option.help for option in options)
        + "\n"
    )


def _taken(options: Sequence[CommandOption], words: Sequence[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """(Texts by option, the words that are left, problems with the form)."""
    by_flag = {option.flag: option for option in options}
    negated = {"--no-" + option.flag[2:]: option for option in options if isinstance(option.kind, Switch)}
    texts: dict[str, str] = {}
    others: list[str] = []
    problems: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, has_value, value = word.partition("=")
        option = by_flag.get(flag)
        if option is None and not has_value and word in negated:
            texts[negated[word].name] = "false"
        elif option is None:
            others.append(word)
        elif has_value:
            texts[option.name] = value
        elif isinstance(option.kind, Switch):
            texts[option.name] = rest.pop(0) if rest and is_truth(rest[0]) else "true"
        elif rest and not is_flag(rest[0]):
            texts[option.name] = rest.pop(0)
        else:
            problems.append(f"{flag} ({SOURCE}): must be followed by a value")
    return texts, others, problems
