"""`dragoman completion`: prints the script by which a shell completes the commands.

Does: read its words, print. Does not: install anything. Called by `main`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from dragoman.cli.completion.scripts import SCRIPTS
from dragoman.cli.completion.words import command_words

USAGE_ERROR = 2

_USAGE = """\
usage: dragoman completion bash|zsh|fish

Prints a script by which that shell completes the commands, their options and what these allow. Completing starts no Python.
After an upgrade of dragoman, write it again.

  dragoman completion bash > ~/.local/share/bash-completion/completions/dragoman
  dragoman completion zsh > ~/.zfunc/_dragoman          (with `fpath+=~/.zfunc` before compinit in ~/.zshrc)
  dragoman completion fish > ~/.config/fish/completions/dragoman.fish
"""


def run_completion(words: Sequence[str], commands: Sequence[str], stdout: TextIO, stderr: TextIO) -> int:
    """Print the script for `commands`; the exit code: 0, or 2 for a mistake in the words."""
    if "--help" in words or "-h" in words:
        stdout.write(_USAGE)
        return 0
    if len(words) != 1 or words[0] not in SCRIPTS:
        named = " ".join(words) or "nothing"
        stderr.write(f"dragoman: completion: {named}: must be one shell of {', '.join(SCRIPTS)}\n")
        return USAGE_ERROR
    stdout.write(SCRIPTS[words[0]](command_words(commands)))
    return 0
