"""What the lists of several APIs tell about a served model, as plain values.

Does: collect them from the model, its engine and its admission. Does not: know any API's shape.
Called by the APIs' operations, on the event loop; never waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman.server.registry import ServedModel

READY = "READY"
FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the lists tell about one served model. `created_s`: Unix time at which it was loaded."""

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


def facts_of(model: ServedModel) -> ModelFacts:
    """What is to be told about a model."""
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
    )


def facts_by_name(models: Sequence[ServedModel]) -> list[ModelFacts]:
    """The facts under every name that can be asked for: a client that picks one of a list must be served."""
    return [replace(facts_of(model), name=name) for model in models for name in (model.name, *model.aliases)]
