"""Finds models of the hub for the configuration: in the cache, or by downloading them with `dragoman.hub`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

from dragoman.hub.download import Note, Progress, bring, find_cached
from dragoman.hub.environment import hub_environment
from dragoman.hub.names import HubError, HubModel

FindModel: TypeAlias = Callable[[HubModel], Path]
"""The directory (or file) of a model of the hub on this machine. Raises: HubError."""

Resolution = TypeVar("Resolution")


def left_alone(model: HubModel) -> Path:
    """The name as a path, for callers that do not need the model."""
    return Path(str(model))


def only_cached(environ: Mapping[str, str]) -> FindModel:
    """Finds models in the cache; for others the error names the command."""

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
    """The result of `resolve` with its models of the hub, downloaded if necessary.

    The first call gets `placeholder` for each model, so that other mistakes are reported before a download.
    """
    models: list[HubModel] = []

    def notice(model: HubModel) -> Path:
        models.append(model)
        return placeholder

    resolution = resolve(notice)
    if not models:
        return resolution
    found: dict[HubModel, Path] = {}

    def find(model: HubModel) -> Path:
        if model not in found:
            found[model] = bring(model, hub_environment(environ), progress, note)
        return found[model]

    return resolve(find)
