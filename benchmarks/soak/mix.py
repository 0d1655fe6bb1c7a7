"""Which request comes next, and how its client behaves.

Does: draw from dice; the shares of what is wrong, leaves, reads slowly, fails on purpose. Does not: send. Called by `load`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from benchmarks.soak.kinds import KINDS, MODEL_KINDS, for_model, invalid, valid
from benchmarks.soak.request import ANSWERED, REFUSED, Request

GUEST = "guest"
"""The name of the model that comes and goes."""

Faults = Mapping[str, Callable[[random.Random], Request]]
"""What goes wrong -> a request at which it does."""

_FAULT_SHARE, _GUEST_SHARE, _INVALID_SHARE = 0.2, 0.06, 1 / 7
_LEAVING_SHARE, _SLOW_SHARE = 0.15, 0.05
_PAUSE_S = 0.02
_LEAVING_AFTER = (0, 1, 400)


def warm_up(kinds: Sequence[str], faults: Faults, index: int, dice: random.Random) -> Request:
    """Every kind in turn, then every fault: what a server needs that has done everything."""
    names = (*kinds, *faults)
    name = names[index % len(names)]
    return valid(name, dice) if name in KINDS else faults[name](dice)


def next_request(kinds: Sequence[str], faults: Faults, dice: random.Random) -> Request:
    """Any of all that can come."""
    which = dice.random()
    if which < _FAULT_SHARE:
        return faults[dice.choice(tuple(faults))](dice)
    if which < _FAULT_SHARE + _GUEST_SHARE:
        return for_guest(dice, allowed=ANSWERED | REFUSED | {404})
    request = (invalid if dice.random() < _INVALID_SHARE else valid)(dice.choice(kinds), dice)
    manner = dice.random()
    if manner < _LEAVING_SHARE:
        return replace(request, leave_after=dice.choice(_LEAVING_AFTER))
    if manner < _LEAVING_SHARE + _SLOW_SHARE:
        return replace(request, pause_s=_PAUSE_S)
    return request


def for_guest(dice: random.Random, *, allowed: frozenset[int]) -> Request:
    """A request for the model that comes and goes."""
    name = dice.choice(MODEL_KINDS)
    return replace(for_model(name, GUEST, dice), kind="guest", allowed=allowed)
