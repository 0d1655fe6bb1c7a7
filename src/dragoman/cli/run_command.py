"""Runs one command: prints its help, or reads its words and runs it. Called by `main`, on the main thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, TextIO

from dragoman.cli.command_options import Command, ReadWords
from dragoman.cli.commands import FAILED, USAGE_ERROR
from dragoman.cli.progress import ProgressDisplay


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
    except getattr(module, "FAILURES", ()) as error:  # the command's one-line errors
        console.tell(error)
        return FAILED
