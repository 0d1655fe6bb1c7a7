"""Chooses the replica for a request by the rules of a router, and computes one replica's share of all requests.

Prefix affinity is rendezvous hashing (Thaler and Ravishankar, 1998) with bounded load (arXiv:1608.01350): a prefix
ranks all replicas, and goes to the first whose outstanding requests are below the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from dragoman.engine.affinity import MAX_OVERLOAD, most_requests
from dragoman.tools.plan.workload import NO_PREFIX, Weights, Workload, popularity

RouterKind = Literal["least-outstanding", "prefix"]
ROUTERS: tuple[RouterKind, ...] = ("least-outstanding", "prefix")

_Hashes = npt.NDArray[np.uint64]


class Router(Protocol):
    def choose(self, prefix: int, outstanding: Sequence[int]) -> int:
        """The replica for a request with that prefix; `outstanding`: the unfinished requests of each replica."""
        ...


class LeastOutstanding:
    def __init__(self) -> None:
        self._next = 0

    def choose(self, prefix: int, outstanding: Sequence[int]) -> int:
        count = len(outstanding)
        chosen = min(range(count), key=lambda index: (outstanding[index], (index - self._next) % count))
        self._next = (chosen + 1) % count
        return chosen


class PrefixAffinity:
    """Chooses the prefix's highest-ranked replica that is not overloaded; without a prefix, the least outstanding."""

    def __init__(self) -> None:
        self._others = LeastOutstanding()

    def choose(self, prefix: int, outstanding: Sequence[int]) -> int:
        if prefix == NO_PREFIX:
            return self._others.choose(prefix, outstanding)
        bound = most_requests(outstanding)
        ranked: list[int] = np.argsort(-_scores(np.array([prefix]), len(outstanding))[0], kind="stable").tolist()
        return next(index for index in ranked if outstanding[index] < bound)


def router_of(kind: RouterKind) -> Router:
    return PrefixAffinity() if kind == "prefix" else LeastOutstanding()


# --- one of many replicas ---------------------------------------------------------------------------------------------


def share_of_first(workload: Workload, num_replicas: int, kind: RouterKind) -> Weights | None:
    """The share of each prefix in the requests of the first replica; None = its popularity. Shapes: [num_prefixes].

    A prefix with more requests than one replica's load bound goes evenly to the highest-ranked ones, as many as needed.
    """
    if not workload.prefix_tokens or kind == "least-outstanding" or num_replicas == 1:
        return None
    shares = popularity(workload.num_prefixes)
    copies = _num_copies(shares, num_replicas)
    scores = _scores(np.arange(workload.num_prefixes), num_replicas)
    rank = (scores > scores[:, :1]).sum(axis=1)
    weights = np.where(rank < copies, shares / copies, 0.0)
    if not weights.any():  # fewer prefixes than replicas, and none ranks it first: it takes the excess of others
        return None
    normalized: Weights = weights / weights.sum()
    return normalized


def _num_copies(shares: Weights, num_replicas: int) -> npt.NDArray[np.int64]:
    """The number of replicas for each prefix under the load bound."""
    return np.clip(np.ceil(shares * num_replicas / MAX_OVERLOAD), 1, num_replicas).astype(np.int64)


def _scores(prefixes: npt.NDArray[np.int64], num_replicas: int) -> _Hashes:
    """The score of each replica for each prefix. Shapes: [n] -> [n, num_replicas]."""
    places: _Hashes = np.arange(num_replicas, dtype=np.uint64)
    hashed = _mixed(prefixes.astype(np.uint64))[:, None] + places
    return _mixed(hashed.astype(np.uint64))


def _mixed(values: _Hashes) -> _Hashes:
    """Source: splitmix64 (Steele, Lea and Flood, 2014)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
