"""`dragoman store`: lists, verifies, trims and empties the directory of prompts on disk."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from dragoman.cli.arguments import SOURCE
from dragoman.cli.commands import FAILED
from dragoman.cli.subcommand import Command, Console, ReadWords, option, options_of
from dragoman.config.kinds import FilePath, Number, Switch
from dragoman.config.resolve import given_options
from dragoman.config.sources import cache_home
from dragoman.hub.download import size_text
from dragoman.tools.text_table import aligned

if TYPE_CHECKING:
    from dragoman.prefix_store import BlockStore, SegmentFacts

IS_DAMAGED = 3
_HEADER = ("MODEL", "SIZE", "BLOCKS", "FILES", "LAST USED", "KEPT UNTIL")
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


def read_store(words: ReadWords) -> StoreArguments | None:
    names = words.others
    action = names[0] if names else "list"
    if len(names) > 1 or action not in ACTIONS:
        words.problems.append(f"store: {' '.join(names)}: must be one of {', '.join(ACTIONS)}")
    elif (words.values["to_gb"] is not None) != (action == "trim"):
        words.problems.append("--to-gb: is needed by trim, and by nothing else")
    if words.values["json"] and action != "list":
        words.problems.append(f"--json ({SOURCE}): is for list")
    given = given_options([], words.variables)
    cache = given.path("cache_dir") or cache_home(words.variables) / "dragoman"
    named = words.values["prefix_store_dir"] or given.path("prefix_store_dir")
    return words.made(StoreArguments, action=action, prefix_store_dir=named or cache / "prefixes")


@dataclass(slots=True)
class _Kept:
    """The stored prefixes of one model. `used_s`, `until_s`: seconds since the epoch, 0 = never used, not kept."""

    model: str
    bytes: int = 0
    blocks: int = 0
    files: int = 0
    used_s: float = 0.0
    until_s: float = 0.0

    def add(self, segment: SegmentFacts) -> None:
        self.bytes += segment.bytes
        self.blocks += segment.blocks
        self.files += 1
        self.used_s, self.until_s = max(self.used_s, segment.used_at), max(self.until_s, segment.keep_until)


def run(_: object, arguments: StoreArguments, console: Console) -> int:
    """Run the action. Returns the exit code: 0, 3 if something is damaged, 1 if the directory cannot be used."""
    if not arguments.prefix_store_dir.exists():
        console.stdout.write("[]\n" if arguments.json else f"nothing is kept in {arguments.prefix_store_dir}\n")
        return 0
    from dragoman.prefix_store import BlockStore, StoreError
    from dragoman.prefix_store.store import UNLIMITED

    try:
        with closing(BlockStore.open(arguments.prefix_store_dir, UNLIMITED, create=False)) as store:
            return _done(store, arguments, console.stdout)
    except StoreError as error:
        console.tell(error)
        return FAILED


def _done(store: BlockStore, arguments: StoreArguments, stdout: TextIO) -> int:
    before = store.stats()
    match arguments.action:
        case "verify":
            return _verified(store, arguments, stdout)
        case "trim":
            store.trim(int((arguments.to_gb or 0.0) * 1e9))
        case "empty":
            store.empty()
        case _:
            stdout.write(_listed(store, arguments))
            return 0
    after = store.stats()
    directory = arguments.prefix_store_dir
    freed, gone = before.bytes - after.bytes, before.segments - after.segments
    stdout.write(f"deleted {gone} files, {size_text(freed)}; {size_text(after.bytes)} are left in {directory}\n")
    return 0


def _verified(store: BlockStore, arguments: StoreArguments, stdout: TextIO) -> int:
    before, num_damaged = store.stats(), 0
    for name, offset, reason in store.verify():
        num_damaged += 1
        stdout.write(f"{name} byte {offset}: {reason}\n")
    found = f"{num_damaged} damaged, which are computed again" if num_damaged else "none damaged"
    stdout.write(f"{before.blocks} blocks, {size_text(before.bytes)} in {arguments.prefix_store_dir}: {found}\n")
    return IS_DAMAGED if num_damaged else 0


def _listed(store: BlockStore, arguments: StoreArguments) -> str:
    kept: dict[str, _Kept] = {}
    for segment in store.segments():
        kept.setdefault(segment.label, _Kept(segment.label)).add(segment)
    if arguments.json:
        rows = [{name: getattr(entry, name) for name in _Kept.__slots__} for entry in kept.values()]
        return json.dumps(rows, indent=2) + "\n"
    total = store.stats()
    where = f"{size_text(total.bytes)} in {total.segments} files: {arguments.prefix_store_dir}"
    return f"{aligned([_HEADER, *map(_row, kept.values())])}\n{where}\n"


def _row(kept: _Kept) -> tuple[str, ...]:
    until = _time(kept.until_s) if kept.until_s > time.time() else ""
    return kept.model, size_text(kept.bytes), str(kept.blocks), str(kept.files), _time(kept.used_s), until


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


COMMAND = Command(_USAGE, options_of(StoreArguments), read_store, "dragoman.cli.store", words=ACTIONS)
