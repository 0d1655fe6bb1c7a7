"""The arguments of `dragoman store`.

Does: read them off the command line, judge them, list them for `--help`. Does not: open the store. Called by `main`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.command_options import SOURCE, CommandOption, options_text, read_options
from dragoman.config.kinds import FilePath, Number, Switch
from dragoman.config.resolve import ConfigError, given_options
from dragoman.config.sources import cache_home

ACTIONS = ("list", "verify", "trim", "empty")

OPTIONS = (
    CommandOption("prefix_store_dir", FilePath("DIR"), "the directory [the server's: prefixes in its cache directory]"),
    CommandOption("to_gb", Number(0.0, inclusive=True), "trim: how much may stay, in GB of 10^9 bytes"),
    CommandOption("json", Switch(), "list: print JSON instead of a table", False),
)

_USAGE = """\
usage: dragoman store [list | verify | trim --to-gb N | empty] [--prefix-store-dir DIR]

Looks after the prompts that servers keep on disk (option prefix_store_gb). list, which is done without a word, tells what is
there of each model; verify reads everything and finds what is damaged, which no server would use; trim deletes what was used
longest ago, until so much is left; empty deletes all. Servers may run meanwhile. The exit code is 0, 3 if verify finds
something damaged, 1 if the directory cannot be used. See docs/prefix_store.md.

  dragoman store
  dragoman store trim --to-gb 10
  dragoman store empty --prefix-store-dir /var/lib/dragoman/prefixes

"""


@dataclass(frozen=True, slots=True)
class StoreArguments:
    """What is asked for. `to_bytes`: of `trim`."""

    action: str
    directory: Path
    to_bytes: int = 0
    json: bool = False


def read_store_arguments(
    words: Sequence[str], environ: Mapping[str, str]
) -> tuple[StoreArguments | None, Sequence[str]]:
    """(What is asked for, None if something is wrong; one line for each problem)."""
    _, values, others, problems = read_options(OPTIONS, words)
    flags = [word for word in others if word.startswith("-")]
    problems += [f"{flag} ({SOURCE}): unknown option; `dragoman store --help` tells" for flag in flags]
    names = [word for word in others if not word.startswith("-")]
    action = names[0] if names else "list"
    if len(names) > 1 or action not in ACTIONS:
        problems.append(f"store: {' '.join(names)}: must be one of {', '.join(ACTIONS)}")
    to_gb = values["to_gb"]
    if (to_gb is not None) != (action == "trim") and action in ACTIONS:
        problems.append("--to-gb: is needed by trim, and by nothing else")
    if values["json"] and action != "list":
        problems.append(f"--json ({SOURCE}): is for list")
    try:
        given, _ = given_options([], environ)
    except ConfigError as error:
        problems += error.problems
    if problems:
        return None, problems
    named = values["prefix_store_dir"] or given.get("prefix_store_dir")
    cache = given.get("cache_dir") or cache_home(environ) / "dragoman"
    directory = named if isinstance(named, Path) else Path(str(cache)) / "prefixes"
    to_bytes = int(to_gb * 1e9) if isinstance(to_gb, (int, float)) else 0
    return StoreArguments(action, directory, to_bytes, bool(values["json"])), []


def store_help() -> str:
    """How it is used, and the options, a line each."""
    return _USAGE + options_text(OPTIONS)
