"""An adapter as one request uses it: plain values, for whoever packs or names what a sequence computes."""

from __future__ import annotations

from dataclasses import dataclass

NO_SLOT = -1
"""In the place of a slot: no adapter."""


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """Where an adapter lies. `key`: a digest of what is in it, also in other processes and whatever its name means there."""

    name: str
    slot: int
    key: str
