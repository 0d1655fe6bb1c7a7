"""The arguments and options of `dragoman warm`; all others are the server's, for the model. `warm_run` runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.arguments import SOURCE
from dragoman.cli.subcommand import Command, ReadWords, option, options_of
from dragoman.config.kinds import Names, Text

_USAGE = """\
usage: dragoman warm MODEL FILE... --prefix-store-gb N [options]

Computes beginnings of prompts into the store on disk (options prefix_store_gb and prefix_store_dir), so that the first user
need not wait for them. A FILE whose name ends in .jsonl holds chat requests as OpenAI's clients send them: on each line a
JSON object with messages, and tools if there are any. Any other file is one text, as completions take it. Give all options
of `dragoman serve` as the server has them: what another type or another template makes of a text, it would not find. Where
the server has API keys, each finds its own prompts only, and --key says whose they are. What is kept already is not computed
anew. The exit code is 0, 3 if something could not be computed, 1 if nothing could. See docs/prefix_store.md.

  dragoman warm Qwen/Qwen3-0.6B agents.jsonl --prefix-store-gb 20
  dragoman warm ./my-model manual.txt --dtype int4 --prefix-store-gb 20 --api-key-file keys --key alice
"""


@dataclass(frozen=True, slots=True)
class WarmArguments:
    """`key`: names of callers, () = not specified."""

    files: tuple[Path, ...]
    model: str | None = option(Text("MODEL"), "the same as MODEL before the files")
    key: tuple[str, ...] = option(Names(), "API keys by their names: whose requests find it [the only one]", ())


def read_warm(words: ReadWords) -> WarmArguments | None:
    places = list(words.others)
    model = words.values["model"] or (places.pop(0) if places else None)
    if model is None or not places:
        words.problems.append("warm: needs a model and then files, before all options: MODEL FILE...")
    files = tuple(map(Path, places))
    words.problems += [f"{path} ({SOURCE}): is no file" for path in files if not path.is_file()]
    if not words.problems:
        words.server_words = [str(model), *words.flags]
    return words.made(WarmArguments, files=files)


COMMAND = Command(_USAGE, options_of(WarmArguments), read_warm, "dragoman.cli.warm_run", takes_server_options=True)
