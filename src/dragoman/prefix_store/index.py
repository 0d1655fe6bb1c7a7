"""The index in memory: the segment of each block, and its position there. `store` lets one thread at a time change it.

A place is one integer, so that 500,000 blocks (100 GB) cost 80 MB. A block that two segments hold is found in the one
added last, or in the other when that one is gone or damaged.
"""

from __future__ import annotations

import numpy as np

from dragoman.prefix_store.layout import ENTRY, ENTRY_DTYPE, Key

_NUMBER_SHIFT = 32  # a place is a segment's number and the block's position in its entries


def place(number: int, position: int) -> int:
    return number << _NUMBER_SHIFT | position


def split(found: int) -> tuple[int, int]:
    return found >> _NUMBER_SHIFT, found & (1 << _NUMBER_SHIFT) - 1


class Index:
    def __init__(self) -> None:
        self._places: dict[Key, int] = {}
        self._others: dict[Key, list[int]] = {}  # further places of the same blocks, usually none

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def place_of(self, key: Key) -> int | None:
        return self._places.get(key)

    def add(self, number: int, entries: bytes | bytearray, first: int = 0) -> None:
        """Add a segment's blocks from position `first` on."""
        keys = _keys(entries, first)
        begin = place(number, first)
        if not self._places.keys().isdisjoint(keys):
            for position, key in enumerate(keys):
                if (known := self._places.get(key)) is not None:
                    self._others.setdefault(key, []).append(known)
                self._places[key] = begin + position
        else:
            self._places.update(zip(keys, range(begin, begin + len(keys)), strict=True))

    def remove(self, number: int, entries: bytes | bytearray) -> None:
        for position, key in enumerate(_keys(entries, 0), place(number, 0)):
            self.forget(key, position)

    def forget(self, key: Key, lost: int) -> None:
        """Remove this place of a block; another place of it takes over."""
        others = self._others.get(key)
        if self._places.get(key) == lost:
            if others:
                self._places[key] = others.pop()
            else:
                del self._places[key]
        elif others and lost in others:
            others.remove(lost)
        if others is not None and not others:
            del self._others[key]


def _keys(entries: bytes | bytearray, first: int) -> list[Key]:
    keys: list[Key] = np.frombuffer(bytes(entries[first * ENTRY.size :]), ENTRY_DTYPE)["key"].tolist()
    return keys
