"""The real dialects for a model that is called `fake`, as tests of the server put them behind it."""

from __future__ import annotations

from typing import Any

from dragoman.server.api import Dialect, ModelProfile
from dragoman.server.apis import set_up_all


def real_dialects(**profile: Any) -> dict[str, Dialect]:
    """Every dialect, serving the name `fake`; with its defaults but for what `profile` says."""
    return set_up_all(ModelProfile(**{"name": "fake", **profile}))
