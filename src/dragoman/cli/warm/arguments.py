"""The arguments and options of `dragoman warm`; all other options are the server's, for the model that computes.

Does: read them off the command line, judge them, list them for `--help`. Does not: read the server's options. Called by
`main`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.command_options import CommandOption, options_text, read_options
from dragoman.config.kinds import Text

OPTIONS = (
    CommandOption("model", Text("MODEL"), "the same as MODEL before the files"),
    CommandOption("key", Text("NAME[,NAME]"), "API keys by their names: whose requests find it [the only one]"),
)

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
    """What is asked for. `keys`: names of callers, () = nobody has said."""

    files: tuple[Path, ...]
    keys: tuple[str, ...]


def read_warm_arguments(words: Sequence[str]) -> tuple[WarmArguments | None, list[str], list[str]]:
    """(What is asked for, None if something is wrong; the server's words; one line for each problem)."""
    _, values, others, problems = read_options(OPTIONS, words)
    places: list[str] = []
    for word in others:  # those of the server's options may have values, so files go first
        if word.startswith("-"):
            break
        places.append(word)
    server = others[len(places) :]
    model = values["model"]
    if model is None and places:
        model = places.pop(0)
    if model is None or not places:
        problems.append("warm: needs a model and then files, before all options: MODEL FILE...")
    files = tuple(Path(place) for place in places)
    problems += [f"{path} (command line): is no file" for path in files if not path.is_file()]
    if problems:
        return None, [], problems
    keys = tuple(name.strip() for name in str(values["key"] or "").split(",") if name.strip())
    return WarmArguments(files, keys), [str(model), *server], []


def warm_help() -> str:
    """How it is used, and the options, a line each."""
    return _USAGE + options_text(OPTIONS)
