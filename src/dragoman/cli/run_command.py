"""Runs one command: its help, or its words read and what they ask for done.

Does: tell problems with the words, resolve the options of the server. Does not: know any command. Called by `main`, on the
main thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, TextIO

from dragoman.cli.command_options import Command, ReadWords
from dragoman.cli.progress import ProgressDisplay

FAILED = 1
USAGE_ERROR = 2  # as argument parsers and shells use it


class Console:
    """The variables of a command's environment, where it writes, and the display that shows how far it is."""

    def __init__(self, variables: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> None:
        self.variables, self.stdout, self.stderr = variables, stdout, stderr
        self.display = ProgressDisplay(stderr)

    def tell(self, *problems: object) -> None:
        """Write each line of the problems, below what the display shows."""
        self.display.finish()
        self.stderr.writelines(f"dragoman: {line}\n" for problem in problems for line in str(problem).splitlines())


def run_command(command: Command, words: Sequence[str], console: Console) -> int:
    """Run it; the exit code: 2 for a mistake in the words, 1 if it fails, else what the command says."""
    if "--help" in words or "-h" in words:
        console.stdout.write(command.help)
        return 0
    read = ReadWords(command.options, words, takes_server_options=command.takes_server_options)
    asked = command.read(read, console.variables)
    console.tell(*read.problems)
    config = None
    if read.server_words is not None:
        from dragoman.cli.server_words import read_one_model

        may_download = not read.problems
        config = read_one_model(read.server_words, console.variables, console.stderr, may_download=may_download)
        if config is None:
            return USAGE_ERROR
    if read.problems:
        return USAGE_ERROR
    module: Any = import_module(command.module)
    try:
        return int(module.run(config, asked, console))
    except getattr(module, "FAILURES", ()) as error:  # what the command says on one line
        console.tell(error)
        return FAILED
