"""Facts about models, as plain values for the lists of several APIs. Called on the event loop; never waits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from dragoman.server.api import Ability, ModelCard
from dragoman.server.hosting import ModelState, ModelStatus
from dragoman.server.registry import ModelRegistry, ServedModel, UnloadedModel

READY = "READY"
FAILED = "FAILED"
UNLOADED = "UNLOADED"

_STATUSES = {
    ModelState.LOADING: "PENDING",
    ModelState.READY: READY,
    ModelState.UNLOADING: "UNLOADING",
    ModelState.FAILED: FAILED,
}
"""LMI's words."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about one model. `created_s`: Unix time of its load, 0 = not loaded. `tags`: the operator's.

    `is_of_start`: loaded at the server's start. `parent`: of an adapter, its model; `root`: its source.
    """

    name: str
    created_s: int
    url: str = ""
    status: str = "READY"
    version: str | None = None
    device: str = "cpu"
    max_model_len: int | None = None
    batch_size: int = 1  # sequences that run together at most
    queue_size: int = 0  # requests that may wait
    num_waiting: int = 0
    reason: str = ""
    is_of_start: bool = True
    parent: str = ""
    root: str = ""
    names: tuple[str, ...] = ()
    dtype: str = ""
    card: ModelCard = field(default_factory=ModelCard)
    abilities: Collection[Ability] = ()
    is_pooling: bool = False
    tags: tuple[str, ...] = ()


def facts_of(model: ServedModel) -> ModelFacts:
    health = model.engine.health()
    return ModelFacts(
        name=model.name,
        version=model.version or None,
        created_s=model.created_s,
        url=model.url,
        status=READY if health.is_alive else FAILED,
        device=model.device,
        max_model_len=model.engine.capabilities.max_model_len,
        batch_size=model.admission.max_running,
        queue_size=model.admission.max_queued,
        num_waiting=health.num_waiting,
        names=(model.name, *model.aliases),
        dtype=model.dtype,
        card=model.profile.card,
        abilities=model.profile.abilities,
        is_pooling=model.pooling is not None,
        tags=tuple(model.profile.settings.get("tags", ())),
    )


def facts_of_status(status: ModelStatus) -> ModelFacts:
    """The facts about a model that answers no calls: it loads, leaves, or has failed."""
    return ModelFacts(
        name=status.name,
        version=status.version or None,
        created_s=status.loaded_s,
        url=status.url,
        status=_STATUSES[status.state],
        num_waiting=status.num_in_flight,
        reason=status.reason,
        is_of_start=False,
    )


def facts_by_name(models: Sequence[ServedModel]) -> list[ModelFacts]:
    """The facts under every name that calls may use: each listed name can be called."""
    return [facts for model in models for facts in _facts_with_adapters(model)]


def facts_of_unloaded(model: UnloadedModel) -> ModelFacts:
    """The facts about a model that the next call for it loads."""
    sees: tuple[Ability, ...] = ("vision",) if "vision_config" in model.card.config else ()
    return ModelFacts(
        name=model.name,
        created_s=int(model.card.modified_s),
        url=model.url,
        status=UNLOADED,
        is_of_start=False,
        card=model.card,
        abilities=sees,
    )


def facts_of_all(models: ModelRegistry) -> list[ModelFacts]:
    """The facts under every name that calls may use, with models that a call would load."""
    away = [replace(facts_of_unloaded(model), name=name) for model in models.unloaded for name in model.names]
    return facts_by_name(models.models) + away


def facts_of_name(models: ModelRegistry, name: str) -> ModelFacts:
    """The facts of one model. Raises: as `ModelRegistry.find`, except for models that a call would load."""
    if (away := models.unloaded_called(name)) is not None:
        return replace(facts_of_unloaded(away), name=name)
    return facts_called(models.find(name), name)


def facts_called(model: ServedModel, name: str) -> ModelFacts:
    """The facts under the name in the call, which may be an adapter's."""
    facts = {facts.name: facts for facts in _facts_with_adapters(model)}
    return facts[name] if name in facts and facts[name].parent else facts_of(model)


def _facts_with_adapters(model: ServedModel) -> list[ModelFacts]:
    facts = facts_of(model)
    listed = [replace(facts, name=name) for name in (model.name, *model.aliases)]
    if model.adapters is not None:
        listed += [
            replace(facts, name=adapter.name, names=(), parent=model.name, root=adapter.source)
            for adapter in model.adapters.all()
        ]
    return listed
