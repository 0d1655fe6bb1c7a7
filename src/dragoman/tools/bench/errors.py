"""Errors of a benchmark as a whole. A failed request is a sample with its error."""

from __future__ import annotations


class BenchError(Exception):
    """The benchmark cannot run; one line for the user."""


class OptionError(BenchError):
    """An option has a wrong value. `option`: its name, such as `prompt_tokens`."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(problem)
        self.option = option
