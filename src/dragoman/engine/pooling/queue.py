"""The texts that wait, and which of them are computed next.

Does: keep them in the order they came and by length; choose batches of texts of similar length, the oldest always among
them. Does not: lock (the engine does) or compute.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dragoman.types import PooledText

# Attention works on rows as long as the batch's longest text. Of what a batch's tokens cost it is a small part, so that some
# emptiness is worth a fuller batch; the rest of the network sees no emptiness at all.
_EMPTINESS = 1.25
_SHORT_TOKENS = (
    512  # places that may always be empty: little beside the products of the smallest batch that is worth it
)


@dataclass(slots=True, eq=False)
class WaitingText:
    """One text of a request. `owner`: whose it is, `index`: which of its texts."""

    text: PooledText
    owner: Any
    index: int
    length: int = field(init=False)
    is_taken: bool = False  # or dropped

    def __post_init__(self) -> None:
        self.length = len(self.text.token_ids)


class TextQueue:
    """Texts that wait. One thread at a time."""

    def __init__(self) -> None:
        self._by_age: deque[WaitingText] = deque()  # taken ones are left out when they come to the front
        self._by_length: list[tuple[int, int, WaitingText]] = []
        self._number = 0
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._by_length)

    def add(self, texts: Iterable[WaitingText]) -> None:
        """These come last."""
        for text in texts:
            self._number += 1
            self._by_age.append(text)
            insort(self._by_length, (text.length, self._number, text))
            self.num_tokens += text.length

    def drop(self, owner: object) -> None:
        """Forget the texts of one request."""
        dropped = [text for _, _, text in self._by_length if text.owner is owner]
        if dropped:
            self._by_length = [entry for entry in self._by_length if entry[2].owner is not owner]
        self._leave(dropped)
        self._by_age = deque(text for text in self._by_age if not text.is_taken)

    def take(self, max_tokens: int) -> list[WaitingText]:
        """The oldest text, with others whose length is nearest to its own, up to `max_tokens` together; [] if none waits."""
        while self._by_age and self._by_age[0].is_taken:
            self._by_age.popleft()
        if not self._by_age:
            return []
        oldest = self._by_age[0]
        order = self._by_length
        first = bisect_left(order, (oldest.length, 0))
        while order[first][2] is not oldest:
            first += 1
        last, total, longest = first, oldest.length, oldest.length
        while True:
            before = order[first - 1][0] if first else None
            behind = order[last + 1][0] if last + 1 < len(order) else None
            is_behind = before is None or (behind is not None and behind - oldest.length <= oldest.length - before)
            length = behind if is_behind else before
            if length is None or total + length > max_tokens:
                break
            places = (last - first + 2) * max(longest, length)
            if places > _EMPTINESS * (total + length) + _SHORT_TOKENS:
                break
            total += length
            if is_behind:
                last, longest = last + 1, length
            else:
                first -= 1
        taken = [text for _, _, text in order[first : last + 1]]
        del order[first : last + 1]
        self._leave(taken)
        return taken

    def _leave(self, texts: Iterable[WaitingText]) -> None:
        for text in texts:
            text.is_taken = True
            self.num_tokens -= text.length
