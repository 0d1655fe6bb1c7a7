"""The arguments and options of `dragoman compress`.

Does: read them off the command line, judge them, list them for `--help`. Does not: compress. Called by `main`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.command_options import SOURCE, CommandOption, options_text, read_options
from dragoman.config.bundled import bundled_or
from dragoman.config.kinds import Choice, Integer, Text

_USAGE = """\
usage: dragoman compress MODEL_DIR OUT [--text FILE] [options]

Writes the model into the new directory OUT with the matrices of its layers compressed to 4 or 8 bits, as compressed-tensors
has it (pack-quantized), which dragoman, vLLM and transformers load. --text FILE calibrates: columns that carry large
numbers when the model reads that text get finer steps, and errors count as much as these numbers; some ten thousand
tokens like those that the model will see are enough. Without it the steps are chosen by the weights alone. Head and
embeddings stay as they are. `dragoman eval` tells what is lost. See docs/compression.md.

  dragoman compress ./my-model ./my-model-int4 --text book.txt
  dragoman compress ./my-model ./my-model-int8 --bits 8

"""

OPTIONS = (
    CommandOption("text", Text(), "a file of UTF-8 text that calibrates [none]"),
    CommandOption("bits", Choice(("4", "8")), "of a weight [4]", "4"),
    CommandOption("group_size", Choice(("32", "64", "128")), "columns that share a scale [128]", "128"),
    CommandOption("tokens", Integer(2), "read the first N tokens of the text only [16384]", 16384),
    CommandOption("window", Integer(2), "tokens that are read at once [the context, at most 2048]"),
    CommandOption("skip", Text(), "a regular expression: matrices with such names stay as they are [none]"),
)


@dataclass(frozen=True, slots=True)
class CompressArguments:
    """What a compression is asked for; see `OPTIONS`."""

    model: Path
    out: Path
    text: Path | None
    bits: int
    group_size: int
    tokens: int
    window: int | None
    skip: str | None


def read_compress_arguments(words: Sequence[str]) -> tuple[CompressArguments | None, list[str]]:
    """(What is asked for, None if something is wrong; one line for each problem)."""
    _, values, others, problems = read_options(OPTIONS, words)
    known = ", ".join(option.flag for option in OPTIONS)
    problems += [
        f"{word} ({SOURCE}): unknown option; must be one of {known}" for word in others if word.startswith("-")
    ]
    places = [Path(word) for word in others if not word.startswith("-")]
    if len(places) != 2:
        problems.append(
            f"needs two directories, the model's and a new one for what is written; there are {len(places)}"
        )
    skip, text = values["skip"], values["text"]
    if isinstance(skip, str):
        try:
            re.compile(skip)
        except re.error as error:
            problems.append(cite("skip", skip) + f": must be a regular expression: {error}")
    if problems:
        return None, problems
    arguments = CompressArguments(
        model=bundled_or(places[0]),
        out=places[1],
        text=None if text is None else Path(str(text)),
        bits=int(str(values["bits"])),
        group_size=int(str(values["group_size"])),
        tokens=int(str(values["tokens"])),
        window=None if values["window"] is None else int(str(values["window"])),
        skip=None if skip is None else str(skip),
    )
    return arguments, []


def cite(name: str, value: object) -> str:
    """An option with its value and source, as the beginning of an error message."""
    return next(option for option in OPTIONS if option.name == name).cite(value)


def compress_help() -> str:
    """How it is used, and the options, a line each."""
    return _USAGE + options_text(OPTIONS)
