"""The arguments and options of `dragoman compress`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.command_options import Command, ReadWords, option, options_of
from dragoman.config.bundled import bundled_or
from dragoman.config.kinds import Choice, FilePath, Integer, Text

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


@dataclass(frozen=True, slots=True)
class CompressArguments:
    model: Path
    out: Path
    text: Path | None = option(FilePath("FILE"), "a file of UTF-8 text that calibrates [none]")
    bits: str = option(Choice(("4", "8")), "of a weight [4]", "4")
    group_size: str = option(Choice(("32", "64", "128")), "columns that share a scale [128]", "128")
    tokens: int = option(Integer(2), "read the first N tokens of the text only [16384]", 16384)
    window: int | None = option(Integer(2), "tokens that are read at once [the context, at most 2048]")
    skip: str | None = option(Text(), "a regular expression: matrices with such names stay as they are [none]")


def read_compress(words: ReadWords, _: Mapping[str, str]) -> CompressArguments | None:
    places = [Path(word) for word in words.others]
    if len(places) != 2:
        told = "needs two directories, the model's and a new one for what is written"
        words.problems.append(f"{told}; there are {len(places)}")
    try:
        re.compile(words.values["skip"] or "")
    except re.error as error:
        words.refuse("skip", f"must be a regular expression: {error}")
    if words.problems:
        return None
    return words.made(CompressArguments, model=bundled_or(places[0]), out=places[1])


COMMAND = Command(_USAGE, options_of(CompressArguments), read_compress, "dragoman.cli.compress.command")
