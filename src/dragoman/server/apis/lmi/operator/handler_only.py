"""The engine and service of a model that has only an operator's handler, and nothing to generate with. On the event loop."""

from __future__ import annotations

from typing import Any, NoReturn

from dragoman.engine.base import Capabilities, EngineStats, Health, Outputs
from dragoman.errors import UnsupportedFeature
from dragoman.types import EngineRequest


class NoGeneration:
    """The service. `reason`: why nothing can be generated."""

    def __init__(self, name: str, reason: str) -> None:
        self._message = f"model {name} answers on the LMI routes only, with its own handler: {reason}"

    async def generate(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedFeature(self._message, param="model")

    run = prepare = generate


class NoEngine:
    """The engine. Its service refuses whatever would come to it."""

    capabilities = Capabilities(max_model_len=1, vocab_size=1)

    async def start(self) -> None:
        """Nothing to start."""

    def generate(self, request: EngineRequest) -> Outputs:
        raise UnsupportedFeature("there is no engine: only this model's handler answers", param="model")

    def health(self) -> Health:
        return Health(is_alive=True)

    def stats(self) -> EngineStats:
        return EngineStats()

    async def shutdown(self, drain_s: float) -> None:
        """Nothing to stop: the handler's threads do not keep the process."""
