"""The arguments of `dragoman store`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.arguments import SOURCE
from dragoman.cli.command_options import Command, ReadWords, option, options_of
from dragoman.config.kinds import FilePath, Number, Switch
from dragoman.config.resolve import ConfigError, given_options
from dragoman.config.sources import cache_home

ACTIONS = ("list", "verify", "trim", "empty")

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
    action: str
    prefix_store_dir: Path = option(FilePath("DIR"), "the directory [the server's: prefixes in its cache directory]")
    to_gb: float | None = option(Number(0.0, inclusive=True), "trim: how much may stay, in GB of 10^9 bytes")
    json: bool = option(Switch(), "list: print JSON instead of a table", False)


def read_store(words: ReadWords, environ: Mapping[str, str]) -> StoreArguments | None:
    names = words.others
    action = names[0] if names else "list"
    if len(names) > 1 or action not in ACTIONS:
        words.problems.append(f"store: {' '.join(names)}: must be one of {', '.join(ACTIONS)}")
    elif (words.values["to_gb"] is not None) != (action == "trim"):
        words.problems.append("--to-gb: is needed by trim, and by nothing else")
    if words.values["json"] and action != "list":
        words.problems.append(f"--json ({SOURCE}): is for list")
    try:
        given, _ = given_options([], environ)
    except ConfigError as error:
        words.problems += error.problems
        return None
    cache = given.get("cache_dir") or cache_home(environ) / "dragoman"
    named = words.values["prefix_store_dir"] or given.get("prefix_store_dir")
    return words.made(StoreArguments, action=action, prefix_store_dir=named or Path(str(cache)) / "prefixes")


COMMAND = Command(_USAGE, options_of(StoreArguments), read_store, "dragoman.cli.store.command", words=ACTIONS)
