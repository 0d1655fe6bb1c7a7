"""The real dialects for a model that is called `fake`, as tests of the server put them behind it."""

from __future__ import annotations

from typing import Any

from dragoman.server.api import Dialect, ModelProfile
from dragoman.server.apis import set_up_all


def fake_profile(**more: Any) -> ModelProfile:
    """The profile of a model called `fake`; with its defaults but for what `more` says."""
    return ModelProfile(**{"name": "fake", **more})


def real_dialects(**more: Any) -> dict[str, Dialect]:
    """Every dialect, serving the name `fake`; with its defaults but for what `more` says of the profile."""
    return set_up_all(fake_profile(**more))
