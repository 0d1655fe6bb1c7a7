"""`dragoman compress`: writes a checkpoint with weights of few bits. `tools.compress` compresses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.subcommand import Command, Console, ReadWords, cite, citing_option, option, options_of
from dragoman.config.bundled import bundled_or
from dragoman.config.kinds import Choice, FilePath, Integer, Text
from dragoman.config.resolve import ConfigError
from dragoman.errors import ModelError
from dragoman.files.model_texts import is_gguf

if TYPE_CHECKING:
    from dragoman.tools.evaluate import Window

FAILURES = (ConfigError, ModelError, ValueError, OSError)
_MOST_WINDOW = 2048
_MIB = 1 << 20

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


def read_compress(words: ReadWords) -> CompressArguments | None:
    places = [Path(word) for word in words.others]
    if len(places) != 2:
        message = "needs two directories, the model's and a new one for what is written"
        words.problems.append(f"{message}; there are {len(places)}")
    try:
        re.compile(words.values["skip"] or "")
    except re.error as error:
        words.refuse("skip", f"must be a regular expression: {error}")
    if words.problems:
        return None
    return words.made(CompressArguments, model=bundled_or(places[0]), out=places[1])


def run(_: object, arguments: CompressArguments, console: Console) -> int:
    """Write the checkpoint and print a summary. A failure leaves no files."""
    from dragoman.tools.compress.compression import compress
    from dragoman.tools.compress.scaling import Packing

    _check_paths(arguments)
    packing = Packing(int(arguments.bits), int(arguments.group_size))
    done = compress(arguments.model, arguments.out, packing, _windows(arguments), arguments.skip, console.display)
    console.display.finish()
    scaled = f", {done.num_scaled} of them scaled by what they read" if arguments.text is not None else ""
    console.stdout.write(
        f"{arguments.out}: {done.num_matrices} matrices in {arguments.bits} bits{scaled}; {done.num_bytes / _MIB:.1f} MiB\n"
    )
    return 0


def _check_paths(arguments: CompressArguments) -> None:
    """Raises: ConfigError."""
    if arguments.out.exists() or arguments.out.is_symlink():
        raise ConfigError([f"{arguments.out}: must be a directory that does not exist yet"])
    if not arguments.out.absolute().parent.is_dir():
        raise ConfigError([f"{arguments.out}: must be a new directory inside an existing one"])
    if is_gguf(arguments.model):
        message = "is a GGUF, whose weights are compressed already; must be a model directory with *.safetensors files"
        raise ConfigError([f"{arguments.model}: {message}, but `dragoman serve {arguments.model}` serves it as it is"])


def _windows(arguments: CompressArguments) -> list[Window]:
    """The windows of text for calibration, [] without a text. Raises: ConfigError, ModelError."""
    if arguments.text is None:
        return []
    from dragoman.models.config import read_config
    from dragoman.models.families import read_model
    from dragoman.tokenizer.hf_tokenizer import load_tokenizer
    from dragoman.tools.evaluate import EvaluationError, cut_text, read_text, tokens_of

    context = read_model(read_config(arguments.model)).facts.max_position
    if arguments.window is not None and arguments.window > context:
        raise ConfigError([f"{cite('window', arguments.window)}: must be at most the context length ({context})"])
    window = arguments.window or min(context, _MOST_WINDOW)
    with citing_option("text", arguments.text, EvaluationError):
        tokens = tokens_of(read_text(arguments.text), load_tokenizer(arguments.model))
        return cut_text(tokens.token_ids[: arguments.tokens], window, None, tokens.start)


COMMAND = Command(_USAGE, options_of(CompressArguments), read_compress, "dragoman.cli.compress")
