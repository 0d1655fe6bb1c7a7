"""The options of `dragoman eval` itself; all others are the server's, because it evaluates what a server would serve.

Does: list them, judge how they go together. Does not: read the server's options. Called by `main`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.command_options import CommandOption, options_text, read_options
from dragoman.config.kinds import Choice, Integer, Switch, Text

DTYPES = ("int8", "int4", "bf16", "f16", "f32")
DEFAULT_WINDOW = 2048

OPTIONS = (
    CommandOption("text", Text(), "a file of UTF-8 text that the model reads", is_needed=True),
    CommandOption("against", Text(), "another model to compare with, of the same tokenizer [none]"),
    CommandOption("against_dtype", Choice(DTYPES), "how that one is stored; without --against: the same model [f32]"),
    CommandOption("window", Integer(2), f"tokens that are read at once [the context, at most {DEFAULT_WINDOW}]"),
    CommandOption("stride", Integer(1), "tokens that each window scores anew; fewer see more before them [all]"),
    CommandOption("tokens", Integer(2), "read the first N tokens of the text only [all]"),
    CommandOption("json", Switch(), "print JSON instead of a table", False),
)


@dataclass(frozen=True, slots=True)
class EvalArguments:
    """What an evaluation is asked for; see `OPTIONS`. `against` None and `against_dtype` None = no comparison."""

    text: Path
    against: str | None
    against_dtype: str | None
    window: int | None
    stride: int | None
    tokens: int | None
    json: bool

    @property
    def compares(self) -> bool:
        """Whether there is another model."""
        return self.against is not None or self.against_dtype is not None


def read_eval_arguments(words: Sequence[str]) -> tuple[EvalArguments | None, list[str], list[str]]:
    """(What is asked for, None if something is wrong; the server's words; one line for each problem)."""
    _, values, others, problems = read_options(OPTIONS, words)
    window, stride = values["window"], values["stride"]
    if isinstance(window, int) and isinstance(stride, int) and stride > window:
        problems.append(cite("stride", stride) + f": must be at most --window ({window})")
    if problems:
        return None, others, problems
    text = Path(str(values.pop("text")))
    return EvalArguments(text=text, **values), others, []  # type: ignore[arg-type]


def cite(name: str, value: object) -> str:
    """An option with its value and source, as the beginning of an error message."""
    return next(option for option in OPTIONS if option.name == name).cite(value)


def eval_help() -> str:
    """The options, a line each."""
    return options_text(OPTIONS)
