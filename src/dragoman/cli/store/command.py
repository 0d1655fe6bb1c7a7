"""`dragoman store`: lists, verifies, trims and empties the directory of prompts on disk."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TextIO

from dragoman.cli.run_command import Console
from dragoman.cli.store.arguments import StoreArguments
from dragoman.hub.download import size_text
from dragoman.prefix_store import BlockStore, SegmentFacts, StoreError
from dragoman.prefix_store.store import UNLIMITED
from dragoman.tools.text_table import aligned

FAILURES = (StoreError,)
IS_DAMAGED = 3
_HEADER = ("MODEL", "SIZE", "BLOCKS", "FILES", "LAST USED", "KEPT UNTIL")


@dataclass(slots=True)
class _Kept:
    """The stored prefixes of one model. `used_s`, `until_s`: seconds since the epoch, 0 = never used, not kept."""

    model: str
    bytes: int = 0
    blocks: int = 0
    files: int = 0
    used_s: float = 0.0
    until_s: float = 0.0

    def add(self, one: SegmentFacts) -> None:
        self.bytes += one.bytes
        self.blocks += one.blocks
        self.files += 1
        self.used_s, self.until_s = max(self.used_s, one.used_at), max(self.until_s, one.keep_until)


def run(_: object, asked: StoreArguments, console: Console) -> int:
    """Run the action. Returns the exit code: 0, or 3 if something is damaged. Raises: StoreError."""
    if not asked.prefix_store_dir.exists():
        console.stdout.write("[]\n" if asked.json else f"nothing is kept in {asked.prefix_store_dir}\n")
        return 0
    store = BlockStore.open(asked.prefix_store_dir, UNLIMITED, create=False)
    try:
        return _done(store, asked, console.stdout)
    finally:
        store.close()


def _done(store: BlockStore, asked: StoreArguments, stdout: TextIO) -> int:
    before = store.stats()
    match asked.action:
        case "verify":
            return _verified(store, asked, stdout)
        case "trim":
            store.trim(int((asked.to_gb or 0.0) * 1e9))
        case "empty":
            store.empty()
        case _:
            stdout.write(_listed(store, asked))
            return 0
    after = store.stats()
    directory = asked.prefix_store_dir
    freed, gone = before.bytes - after.bytes, before.segments - after.segments
    stdout.write(f"deleted {gone} files, {size_text(freed)}; {size_text(after.bytes)} are left in {directory}\n")
    return 0


def _verified(store: BlockStore, asked: StoreArguments, stdout: TextIO) -> int:
    before, num_damaged = store.stats(), 0
    for name, offset, reason in store.verify():
        num_damaged += 1
        stdout.write(f"{name} byte {offset}: {reason}\n")
    found = f"{num_damaged} damaged, which are computed again" if num_damaged else "none damaged"
    stdout.write(f"{before.blocks} blocks, {size_text(before.bytes)} in {asked.prefix_store_dir}: {found}\n")
    return IS_DAMAGED if num_damaged else 0


def _listed(store: BlockStore, asked: StoreArguments) -> str:
    kept: dict[str, _Kept] = {}
    for one in store.segments():
        kept.setdefault(one.label, _Kept(one.label)).add(one)
    if asked.json:
        rows = [{name: getattr(one, name) for name in _Kept.__slots__} for one in kept.values()]
        return json.dumps(rows, indent=2) + "\n"
    total = store.stats()
    where = f"{size_text(total.bytes)} in {total.segments} files: {asked.prefix_store_dir}"
    return f"{aligned([_HEADER, *map(_row, kept.values())])}\n{where}\n"


def _row(one: _Kept) -> tuple[str, ...]:
    until = _time(one.until_s) if one.until_s > time.time() else ""
    return one.model, size_text(one.bytes), str(one.blocks), str(one.files), _time(one.used_s), until


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
