"""The options of `dragoman eval` itself; all others are the server's, for the evaluated model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.command_options import Command, ReadWords, option, options_of
from dragoman.config.kinds import Choice, FilePath, Integer, Switch, Text

DTYPES = ("int8", "int4", "bf16", "f16", "f32")
DEFAULT_WINDOW = 2048

_USAGE = """\
usage: dragoman eval [MODEL_DIR] --text FILE [--against MODEL_DIR] [--against-dtype TYPE] [options]

Has a model read a text and tells its perplexity. With --against, or --against-dtype for the same model stored otherwise,
also how far its probabilities are from the other's: the KL divergence in nats for each token, mean and 99th percentile, and
how often both find the same token the likeliest. All options of `dragoman serve` may be given too, and act as they do there.
See docs/compression.md.

  dragoman eval ./my-model --text book.txt
  dragoman eval ./my-model --dtype int4 --against-dtype f32 --text book.txt    what int4 costs
"""


@dataclass(frozen=True, slots=True)
class EvalArguments:
    """`against` None and `against_dtype` None = no comparison."""

    text: Path = option(FilePath("FILE"), "a file of UTF-8 text that the model reads", is_needed=True)
    against: str | None = option(Text(), "another model to compare with, of the same tokenizer [none]")
    against_dtype: str | None = option(
        Choice(DTYPES), "how that one is stored; without --against: the same model [f32]"
    )
    window: int | None = option(Integer(2), f"tokens that are read at once [the context, at most {DEFAULT_WINDOW}]")
    stride: int | None = option(Integer(1), "tokens that each window scores anew; fewer see more before them [all]")
    tokens: int | None = option(Integer(2), "read the first N tokens of the text only [all]")
    json: bool = option(Switch(), "print JSON instead of a table", False)

    @property
    def compares(self) -> bool:
        return self.against is not None or self.against_dtype is not None


def read_eval(words: ReadWords, _: Mapping[str, str]) -> EvalArguments | None:
    words.server_words = words.others
    window, stride = words.values["window"], words.values["stride"]
    if window is not None and stride is not None and stride > window:
        words.refuse("stride", f"must be at most --window ({window})")
    return words.made(EvalArguments)


COMMAND = Command(_USAGE, options_of(EvalArguments), read_eval, "dragoman.cli.eval.command", takes_server_options=True)
