"""Gathers the allowed words of each command from the tables of its options. Knows no shell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dragoman.cli.commands import COMMANDS, CommandPlace, command_at
from dragoman.config.bundled import BUNDLED
from dragoman.config.kinds import Choice, Integer, Kind, Number, Some, Switch
from dragoman.config.options import OPTIONS as SERVER_OPTIONS


@dataclass(frozen=True, slots=True)
class OptionWords:
    """One option. `takes`: no value, one of `words`, a number, or any text, perhaps a file."""

    flag: str
    help: str
    takes: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandWords:
    """One command. `words`: the allowed words besides options and files."""

    name: str
    summary: str
    options: tuple[OptionWords, ...]
    words: tuple[str, ...] = ()


NOTHING, WORDS, NUMBER, ANYTHING = "nothing", "words", "number", "anything"


def command_words() -> list[CommandWords]:
    return [_command(name, place) for name, place in COMMANDS.items()]


def _command(name: str, place: CommandPlace) -> CommandWords:
    found = command_at(place)
    rows = [] if found is None else [(one.flag, one.help, one.kind, one.default) for one in found.options]
    words = () if found is None else found.words
    if found is None or found.takes_server_options:
        rows += [(one.flag, one.row.help, one.row.kind, one.default) for one in SERVER_OPTIONS if one.flag]
        words = tuple(BUNDLED)
    options = {option.flag: option for row in rows for option in _options(*row)}
    for flag, about in (*place.flags.items(), ("--help", "how it is used")):
        options[flag] = OptionWords(flag, about, NOTHING)
    return CommandWords(name, place.summary, tuple(options.values()), words)


def _options(flag: str, help_text: str, kind: Kind, default: object) -> Iterator[OptionWords]:
    """The option, and its `--no-` form if it is on by default."""
    yield _option(flag, help_text, kind)
    if isinstance(kind, Switch) and default is True:
        yield OptionWords("--no-" + flag.removeprefix("--"), "not so", NOTHING)


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
