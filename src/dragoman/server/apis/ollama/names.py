"""Names of models as Ollama's clients write them: without a tag, a name means `latest`. On the event loop."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.server.api import HttpCall, ModelProfile, model_of_body
from dragoman.server.operations import Server

LATEST = ":latest"


def meant(name: str, knows: Callable[[str], bool]) -> str:
    """The served name for `name`, with or without the tag; `name` itself if there is none."""
    if knows(name):
        return name
    other = name.removesuffix(LATEST) if name.endswith(LATEST) else f"{name}{LATEST}"
    return other if other and knows(other) else name


def model_meant(http: HttpCall, server: Server) -> str | None:
    name = model_of_body(http, server)
    return None if name is None else meant(name, server.models.knows)


def served_name(name: str, profile: ModelProfile) -> str:
    known = {profile.name, *profile.aliases, *profile.adapter_names()}
    return meant(name, known.__contains__)


def tagged(name: str) -> str:
    """The name as lists show it: clients take the part behind the colon for the tag."""
    return name if ":" in name.rpartition("/")[2] else f"{name}{LATEST}"
