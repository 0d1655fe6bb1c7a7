"""The order in which segments are deleted when room is needed: by last use and leases.

A lease keeps a segment of a group (a caller) beyond its turn. Leases hold at most half of the budget, and each group
with leases has an equal part of that half. A segment with leases of several groups costs each of them its share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

_LEASED_PART = 0.5  # of the budget


@dataclass(slots=True)
class Use:
    """The uses of a segment. `leases`: the end of each group's lease, by `layout.group_digest`."""

    name: str
    size: int
    used_at: float
    leases: dict[bytes, float] = field(default_factory=dict)

    def copy(self) -> Use:
        return Use(self.name, self.size, self.used_at, dict(self.leases))


def first_to_go(uses: Iterable[Use], budget_bytes: int, now: float) -> list[Use]:
    oldest_first = sorted(uses, key=lambda use: (min(use.used_at, now), use.name))
    held = _held(oldest_first, budget_bytes * _LEASED_PART, now)
    return [use for use in oldest_first if use.name not in held] + [use for use in oldest_first if use.name in held]


def _held(oldest_first: list[Use], bytes_for_leases: float, now: float) -> set[str]:
    leased = [(use, groups) for use in reversed(oldest_first) if (groups := _groups(use, now))]
    paid: dict[bytes, float] = {group: 0.0 for _, groups in leased for group in groups}
    share = bytes_for_leases / max(len(paid), 1)
    held: set[str] = set()
    total = 0
    for use, groups in leased:
        part = use.size / len(groups)
        paying = [group for group in groups if paid[group] + part <= share]
        if paying and total + use.size <= bytes_for_leases:
            held.add(use.name)
            total += use.size
            for group in paying:
                paid[group] += part
    return held


def _groups(use: Use, now: float) -> list[bytes]:
    return [group for group, until in use.leases.items() if until > now]
