"""vLLM on the demo model, started once for all tests of a process: it takes half a minute.

Does: hand out engines that share vLLM's processes, on one event loop. What cannot be asked of such an engine is whether its
shutdown ends them; `tests/engine/vllm` asks that of one of its own. Needs the package vllm, once an engine is made.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

from dragoman.compose import engine_tools
from dragoman.config.resolve import demo_model_dir
from dragoman.engine.base import Engine, EngineTools
from dragoman.engine.factory import EngineSetup
from dragoman.engine.vllm import factory as vllm_factory
from dragoman.engine.vllm.engine import Driver, Gauges, VllmEngine
from dragoman.engine.vllm.factory import capabilities_of, factory
from dragoman.engine.vllm.surface import AsyncEngine
from dragoman.tokenizer.hf_tokenizer import load_tokenizer

_LIVE: list[Shared] = []
_COUNTING: list[CountingGauges] = []


class CountingGauges(Gauges):
    """Also counts the tokens of all steps, for whomever they were."""

    def __init__(self) -> None:
        super().__init__()
        self.num_generated = 0
        _COUNTING.append(self)

    def record(self, scheduler_stats: Any, iteration_stats: Any, engine_idx: int = 0, **others: Any) -> None:
        """As vLLM calls it."""
        super().record(scheduler_stats, iteration_stats, engine_idx, **others)
        if iteration_stats is not None:
            self.num_generated += iteration_stats.num_generation_tokens


def num_generated() -> int:
    """The tokens that vLLM has generated so far."""
    return sum(gauges.num_generated for gauges in _COUNTING)


class Shared:
    """vLLM's engine, which goes on when one of its users ends, until `end`."""

    def __init__(self, llm: AsyncEngine) -> None:
        self._llm = llm

    @property
    def errored(self) -> bool:
        """Whether it has died."""
        return self._llm.errored

    @property
    def renderer(self) -> Any:
        """As vLLM's."""
        return self._llm.renderer

    def generate(self, *arguments: Any, **options: Any) -> AsyncGenerator[Any, None]:
        """As vLLM's."""
        return self._llm.generate(*arguments, **options)

    async def add_lora(self, lora_request: Any) -> bool:
        """As vLLM's."""
        return await self._llm.add_lora(lora_request)

    async def remove_lora(self, lora_id: int) -> bool:
        """As vLLM's."""
        return await self._llm.remove_lora(lora_id)

    async def collective_rpc(self, method: str, *, args: tuple[Any, ...]) -> list[Any]:
        """As vLLM's."""
        return await self._llm.collective_rpc(method, args=args)

    def shutdown(self) -> None:
        """Nothing: others may use it."""

    def end(self) -> None:
        """Shut it down and let it go: if it lives until the process exits, it writes an error there."""
        self._llm.shutdown()
        del self._llm


def setup_of(max_num_seqs: int, max_model_len: int) -> EngineSetup:
    """The demo model in f32, computed step by step as it is written."""
    options = {"dtype": "f32", "max_model_len": max_model_len, "max_num_seqs": max_num_seqs, "kv_cache_gb": 0.125}
    return EngineSetup(demo_model_dir(), options, extra={"enforce_eager": "true"})


@cache
def tools() -> EngineTools:
    """Those of the demo model's tokenizer."""
    return engine_tools(load_tokenizer(demo_model_dir()))


@cache
def _driver(max_num_seqs: int, max_model_len: int) -> tuple[Driver, Any]:
    with warnings.catch_warnings(), patch.object(vllm_factory, "Gauges", CountingGauges):
        warnings.simplefilter("ignore")  # those of vLLM and torch, which they give themselves
        return _shared(*factory.load(setup_of(max_num_seqs, max_model_len)).drive(0))


def _shared(driver: Driver, config: Any) -> tuple[Driver, Any]:
    """The driver for several users, its engine kept for `close`.

    A function, as an error kept by an import of vLLM's holds all that is on the stack when it is first loaded.
    """
    _LIVE.append(Shared(driver.llm))
    return replace(driver, llm=_LIVE[-1]), config


def engine(max_num_seqs: int, max_model_len: int) -> Engine:
    """An engine of its own, over processes that run one sequence at a time, or eight."""
    count = 1 if max_num_seqs == 1 else 8
    driver, config = _driver(count, max_model_len)
    setup = setup_of(count, max_model_len)
    return VllmEngine(driver, capabilities_of(config.model_config, setup, tools()), tools())


def prepare(max_model_len: int) -> None:
    """Start all that `engine` hands out, once."""
    for count in (8, 1):
        _driver(count, max_model_len)


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on the one event loop that vLLM's engines live on."""
    _runner().run(work)


def close() -> None:
    """End what was started."""
    for shared in _LIVE:
        shared.end()
    if _LIVE:
        _runner().close()
    _LIVE.clear()
    _driver.cache_clear()
