"""The best hit rate of prefix caches, by formula: simulations and the page on scaling are held against it."""

from __future__ import annotations

import numpy as np

from dragoman.engine.affinity import MAX_OVERLOAD
from dragoman.tools.plan.router import RouterKind
from dragoman.tools.plan.workload import Workload, popularity


def best_hit_rate(workload: Workload, num_replicas: int, kind: RouterKind, cache_tokens: int) -> float:
    """The share of all prompt tokens that the replicas' caches can hold at best: the prefixes asked for most are kept.

    By formula, not simulated: no cold start, and a cache of `cache_tokens` per replica that holds nothing but prefixes.
    """
    if not workload.prefix_tokens:
        return 0.0
    shares = popularity(workload.num_prefixes)
    copies = np.full(len(shares), num_replicas)
    if kind == "prefix":
        copies = np.clip(np.ceil(shares * num_replicas / MAX_OVERLOAD), 1, num_replicas).astype(np.int64)
    room = num_replicas * (cache_tokens // workload.prefix_tokens)
    kept = np.clip((room - (np.cumsum(copies) - copies)) / copies, 0, 1)
    return float((shares * kept).sum()) * workload.prefix_tokens / workload.prompt_tokens
