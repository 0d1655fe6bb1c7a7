"""`dragoman completion`: prints a script by which bash, zsh or fish completes the commands. The scripts run no Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dragoman.cli.commands import COMMANDS, CommandPlace
from dragoman.cli.subcommand import ArgumentKind, Command, Console, ReadWords, command_at
from dragoman.config.bundled import BUNDLED
from dragoman.config.engine_options import OPTIONS as SERVER_OPTIONS
from dragoman.config.kinds import Choice, Integer, Number, Some, Switch

HELP_WIDTH = 72

_UNSAFE = re.compile(r"[^A-Za-z0-9_./:=,+@-]")

_USAGE = """\
usage: dragoman completion bash|zsh|fish

Prints a script by which that shell completes the commands, their options and what these allow. Completing starts no Python.
After an upgrade of dragoman, write it again.

  dragoman completion bash > ~/.local/share/bash-completion/completions/dragoman
  dragoman completion zsh > ~/.zfunc/_dragoman          (with `fpath+=~/.zfunc` before compinit in ~/.zshrc)
  dragoman completion fish > ~/.config/fish/completions/dragoman.fish
"""


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
    found = command_at(place) if place.module else None
    rows = (
        [] if found is None else [(option.flag, option.help, option.kind, option.default) for option in found.options]
    )
    words = () if found is None else found.words
    if found is None or found.takes_server_options:
        rows += [
            (option.flag, option.row.help, option.row.kind, option.default) for option in SERVER_OPTIONS if option.flag
        ]
        words = tuple(BUNDLED)
    options = {option.flag: option for row in rows for option in _options(*row)}
    for flag, about in (*place.flags.items(), ("--help", "how it is used")):
        options[flag] = OptionWords(flag, about, NOTHING)
    return CommandWords(name, place.summary, tuple(options.values()), words)


def _options(flag: str, help_text: str, kind: ArgumentKind, default: object) -> Iterator[OptionWords]:
    """The option, and its `--no-` form if it is on by default."""
    yield _option(flag, help_text, kind)
    if isinstance(kind, Switch) and default is True:
        yield OptionWords("--no-" + flag.removeprefix("--"), "not so", NOTHING)


def _option(flag: str, help_text: str, kind: ArgumentKind) -> OptionWords:
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


def bash_script(commands: Sequence[CommandWords]) -> str:
    """For bash, with or without the package bash-completion."""
    lines = [
        "# bash completion of dragoman; `dragoman completion bash` writes it",
        "_dragoman() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" options= words=',
        '  if [[ $cur == "=" ]]; then cur=""',  # bash splits --option=value into three words
        '  elif [[ $prev == "=" ]]; then prev="${COMP_WORDS[COMP_CWORD-2]}"; fi',
        "  COMPREPLY=()",
        "  if (( COMP_CWORD == 1 )); then",
        f'    COMPREPLY=($(compgen -W {_quoted(" ".join(_names(commands)))} -- "$cur")); return',
        "  fi",
        '  case "${COMP_WORDS[1]}:$prev" in',
    ]
    for (takes, words), flags in _by_value(commands).items():
        if takes == NOTHING:
            continue
        patterns = "|".join(f"{name}:{flag}" for name, flag in flags)
        reply = f'COMPREPLY=($(compgen -W {_quoted(" ".join(words))} -- "$cur")); ' if takes == WORDS else ""
        lines.append(f"    {patterns}) {reply}return ;;")
    lines += ["  esac", '  case "${COMP_WORDS[1]}" in']
    for command in commands:
        flags_text = " ".join(option.flag for option in command.options)
        lines.append(f"    {command.name}) options={_quoted(flags_text)} words={_quoted(' '.join(command.words))} ;;")
    lines += [
        "  esac",
        "  if [[ $cur == -* ]]; then",
        '    COMPREPLY=($(compgen -W "$options" -- "$cur"))',
        "  elif [[ -n $words ]]; then",
        '    COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        "  fi",
        "}",
        "complete -o default -F _dragoman dragoman",  # files by default
    ]
    return "\n".join(lines) + "\n"


def zsh_script(commands: Sequence[CommandWords]) -> str:
    """For zsh: source it after compinit, or put it into a directory of fpath as `_dragoman`."""
    shared = _shared(commands)
    lines = ["#compdef dragoman", "# zsh completion of dragoman; `dragoman completion zsh` writes it"]
    lines += ["_dragoman() {", "  local -a commands shared", "  commands=("]
    lines += [f"    {_quoted(command.name + ':' + _zsh_text(command.summary))}" for command in commands]
    lines += ["  )", "  shared=("]
    lines += [f"    {_zsh_option(option)}" for option in shared.values()]
    lines += ["  )", "  if (( CURRENT == 2 )); then _describe command commands; return; fi"]
    lines += ["  local command=$words[2]", "  shift words; (( CURRENT-- ))", "  case $command in"]
    for command in commands:
        has_shared = set(shared.items()) <= {(option.flag, option) for option in command.options} and bool(shared)
        unshared = [option for option in command.options if not (has_shared and option.flag in shared)]
        action = (
            f'_alternative "words:word:({" ".join(command.words)})" "files:file:_files"' if command.words else "_files"
        )
        rest = " ".join(_zsh_option(option) for option in unshared)
        shared_text = '"${shared[@]}" ' if has_shared else ""
        lines.append(f"    {command.name}) _arguments {shared_text}{rest} {_quoted('*:argument:{' + action + '}')} ;;")
    lines += ["  esac", "}"]
    lines += ['if [[ $funcstack[1] == _dragoman ]]; then _dragoman "$@"; else compdef _dragoman dragoman; fi']
    return "\n".join(lines) + "\n"


def fish_script(commands: Sequence[CommandWords]) -> str:
    lines = [
        "# fish completion of dragoman; `dragoman completion fish` writes it",
        "function __dragoman_runs",
        "  set -l words (commandline -opc)",
        '  test (count $words) -gt 1; and contains -- "$words[2]" $argv',
        "end",
        "function __dragoman_begins",
        "  test (count (commandline -opc)) -eq 1",
        "end",
    ]
    for command in commands:
        about = _quoted(command.summary[:HELP_WIDTH])
        lines.append(f"complete -c dragoman -n __dragoman_begins -f -a {command.name} -d {about}")
        if command.words:
            runs = _quoted(f"__dragoman_runs {command.name}")
            lines.append(f"complete -c dragoman -n {runs} -a {_quoted(' '.join(command.words))}")
    for option, names in _by_option(commands).items():
        lines.append(f"complete -c dragoman -n {_quoted('__dragoman_runs ' + ' '.join(names))} {_fish_option(option)}")
    return "\n".join(lines) + "\n"


SCRIPTS: Mapping[str, Callable[[Sequence[CommandWords]], str]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}


def _fish_option(option: OptionWords) -> str:
    value = {
        NOTHING: "",
        WORDS: f" -x -a {_quoted(' '.join(option.words))}",
        NUMBER: " -x",
        ANYTHING: " -r -F",
    }[option.takes]
    return f"-l {option.flag.removeprefix('--')}{value} -d {_quoted(option.help[:HELP_WIDTH])}"


def _zsh_option(option: OptionWords) -> str:
    action = {NOTHING: "", WORDS: f":value:({' '.join(option.words)})", NUMBER: ":number: ", ANYTHING: ":value:_files"}
    equals = "" if option.takes == NOTHING else "="
    return _quoted(f"{option.flag}{equals}[{_zsh_text(option.help[:HELP_WIDTH])}]{action[option.takes]}")


def _zsh_text(text: str) -> str:
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def _names(commands: Iterable[CommandWords]) -> Iterator[str]:
    yield from (command.name for command in commands)
    yield from ("--help", "--version")


def _by_value(commands: Iterable[CommandWords]) -> dict[tuple[str, tuple[str, ...]], list[tuple[str, str]]]:
    """The (command, flag) pairs of options with one kind of values."""
    found: dict[tuple[str, tuple[str, ...]], list[tuple[str, str]]] = {}
    for command in commands:
        for option in command.options:
            found.setdefault((option.takes, option.words), []).append((command.name, option.flag))
    return found


def _by_option(commands: Iterable[CommandWords]) -> dict[OptionWords, list[str]]:
    found: dict[OptionWords, list[str]] = {}
    for command in commands:
        for option in command.options:
            found.setdefault(option, []).append(command.name)
    return found


def _shared(commands: Iterable[CommandWords]) -> dict[str, OptionWords]:
    """The options that several commands share."""
    return {option.flag: option for option, names in _by_option(commands).items() if len(names) > 2}


def _quoted(text: str) -> str:
    """The text as one quoted word, in a form for all three shells."""
    if text and not _UNSAFE.search(text):
        return text
    return "'" + text.replace("'", "'\\''") + "'"


def read_completion(words: ReadWords) -> str:
    shell = " ".join(words.others)
    if shell not in SCRIPTS:
        words.problems.append(f"completion: {shell or 'nothing'}: must be one shell of {', '.join(SCRIPTS)}")
    return shell


def run(_: object, shell: str, console: Console) -> int:
    console.stdout.write(SCRIPTS[shell](command_words()))
    return 0


COMMAND = Command(_USAGE, (), read_completion, "dragoman.cli.completion", words=tuple(SCRIPTS))
