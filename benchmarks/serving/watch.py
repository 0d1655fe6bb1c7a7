"""Reads a running server's counters (`GET /metrics`).

Does: sum a metric over the models of a server. Does not: anything for servers other than ours.
"""

from __future__ import annotations

import urllib.request

PREEMPTIONS = "dragoman_preemptions_total"
BLOCKS = "dragoman_kv_blocks"
PREFIX_HITS = "dragoman_prefix_cache_hits_total"


def metrics(url: str) -> dict[str, float]:
    """The value of every metric, by name."""
    with urllib.request.urlopen(url + "/metrics", timeout=30) as answer:
        return parse(answer.read().decode())


def parse(text: str) -> dict[str, float]:
    """The values in Prometheus' text format, summed over labels."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            values[name] = values.get(name, 0.0) + float(value)
    return values
