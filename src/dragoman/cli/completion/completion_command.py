"""`dragoman completion`: prints a shell's completion script. Installs nothing."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.cli.command_options import Command, ReadWords
from dragoman.cli.completion.scripts import SCRIPTS
from dragoman.cli.completion.words import command_words
from dragoman.cli.run_command import Console

_USAGE = """\
usage: dragoman completion bash|zsh|fish

Prints a script by which that shell completes the commands, their options and what these allow. Completing starts no Python.
After an upgrade of dragoman, write it again.

  dragoman completion bash > ~/.local/share/bash-completion/completions/dragoman
  dragoman completion zsh > ~/.zfunc/_dragoman          (with `fpath+=~/.zfunc` before compinit in ~/.zshrc)
  dragoman completion fish > ~/.config/fish/completions/dragoman.fish
"""


def read_completion(words: ReadWords, _: Mapping[str, str]) -> str:
    shell = " ".join(words.others)
    if shell not in SCRIPTS:
        words.problems.append(f"completion: {shell or 'nothing'}: must be one shell of {', '.join(SCRIPTS)}")
    return shell


def run(_: object, shell: str, console: Console) -> int:
    console.stdout.write(SCRIPTS[shell](command_words()))
    return 0


COMMAND = Command(_USAGE, (), read_completion, "dragoman.cli.completion.completion_command", words=tuple(SCRIPTS))
