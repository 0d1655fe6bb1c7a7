"""The start of the engine on vLLM, and what it refuses; vLLM's words and processes are made up here."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.config.bundled import BUNDLED
from dragoman.engine.base import Capabilities, EngineTools, check_request
from dragoman.engine.vllm.adapters import AdapterPlan
from dragoman.engine.vllm.engine import Driver, VllmEngine
from dragoman.engine.vllm.surface import AsyncEngine, Surface
from dragoman.errors import CapacityError, EngineDead, ServerError, UnsupportedFeature
from dragoman.models.config import ModelError
from dragoman.types import EngineRequest, SamplingParams
from tests.support.adapters import matrices_of, write_adapter

DEMO = BUNDLED["demo"]


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
        for token in list[Any]():
            yield token
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


class WithAToken:
    """Makes one token for each request, and counts them."""

    def __init__(self) -> None:
        self.errored = False
        self.num_requests = 0

    async def generate(self, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        """A token."""
        self.num_requests += 1
        token = SimpleNamespace(token_ids=[1], cumulative_logprob=None, logprobs=None, finish_reason="length")
        yield SimpleNamespace(outputs=[token], num_cached_tokens=0, prompt_logprobs=None)

    def shutdown(self) -> None:
        """Nothing is left."""


def test_what_would_be_refused_is_told_without_asking_vllm() -> None:
    """Capabilities do not tell of temperatures that are too low, or of requests that are too long."""
    llm = WithAToken()
    surface = Surface(lambda *_: None, lambda *_: None, lambda *_: None, (), (), (Dead,))
    engine = VllmEngine(Driver(cast("AsyncEngine", llm), surface), Capabilities(64, 100, 5), cast("EngineTools", None))

    def asked(temperature: float = 1.0, max_tokens: int = 4) -> EngineRequest:
        return EngineRequest("r", (1,), SamplingParams(temperature=temperature), max_tokens, 0)

    async def check() -> None:
        await engine.start()
        num_before = llm.num_requests
        check_request(engine, asked())
        refused: dict[type[ServerError], EngineRequest] = {
            UnsupportedFeature: asked(temperature=1e-5),
            CapacityError: asked(max_tokens=64),
        }
        for kind, request in refused.items():
            with pytest.raises(kind) as told:
                check_request(engine, request)
            with pytest.raises(kind) as raised:
                await anext(engine.generate(request))
            assert str(told.value) == str(raised.value)
        assert llm.num_requests == num_before
        llm.errored = True
        with pytest.raises(EngineDead):
            check_request(engine, asked())
        await engine.shutdown(0.0)

    asyncio.run(check())


def test_after_the_shutdown_nothing_holds_vllms_engine() -> None:
    """vLLM's engine wrote an error at the process's exit, where adapters were served."""
    llm = WithAToken()
    there = weakref.ref(llm)
    surface = Surface(lambda *_: None, lambda *_: None, lambda *_: None, (), (), (Dead,))
    plan = AdapterPlan({}, num_slots=1, rank=8, takes_more=True, shapes={})
    driver = Driver(cast("AsyncEngine", llm), surface)
    engine = VllmEngine(driver, Capabilities(64, 100, 5), cast("EngineTools", None), plan)
    asyncio.run(started_and_shut_down(engine))
    del llm, driver
    gc.collect()
    assert there() is None
    assert engine.capabilities.adapters == ()


async def started_and_shut_down(engine: VllmEngine) -> None:
    await engine.start()
    await engine.shutdown(0.0)


def test_an_adapter_that_is_loaded_while_the_engine_ends_is_told_so(tmp_path: Path) -> None:
    surface = Surface(lambda *_: None, lambda *_: None, lambda *_: None, (), (), (Dead,))
    plan = AdapterPlan({}, num_slots=1, rank=8, takes_more=True, shapes=matrices_of(DEMO, ("q_proj",)))
    driver = Driver(cast("AsyncEngine", WithAToken()), surface)
    engine = VllmEngine(driver, Capabilities(64, 100, 5), cast("EngineTools", None), plan)
    write_adapter(tmp_path, matrices_of(DEMO, ("q_proj",)))

    async def check() -> None:
        await engine.start()
        loading = asyncio.create_task(engine.load_adapter("one", tmp_path))
        await asyncio.sleep(0)  # it reads the files
        await engine.shutdown(0.0)
        with pytest.raises(EngineDead, match="was shut down"):
            await loading

    asyncio.run(check())
