"""A start of the engine on vLLM, whose words and processes are made up here: it needs no vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from dragoman.engine.base import Capabilities, EngineTools
from dragoman.engine.vllm.engine import Driver, VllmEngine
from dragoman.engine.vllm.surface import AsyncEngine, Surface
from dragoman.errors import EngineDead
from dragoman.models.config import ModelError
from dragoman.types import EngineRequest, SamplingParams


class Dead(Exception):
    """vLLM's processes have ended."""


class WithoutKernels:
    """Starts, and dies of the first token."""

    def __init__(self) -> None:
        self.errored = False
        self.num_shutdowns = 0

    async def generate(self, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        """Dies before the first output."""
        outputs: list[Any] = []
        for output in outputs:
            yield output
        self.errored = True
        raise Dead("'_C' object has no attribute 'gemm'")

    def shutdown(self) -> None:
        """Counts."""
        self.num_shutdowns += 1


def test_a_model_of_which_vllm_cannot_compute_a_token_does_not_start() -> None:
    """It was taken for started, and the first request ended the engine."""
    llm = WithoutKernels()
    surface = Surface(lambda *_: None, lambda *_: None, lambda *_: None, (), (), (Dead,))
    driver = Driver(cast("AsyncEngine", llm), surface)
    engine = VllmEngine(driver, Capabilities(64, 100, 5), cast("EngineTools", None))

    async def check() -> None:
        with pytest.raises(ModelError, match="cannot compute a token: vLLM's engine has died; its log says why"):
            await engine.start()
        assert llm.num_shutdowns == 1
        assert not engine.health().is_alive
        with pytest.raises(EngineDead):
            await anext(engine.generate(EngineRequest("r", (1,), SamplingParams(), 1, 0)))

    asyncio.run(check())
