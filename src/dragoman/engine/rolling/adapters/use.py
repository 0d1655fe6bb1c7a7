"""An adapter as one request uses it."""

from __future__ import annotations

from dataclasses import dataclass

NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """An adapter's place. `key`: a digest of its content, equal in all processes."""

    name: str
    slot: int
    key: str
