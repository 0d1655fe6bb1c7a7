"""An adapter as one request uses it: plain values, for whoever packs or names what a sequence computes."""

from __future__ import annotations

from dataclasses import dataclass

NO_SLOT = -1
"""In the place of a slot: no adapter."""


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """Where an adapter lies. `key`: of this adapter and no other, also if its name means another one later."""

    name: str
    slot: int
    key: str
