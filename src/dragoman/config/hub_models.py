"""How the configuration finds models of the hub: in the cache, or by bringing them.

Does: offer the ways to find one, each of which looks once for each model. Does not: download; `dragoman.hub` does. Used by
`resolve`, and by whoever resolves: the command line and `LLM`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

from dragoman.hub.download import Note, Progress, bring, find_cached
from dragoman.hub.environment import hub_environment
from dragoman.hub.errors import HubError
from dragoman.hub.names import HubModel

FindModel: TypeAlias = Callable[[HubModel], Path]
"""The directory (or file) of a model of the hub on this machine. Raises: HubError."""

Resolution = TypeVar("Resolution")


def left_alone(model: HubModel) -> Path:
    """The name as a path, for whoever does not need the model."""
    return Path(str(model))


def only_cached(environ: Mapping[str, str]) -> FindModel:
    """Finds what the cache has, and names the command for all else."""

    def find(model: HubModel) -> Path:
        try:
            return find_cached(model, hub_environment(environ))
        except HubError as error:
            gguf = f" --gguf {model.gguf}" if model.gguf else ""
            raise HubError(f"{error}; `dragoman pull {model.without_gguf}{gguf}` brings it") from None

    return find


def with_models(
    resolve: Callable[[FindModel], Resolution],
    placeholder: Path,
    environ: Mapping[str, str],
    progress: Progress,
    note: Note,
) -> Resolution:
    """What `resolve` gives with the models of the hub that it asks for, which are brought if need be.

    It is called with `placeholder` in their stead first, so that a mistake elsewhere is told before anything is downloaded.
    Raises: what `resolve` raises; it turns HubError into one of its own.
    """
    asked: list[HubModel] = []

    def notice(model: HubModel) -> Path:
        asked.append(model)
        return placeholder

    resolution = resolve(notice)
    if not asked:
        return resolution
    found: dict[HubModel, Path] = {}

    def find(model: HubModel) -> Path:
        if model not in found:
            found[model] = bring(model, hub_environment(environ), progress, note)
        return found[model]

    return resolve(find)
