"""The waiting texts, and the choice of batches of texts of similar length. The engine locks."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dragoman.types import PooledText

# Attention pads rows to the batch's longest text. It is a small part of a batch's cost, so some padding is worth a fuller
# batch; the rest of the network has no padding at all.
_EMPTINESS = 1.25
_SHORT_TOKENS = 512  # padding that is always allowed: little beside the products of the smallest efficient batch


@dataclass(slots=True, eq=False)
class WaitingText:
    """The text at `index` of the request `owner`."""

    text: PooledText
    owner: Any
    index: int
    length: int = field(init=False)
    is_taken: bool = False  # or dropped

    def __post_init__(self) -> None:
        self.length = len(self.text.token_ids)


class TextQueue:
    def __init__(self) -> None:
        self._by_age: deque[WaitingText] = deque()  # removed texts are skipped when they reach the front
        self._by_length: list[tuple[int, int, WaitingText]] = []
        self._number = 0
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._by_length)

    def add(self, texts: Iterable[WaitingText]) -> None:
        for text in texts:
            self._number += 1
            self._by_age.append(text)
            insort(self._by_length, (text.length, self._number, text))
            self.num_tokens += text.length

    def drop(self, owner: object) -> None:
        dropped = [text for _, _, text in self._by_length if text.owner is owner]
        if dropped:
            self._by_length = [entry for entry in self._by_length if entry[2].owner is not owner]
        self._leave(dropped)
        self._by_age = deque(text for text in self._by_age if not text.is_taken)

    def take(self, max_tokens: int) -> list[WaitingText]:
        """The oldest text and others nearest to it in length, up to `max_tokens` together; [] if none waits."""
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
