"""Orders requests that have not begun: by priority, and within it fairly among callers. On the engine thread only.

Each caller has a counter of its computed tokens, divided by its share; the lowest is next. A caller that returns is
lifted to the lowest counter of those that wait, so that it cannot save up. So a thousand waiting requests of one caller
delay another no longer than a few. Source: the virtual token counter, arXiv:2401.00588, with its weights.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace

from dragoman.engine.rolling.sequence import SequenceGroup

PROMPT_WEIGHT, COMPLETION_WEIGHT = 1, 2  # of a computed token, and of a generated one


class Shares:
    """The weighted tokens of each caller. `pending`: generated tokens of running sequences that are not charged yet."""

    def __init__(self, pending: Callable[[], Mapping[str, int]]) -> None:
        self._pending = pending
        self._charged: dict[str, float] = {}
        self._share: dict[str, int] = {}  # callers whose share is not 1
        self._last = ""  # the caller that waited last, when no other did

    def charge(self, caller: str, *, num_prompt: int = 0, num_generated: int = 0) -> None:
        tokens = PROMPT_WEIGHT * num_prompt + COMPLETION_WEIGHT * num_generated
        self._charged[caller] += self.of(caller, tokens)

    def of(self, caller: str, tokens: int) -> float:
        return tokens / self._share.get(caller, 1)

    def set_share(self, caller: str, share: int) -> None:
        if share != self._share.get(caller, 1):
            self._share[caller] = share

    def enter(self, caller: str, others: Collection[str]) -> None:
        """Let a caller wait beside `others`; it cannot save up tokens while away."""
        others = others or (self._last,)
        if caller not in self._charged:
            self._charged[caller] = 0
        if caller in others:
            return
        counters = self.counters()
        least = min(counters.get(other, 0) for other in others)
        self._charged[caller] += max(least - counters[caller], 0)

    def leave(self, caller: str) -> None:
        """Note that the queue is empty, and that this caller waited last."""
        self._last = caller

    def choose(self, callers: Iterable[str]) -> str:
        return min(callers, key=self.counters().__getitem__)

    def counters(self) -> dict[str, float]:
        counters = dict(self._charged)
        for caller, num_generated in self._pending().items():
            counters[caller] += COMPLETION_WEIGHT * num_generated / self._share.get(caller, 1)
        return counters


class FairQueue:
    """Requests that wait for their first step. The chosen one stays next: smaller ones must not overtake it for ever."""

    def __init__(self, pending: Callable[[], Mapping[str, int]]) -> None:
        self.shares = Shares(pending)
        self._levels: dict[int, dict[str, deque[SequenceGroup]]] = {}  # by priority, by caller; without empty entries
        self._priorities: list[int] = []  # the priorities, ascending
        self._num_waiting: dict[str, int] = {}  # of callers that wait
        self._length = 0
        self._next: SequenceGroup | None = None  # None = not chosen yet

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[SequenceGroup]:
        for priority in reversed(self._priorities):
            for groups in self._levels[priority].values():
                yield from groups

    @property
    def priority(self) -> int:
        return self._priorities[-1]

    def add(self, group: SequenceGroup) -> None:
        priority, caller = group.priority, group.request.caller
        self.shares.set_share(caller, group.request.share)
        if caller not in self._num_waiting:
            self.shares.enter(caller, self._num_waiting)
        if priority not in self._levels:
            self._levels[priority] = {}
            insort(self._priorities, priority)
        if self._next is not None and priority > self._next.priority:
            self._next = None
        self._levels[priority].setdefault(caller, deque()).append(group)
        self._num_waiting[caller] = self._num_waiting.get(caller, 0) + 1
        self._length += 1

    def head(self) -> SequenceGroup:
        if self._next is None:
            level = self._levels[self._priorities[-1]]
            caller = next(iter(level)) if len(self._num_waiting) == 1 else self.shares.choose(level)
            self._next = level[caller][0]
        return self._next

    def remove(self, group: SequenceGroup) -> None:
        priority, caller = group.priority, group.request.caller
        level = self._levels[priority]
        level[caller].remove(group)  # fast if it is the first
        if not level[caller]:
            del level[caller]
        if not level:
            del self._levels[priority]
            self._priorities.remove(priority)
        self._num_waiting[caller] -= 1
        if not self._num_waiting[caller]:
            del self._num_waiting[caller]
            if not self._num_waiting:
                self.shares.leave(caller)
        self._length -= 1
        if self._next is group:
            self._next = None

    def in_order(self) -> Iterator[SequenceGroup]:
        """All requests in the expected order of beginning. Prompts are charged in passing; future answers are not."""
        counters = self.shares.counters()
        first = self._next
        if first is not None:
            yield first
            self._foresee(counters, first)
        for priority in reversed(self._priorities):
            level = {
                caller: [group for group in groups if group is not first]
                for caller, groups in self._levels[priority].items()
            }
            turns = [(counters[caller], place, caller) for place, caller in enumerate(level) if level[caller]]
            heapify(turns)
            numbers = dict.fromkeys(level, 0)  # of callers whose requests were passed
            while turns:
                _, place, caller = turns[0]
                group = level[caller][numbers[caller]]
                yield group
                numbers[caller] += 1
                self._foresee(counters, group)
                if numbers[caller] < len(level[caller]):
                    heapreplace(turns, (counters[caller], place, caller))
                else:
                    heappop(turns)

    def _foresee(self, counters: dict[str, float], group: SequenceGroup) -> None:
        caller = group.request.caller
        counters[caller] += self.shares.of(caller, PROMPT_WEIGHT * group.sequences[0].num_prompt_tokens)

    def ahead_of(self, group: SequenceGroup) -> Iterator[SequenceGroup]:
        """The requests that surely begin before this one: more urgent ones, and older ones of its caller."""
        priority, caller = group.priority, group.request.caller
        for level in reversed(self._priorities):
            if level <= priority:
                break
            for groups in self._levels[level].values():
                yield from groups
        for other in self._levels[priority][caller]:
            if other is group:
                return
            yield other
