"""The models a process serves, and which of them a call means.

Does: hold the served models in order (the first is the default), resolve names, know whether the server is ready.
Does not: load models or read bodies. Filled by the composition root, read by the app, on the event loop.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from dragoman.engine.base import Engine
from dragoman.errors import EngineDead, NotFound, Unavailable
from dragoman.server.admission import Admission
from dragoman.server.api import Dialects, ModelProfile
from dragoman.types import GenerationEvent, GenerationRequest, GenerationResult, Limits

PLACEHOLDER_MODELS = frozenset({"", "default", "dummy", "tgi", "lmi", "model"})
"""Names clients send when they do not care which model answers."""


class GenerationService(Protocol):
    """What the server needs of `service.Service`."""

    def stream(self, request: GenerationRequest) -> AsyncIterator[GenerationEvent]: ...

    async def generate(self, request: GenerationRequest) -> GenerationResult: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model and everything needed to answer for it.

    `created_s`: seconds since the epoch. `url`: where the model came from, `dtype` and `device`: what it runs in and on,
    `limits`: what its dialects allow; all as the model lists and `/info` show them.
    `version` may be asked for as well as the name; "" = there are no versions.
    """

    name: str
    service: GenerationService
    engine: Engine
    dialects: Dialects
    admission: Admission
    aliases: tuple[str, ...] = ()
    url: str = ""
    dtype: str = ""
    device: str = "cpu"
    limits: Limits = field(default_factory=Limits)
    created_s: int = field(default_factory=lambda: int(time.time()))
    version: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that calls may name it by; a version follows the name after a slash, as in LMI's paths."""
        versioned = (f"{self.name}/{self.version}",) if self.version else ()
        return (self.name, *self.aliases, *versioned)


class ServerState(StrEnum):
    """Where the process is in its life; only READY takes requests."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class ModelRegistry:
    """The served models by name. Starts in LOADING; models are added while the port is already open.

    `dialects` answer for calls that never reach a model: an unknown name, or any call while loading. `expected_names` are
    the models that will be added, so that health checks can name them before. `profile` is the default model's.
    """

    def __init__(
        self, dialects: Dialects, expected_names: Sequence[str] = (), profile: ModelProfile | None = None
    ) -> None:
        self.dialects = dialects
        self.profile = profile or ModelProfile()
        self._expected_names = tuple(expected_names)
        self._models: dict[str, ServedModel] = {}
        self._names: dict[str, ServedModel] = {}
        self._state = ServerState.LOADING
        self._reason = ""

    @property
    def state(self) -> ServerState:
        """The server's state."""
        return self._state

    @property
    def reason(self) -> str:
        """Why the state is FAILED, else ""."""
        return self._reason

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """The models added so far; the first is the default."""
        return tuple(self._models.values())

    @property
    def expected_names(self) -> tuple[str, ...]:
        """Names announced for loading that have not been added yet."""
        return tuple(name for name in self._expected_names if name not in self._models)

    def add(self, model: ServedModel) -> None:
        """Serve `model` under its name and aliases. Raises: ValueError if a name is taken."""
        for name in model.names:
            if name in self._names:
                raise ValueError(f"model name {name!r} is already served by model {self._names[name].name!r}")
        self._models[model.name] = model
        self._names.update(dict.fromkeys(model.names, model))

    def mark_ready(self) -> None:
        """Take requests from now on; a drain that has begun is not undone. Raises: ValueError without a model."""
        if not self._models:
            raise ValueError("the server cannot be ready: no model was added")
        if self._state is ServerState.LOADING:
            self._state = ServerState.READY

    def mark_failed(self, reason: str) -> None:
        """Report that loading failed; health checks turn red."""
        self._state = ServerState.FAILED
        self._reason = reason

    def drain(self) -> None:
        """Flip readiness and refuse new calls; running ones go on."""
        self._state = ServerState.DRAINING
        for model in self._models.values():
            model.admission.drain()

    async def wait_idle(self) -> None:
        """Return once no model has a request in flight."""
        for model in self._models.values():
            await model.admission.wait_idle()

    @property
    def is_single(self) -> bool:
        """True if there is one model at most, loaded or not, so that every call can only mean that."""
        return len(self._models) + len(self.expected_names) <= 1

    def knows(self, name: str) -> bool:
        """True if `name` is a model's, served or still to be loaded, and no placeholder."""
        return name in self._names or name in self.expected_names

    def find(self, name: str | None) -> ServedModel:
        """The model of that name or alias; the default for None and for placeholders.

        Raises: NotFound for an unknown name, Unavailable while loading, EngineDead when loading failed.
        """
        if name is not None and (model := self._names.get(name)) is not None:
            return model
        if name is not None and name not in PLACEHOLDER_MODELS and name not in self.expected_names:
            raise NotFound(f"Model or workflow not found: {name} (served: {self._served_names()})", param="model")
        if name in self.expected_names or not self._models:
            raise self._unavailable(name)
        return next(iter(self._models.values()))

    def _served_names(self) -> str:
        return ", ".join((*self._names, *self.expected_names)) or "none"

    def _unavailable(self, name: str | None) -> Unavailable | EngineDead:
        if self._state is ServerState.FAILED:
            return EngineDead(f"The model could not be loaded: {self._reason}")
        return Unavailable(f"Model {name or 'default'} is still loading; try again later", retry_after_s=5)
