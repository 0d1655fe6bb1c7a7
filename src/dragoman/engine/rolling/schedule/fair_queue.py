"""Orders requests that have not begun: by priority, and within one shared fairly among those who ask.

Does: know who waits and whose turn it is, count what each caller was given. Does not: know blocks, steps, or requests that
have begun (those go first, the scheduler has them). Called by the scheduler, on the engine thread only.

Each caller has a counter of the tokens that were computed for it, divided by its share, and the one with the lowest is
next; its requests are in order of arrival. A caller that was away is lifted to the lowest counter of those that wait, so
that no caller saves up. Hence a thousand waiting requests of a caller hold up another one no longer than a few would, and
nothing is held back for anybody: who is alone gets everything. Source: the virtual token counter, arXiv:2401.00588, with its
weights.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace

from dragoman.engine.rolling.sequence import SequenceGroup

PROMPT_WEIGHT, COMPLETION_WEIGHT = 1, 2  # of a token that was computed, and of one that was generated


class Shares:
    """The weighted tokens that each caller was given, divided by its share.

    `pending`: the tokens that were generated for those who run, and are not charged yet; asked only when callers compete.
    """

    def __init__(self, pending: Callable[[], Mapping[str, int]]) -> None:
        self._pending = pending
        self._charged: dict[str, float] = {}
        self._share: dict[str, int] = {}  # of those that have another than 1
        self._last = ""  # the caller that waited last, when no other did

    def charge(self, caller: str, *, num_prompt: int = 0, num_generated: int = 0) -> None:
        """Charge a caller that has waited before for tokens that were computed and generated."""
        tokens = PROMPT_WEIGHT * num_prompt + COMPLETION_WEIGHT * num_generated
        self._charged[caller] += self.of(caller, tokens)

    def of(self, caller: str, tokens: int) -> float:
        """Weighted tokens as they count for a caller."""
        return tokens / self._share.get(caller, 1)

    def set_share(self, caller: str, share: int) -> None:
        """From now on the caller is given `share` times as much as one of share 1 while both wait."""
        if share != self._share.get(caller, 1):
            self._share[caller] = share

    def enter(self, caller: str, others: Collection[str]) -> None:
        """A caller begins to wait beside `others`: what it did not use while it was away is lost."""
        others = others or (self._last,)
        if caller not in self._charged:
            self._charged[caller] = 0
        if caller in others:
            return
        counters = self.counters()
        least = min(counters.get(other, 0) for other in others)
        self._charged[caller] += max(least - counters[caller], 0)

    def leave(self, caller: str) -> None:
        """Nobody waits any more, and this one did so last."""
        self._last = caller

    def choose(self, callers: Iterable[str]) -> str:
        """The caller of these that was given least; the first of several."""
        return min(callers, key=self.counters().__getitem__)

    def counters(self) -> dict[str, float]:
        """The weighted tokens that each caller was given until now."""
        counters = dict(self._charged)
        for caller, num_generated in self._pending().items():
            counters[caller] += COMPLETION_WEIGHT * num_generated / self._share.get(caller, 1)
        return counters


class FairQueue:
    """Requests that wait for their first step. The request that was chosen as next stays it until it is taken out.

    So a large request that does not fit yet is not overtaken by small ones of its priority for ever.
    """

    def __init__(self, pending: Callable[[], Mapping[str, int]]) -> None:
        self.shares = Shares(pending)
        self._levels: dict[int, dict[str, deque[SequenceGroup]]] = {}  # by priority, by caller; nothing in it is empty
        self._priorities: list[int] = []  # of the levels, ascending
        self._num_waiting: dict[str, int] = {}  # of those callers that wait
        self._length = 0
        self._next: SequenceGroup | None = None  # None = not known

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[SequenceGroup]:
        """All requests, the highest priority first, and one caller after the other."""
        for priority in reversed(self._priorities):
            for groups in self._levels[priority].values():
                yield from groups

    @property
    def priority(self) -> int:
        """The highest priority of the requests that wait; there must be one."""
        return self._priorities[-1]

    def add(self, group: SequenceGroup) -> None:
        """A request begins to wait, behind all others of its caller and priority."""
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
        """The request that is next; there must be one."""
        if self._next is None:
            level = self._levels[self._priorities[-1]]
            caller = next(iter(level)) if len(self._num_waiting) == 1 else self.shares.choose(level)
            self._next = level[caller][0]
        return self._next

    def remove(self, group: SequenceGroup) -> None:
        """A request waits no longer: it begins, or was given up."""
        priority, caller = group.priority, group.request.caller
        level = self._levels[priority]
        level[caller].remove(group)  # at once where it is the first
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
        """All requests in the order in which they will begin, as far as that can be told: with what was given until now.

        Prompts are charged as they come, answers are not foreseen.
        """
        counters = self.shares.counters()
        first = self._next
        if first is not None:
            yield first
            self._foresee(counters, first)
        for priority in reversed(self._priorities):
            level = {
                caller: [one for one in groups if one is not first] for caller, groups in self._levels[priority].items()
            }
            turns = [(counters[caller], place, caller) for place, caller in enumerate(level) if level[caller]]
            heapify(turns)
            numbers = dict.fromkeys(level, 0)  # of those that have begun
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
        """Those that surely begin before a request which waits: the more urgent ones, and older ones of its caller."""
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
