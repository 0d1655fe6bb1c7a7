"""The client APIs, a folder each: what `NAMES` lists is served.

Does: find them. Does not: know what they do. Called by the composition root and the app, at start-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module

from dragoman.server.api import Dialect, ModelProfile
from dragoman.server.operations import Api

NAMES = (
    "dragoman.server.apis.lmi.api",
    "dragoman.server.apis.openai.api",
    "dragoman.server.apis.ovms.api",
    "dragoman.server.apis.sagemaker.api",
    "dragoman.server.apis.tgi.api",
    "dragoman.server.apis.text.api",
    "dragoman.server.apis.anthropic.api",
    "dragoman.server.apis.management.api",
)
"""Modules that have an `API`, in the order in which people are shown them."""


@cache
def load_apis(names: tuple[str, ...]) -> tuple[Api, ...]:
    """The APIs of these modules. Raises: ImportError, AttributeError for a module without an `API`."""
    return tuple(_apis(names))


def set_up_all(profile: ModelProfile, apis: Sequence[Api] | None = None) -> dict[str, Dialect]:
    """The dialects of all APIs for a model, by name; `apis` None = every API that is served."""
    return {name: dialect for api in apis or all_apis() for name, dialect in api.set_up(profile).items()}


def all_apis() -> tuple[Api, ...]:
    """Every API that is served."""
    return load_apis(NAMES)


def _apis(names: Sequence[str]) -> Iterator[Api]:
    for name in names:
        api: Api = import_module(name).API
        yield api
