"""An adapter as one request uses it: plain values, for batches and digests."""

from __future__ import annotations

from dataclasses import dataclass

NO_SLOT = -1
"""The slot number for no adapter."""


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """An adapter's place. `key`: a digest of its content, equal in all processes, whatever its name."""

    name: str
    slot: int
    key: str
