"""What a key of a model's config may hold against all reason: unless everything is run, one value of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.tiers import width

_ALL: Sequence[Any] = (None, True, 0, -3, 2**31 - 1, 2**40, 1.5, "odd", [], ["odd"], [0], {}, {"odd": 1})
ODD_VALUES = width(_ALL, (None, 0, 2**40, "odd", [0], {}))
