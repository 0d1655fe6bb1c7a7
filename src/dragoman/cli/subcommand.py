"""A subcommand: its own options, the words given to it, its console, and running it.

Takes its options off the command line, checks each value, lists them for `--help`; does not read the server's options.
Used by the subcommands' modules, and by `main`, on the main thread.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Protocol, TextIO, TypeVar

from dragoman.cli.arguments import SOURCE, FlagReader, given_by, is_flag, is_truth
from dragoman.cli.commands import FAILED, USAGE_ERROR, CommandPlace
from dragoman.cli.progress import ProgressDisplay
from dragoman.cli.server_words import read_one_model
from dragoman.config.kinds import Switch
from dragoman.config.names import find_options, misplaced_secret, nearest_name
from dragoman.config.resolve import ConfigError
from dragoman.hub.names import hub_model

_COLUMN = 34
_HOST_PORT = re.compile(r"(?:[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}(?:/.*)?")

Arguments = TypeVar("Arguments")


def as_url(word: str) -> str:
    """The word as a URL; HOST:PORT gets http:// before it."""
    return f"http://{word}" if _HOST_PORT.fullmatch(word) else word


def is_url(word: str) -> bool:
    """True for a server's address, also HOST:PORT; False for a page of the hub, which names a model."""
    return as_url(word).lower().startswith(("http://", "https://")) and hub_model(word) is None


class ArgumentKind(Protocol):
    """As `Kind`, for values of any type."""

    @property
    def allowed(self) -> str: ...

    @property
    def placeholder(self) -> str: ...

    def parse(self, text: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class CommandOption:
    """One option. `default` None = not set; `repeats`: all its values count."""

    name: str
    kind: ArgumentKind
    help: str
    default: Any = None
    is_needed: bool = False
    repeats: bool = False

    @property
    def flag(self) -> str:
        return flag_of(self.name)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def cite(name: str, value: object) -> str:
    """An option with its value and source, to begin an error message."""
    return f"{flag_of(name)}={value} ({SOURCE})"


@contextmanager
def citing_option(name: str, value: object, *errors: type[Exception]) -> Iterator[None]:
    """Turns one of `errors` about an option's value into ConfigError, with the value."""
    try:
        yield
    except errors as error:
        raise ConfigError([f"{cite(name, value)}: {error}"]) from error


def option(kind: ArgumentKind, help_text: str, default: Any = None, *, is_needed: bool = False) -> Any:
    """The field of a dataclass that is an option of the same name."""
    return field(default=default, metadata={"option": CommandOption("", kind, help_text, default, is_needed)})


def options_of(arguments: type) -> tuple[CommandOption, ...]:
    rows = [(field.name, field.metadata.get("option")) for field in dataclasses.fields(arguments)]
    return tuple(dataclasses.replace(row, name=name) for name, row in rows if row is not None)


class ReadWords:
    """A read command line: `texts` of the options found, `values` of all options, `others`: words without dashes.

    `flags`: of the server, with their values, where `takes_server_options`. `problems`: one line each. `server_words`:
    for a model loaded here, None = there is none. `variables`: of the environment.
    """

    def __init__(
        self,
        options: Sequence[CommandOption],
        words: Sequence[str],
        variables: Mapping[str, str] | None = None,
        *,
        takes_server_options: bool = False,
    ) -> None:
        self.variables = variables or {}
        self.texts: dict[str, str] = {}
        self.values: dict[str, Any] = {option.name: option.default for option in options}
        self.others: list[str] = []
        self.flags: list[str] = []
        self.problems: list[str] = []
        self.server_words: list[str] | None = None
        self._flags = [option.flag for option in options]
        self._takes_server_options = takes_server_options
        self._take(options, list(words))
        for other in options:
            if (
                other.is_needed
                and other.name not in self.texts
                and not any(problem.startswith(other.flag + " ") for problem in self.problems)
            ):
                self.problems.append(f"{other.flag}: is needed, must be {other.kind.allowed}")

    def refuse(self, name: str, why: str) -> None:
        """Note a problem with an option's value."""
        self.problems.append(f"{cite(name, self.texts[name])}: {why}")

    def refuse_server_words(self, others: Sequence[str], what: str = "--url") -> None:
        """Note a problem if there are any words for a server: one that runs elsewhere has its own options."""
        for word in (*others, *self.flags)[:1]:
            self.problems.append(f"{word} ({SOURCE}): is not for {what}: the server there has its own options")

    def made(self, arguments: type[Arguments], **others: Any) -> Arguments | None:
        """The arguments from the options' values and `others`; None if there is a problem."""
        if self.problems:
            return None
        names = {field.name for field in dataclasses.fields(arguments)}  # type: ignore[arg-type]
        return arguments(**{name: value for name, value in self.values.items() if name in names} | others)

    def _take(self, options: Sequence[CommandOption], rest: list[str]) -> None:
        by_flag = {option.flag: option for option in options}
        negated = {"--no-" + option.flag[2:]: option for option in options if isinstance(option.kind, Switch)}
        while rest:
            word = rest.pop(0)
            flag, has_value, value = word.partition("=")
            option = by_flag.get(flag)
            if option is None and word in negated:
                self._set(negated[word], "false")
            elif option is None and (word == "-" or not word.startswith("-")):
                self.others.append(word)
            elif option is None and self._is_unknown(flag):
                if rest and not has_value and not is_flag(rest[0]):  # its value
                    rest.pop(0)
            elif option is None:
                followers = list(rest)
                FlagReader(rest).take(word)
                self.flags += [word, *followers[: len(followers) - len(rest)]]
            elif has_value:
                self._set(option, value)
            elif isinstance(option.kind, Switch):
                self._set(option, rest.pop(0) if rest and is_truth(rest[0]) else "true")
            elif rest and not is_flag(rest[0]):
                self._set(option, rest.pop(0))
            else:
                self.problems.append(f"{flag} ({SOURCE}): must be followed by a value")

    def _is_unknown(self, flag: str) -> bool:
        """True, with a problem noted, if the flag is unknown. False leaves it to the server, whose options are nearer."""
        nearest = get_close_matches(flag, self._flags, n=1, cutoff=0.75)
        if self._takes_server_options and (not nearest or _is_nearer_to_server(flag, nearest[0])):
            return False
        known = f"must be one of {', '.join(self._flags)}" if self._flags else "there is only --help"
        meant = f"the nearest one is {nearest[0]}" if nearest else known
        self.problems.append(f"{flag} ({SOURCE}): unknown option; {meant}")
        return True

    def _set(self, option: CommandOption, text: str) -> None:
        self.texts[option.name] = text
        try:
            value = option.kind.parse(text)
        except ValueError:
            self.refuse(option.name, f"must be {option.kind.allowed}")
            return
        before = self.values[option.name] or ()
        self.values[option.name] = (*before, value) if option.repeats else value


def _is_nearer_to_server(flag: str, option: str) -> bool:
    """True if the flag is one of the server's, or nearer to one of those than to `option`."""
    given = given_by(flag)
    if find_options(given) or find_options(given_by(flag.replace("--no-", "--", 1))) or misplaced_secret(given):
        return True
    return get_close_matches(flag, [option, nearest_name(given) or ""], n=1) != [option]


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `read` turns words into its arguments, and may raise ConfigError; `run` in `module` runs it.

    `takes_server_options`: for a model that it loads. `words`: the allowed words besides options and files.
    """

    usage: str
    options: tuple[CommandOption, ...]
    read: Callable[[ReadWords], object]
    module: str
    takes_server_options: bool = False
    words: tuple[str, ...] = ()
    notes: str = ""

    @property
    def help(self) -> str:
        rows = (_help_row(f"  {option.flag} {option.kind.placeholder}", option.help) for option in self.options)
        return "\n".join((self.usage, *rows, self.notes)) if self.options else self.usage


def _help_row(head: str, text: str) -> str:
    """An option and its description, below it where the option is too long to stand beside it."""
    beside = head.ljust(_COLUMN) if len(head) < _COLUMN else f"{head}\n{' ' * _COLUMN}"
    return beside + text


def command_at(place: CommandPlace) -> Command:
    command: Command = import_module(f"dragoman.cli.{place.module}").COMMAND
    return command


class Console:
    """A command's environment variables, output streams, and display of progress."""

    def __init__(self, variables: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> None:
        self.variables, self.stdout, self.stderr = variables, stdout, stderr
        self.display = ProgressDisplay(stderr)

    def tell(self, *problems: object) -> None:
        """Write each problem's lines, below the display."""
        self.display.finish()
        self.stderr.writelines(f"dragoman: {line}\n" for problem in problems for line in str(problem).splitlines())


def run_command(command: Command, words: Sequence[str], console: Console) -> int:
    """Run the command. Returns the exit code: 2 for wrong words, 1 after a failure, else the command's."""
    if "--help" in words or "-h" in words:
        console.stdout.write(command.help)
        return 0
    read = ReadWords(command.options, words, console.variables, takes_server_options=command.takes_server_options)
    arguments = None
    try:
        arguments = command.read(read)
    except ConfigError as error:
        read.problems += error.problems
    console.tell(*read.problems)
    config = None
    if read.server_words is not None:
        may_download = not read.problems
        config = read_one_model(read.server_words, console.variables, console.stderr, may_download=may_download)
        if config is None:
            return USAGE_ERROR
    if read.problems:
        return USAGE_ERROR
    module: Any = import_module(command.module)
    try:
        return int(module.run(config, arguments, console))
    except getattr(module, "FAILURES", ()) as error:  # the command's one-line errors
        console.tell(error)
        return FAILED
