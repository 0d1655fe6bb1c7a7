"""Errors of a benchmark as a whole. A request that fails does not raise: it is a sample with its error."""

from __future__ import annotations


class BenchError(Exception):
    """The benchmark cannot be made; one line for the user."""


class OptionError(BenchError):
    """An option's value turned out to be wrong. `option`: its name, as in `prompt_tokens`."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(problem)
        self.option = option
