"""The client APIs, a module or a folder each: what `NAMES` lists is served.

Does: find them. Does not: know what they do. Called by the composition root and the app, at start-up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, reduce
from importlib import import_module

from dragoman.server.api import Dialect, ErrorTeller, ModelProfile
from dragoman.server.operations import Api, Teller

NAMES = (
    "dragoman.server.apis.lmi.api",
    "dragoman.server.apis.openai.api",
    "dragoman.server.apis.ovms",
    "dragoman.server.apis.responses.api",
    "dragoman.server.apis.sagemaker",
    "dragoman.server.apis.tgi",
    "dragoman.server.apis.text",
    "dragoman.server.apis.ollama.api",
    "dragoman.server.apis.llamacpp.api",
    "dragoman.server.apis.lmstudio",
    "dragoman.server.apis.tei",
    "dragoman.server.apis.rerank",
    "dragoman.server.apis.pooling",
    "dragoman.server.apis.anthropic.api",
    "dragoman.server.apis.management",
    "dragoman.server.apis.playground",
)
"""Modules that have an `API`, in the order in which people are shown them."""


def all_apis() -> tuple[Api, ...]:
    """Every API that is served. Raises: ImportError, AttributeError for a name that is not a module with an `API`."""
    return load_apis(NAMES)


@cache
def load_apis(names: tuple[str, ...]) -> tuple[Api, ...]:
    """The APIs of these modules, with joint operations and tellers in their places. Raises: as `all_apis`."""
    apis: list[Api] = [import_module(name).API for name in names]
    joint = {(operation.method, operation.path): operation for api in apis for operation in api.joint}
    around = {path: teller for api in apis for path, teller in api.joint_tellers.items()}
    return tuple(
        replace(
            api,
            operations=tuple(joint.get((operation.method, operation.path), operation) for operation in api.operations),
            teller=reduce(_put_around, (around[path] for path in api.owns if path in around), api.teller),
        )
        for api in apis
    )


def _put_around(teller: Teller | None, around: Callable[[ErrorTeller], ErrorTeller]) -> Teller | None:
    """The teller of an API within another API's; None if the API has none."""
    return teller and (lambda dialects: around(teller(dialects)))


def set_up_all(profile: ModelProfile) -> dict[str, Dialect]:
    """The dialects of all APIs for a model, by name."""
    return {name: dialect for api in all_apis() for name, dialect in api.set_up(profile).items()}
