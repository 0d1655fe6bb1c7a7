"""Adapters (LoRA) on vLLM: its start arguments for them, and which request uses which. On the event loop.

vLLM may silently skip an adapter's modules, and one that it cannot load while requests run ends its processes. So
adapters are checked and loaded before the first request uses them, and vLLM's workers report skipped modules.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from dragoman.engine.factory import EngineOptionError, EngineSetup, adapter_room
from dragoman.engine.vllm.surface import AsyncEngine
from dragoman.engine.vllm.worker import METHOD, AdapterWitness
from dragoman.errors import Conflict, EngineDead, InvalidRequest, NoMemory, NotFound, Overloaded, UnsupportedFeature
from dragoman.models.adapters.adapted_model import check_shapes, refuse_unknown
from dragoman.models.adapters.files import Adapter, gguf_file, read_peft_adapter
from dragoman.models.config import ModelError
from dragoman.models.stored.opening import stored_weights

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)

_NUMBER_BYTES = 4


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """The adapters for vLLM's start. `first`: loaded at the start; `shapes`: of the model's matrices."""

    first: Mapping[str, Path]
    num_slots: int
    rank: int
    takes_more: bool
    shapes: Mapping[str, tuple[int, ...]]

    def arguments(self) -> dict[str, Any]:
        witness = f"{AdapterWitness.__module__}.{AdapterWitness.__qualname__}"
        room = {"max_loras": self.num_slots, "max_lora_rank": self._rank_there}
        return {"enable_lora": True, "worker_extension_cls": witness} | room

    @property
    def num_bytes(self) -> int:
        """The most bytes that vLLM allocates for them on a processor."""
        return self.num_slots * self._rank_there * _NUMBER_BYTES * sum(map(sum, self.shapes.values()))

    @property
    def _rank_there(self) -> int:
        return next(rank for rank in RANKS if rank >= self.rank)

    def check(self, adapter: Adapter) -> None:
        """Raises: ModelError if the model lacks a matrix of the adapter, or the rank is too large."""
        if adapter.rank > self.rank:
            raise ModelError(
                f"{adapter.path}: the adapter has rank {adapter.rank}, allowed: at most max_lora_rank {self.rank}"
            )
        refuse_unknown(adapter, [module for module in adapter.modules if module not in self.shapes])
        for module in adapter.modules:
            check_shapes(adapter, module, self.shapes[module])


def plan_adapters(setup: EngineSetup) -> AdapterPlan | None:
    """None if there are no adapters and none can be loaded. Raises: EngineOptionError, ModelError."""
    options = setup.options
    first = {name: Path(path).resolve() for name, _, path in (text.partition("=") for text in options.get("lora", ()))}
    takes_more = bool(options.get("enable_lora"))
    if not first and not takes_more:
        return None
    adapters = [_read(directory) for directory in first.values()]
    ranks = [adapter.rank for adapter in adapters]
    num_slots, rank = len(ranks), max(ranks, default=0)
    if takes_more:
        num_slots, rank = adapter_room(ranks, options.get("max_loras", 4), options.get("max_lora_rank"))
    if rank > RANKS[-1]:
        name = "max_lora_rank" if takes_more and options.get("max_lora_rank") else "lora"
        raise EngineOptionError(name, f"must be of rank {RANKS[-1]} at most with engine=vllm, got {rank}")
    plan = AdapterPlan(first, num_slots, rank, takes_more, _shapes(setup.model_dir))
    for adapter in adapters:
        plan.check(adapter)
    return plan


def _read(path: Path) -> Adapter:
    """Raises: ModelError, also for an adapter that vLLM does not support."""
    file = gguf_file(path)
    if file is not None:
        raise ModelError(f"{file} is a GGUF file, allowed with engine=vllm: an adapter directory in PEFT's format")
    return read_peft_adapter(path)


def _shapes(model_dir: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of layers' matrices by module name in the checkpoint, without experts and their routers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in stored_weights(model_dir).shapes().items():
        module, _, kind = name.rpartition(".")
        parts = module.split(".")
        is_dense = "experts" not in parts and parts[-1] not in ("gate", "router")
        if kind == "weight" and len(shape) == 2 and is_dense and any(part.isdigit() for part in parts):
            shapes[module] = shape
    return shapes


@dataclass(slots=True)
class Held:
    """An adapter that vLLM has. `words`: vLLM's request for it, whose name is never used twice.

    vLLM's prefix cache distinguishes adapters by that name, and a later adapter may have the same name here.
    """

    number: int
    words: Any
    num_users: int = 0


class VllmAdapters:
    """The adapters of one engine on vLLM. `make_words`: (name, number, directory) -> vLLM's request for an adapter."""

    def __init__(self, plan: AdapterPlan, llm: AsyncEngine, make_words: Callable[[str, int, str], Any]) -> None:
        self._plan = plan
        self._running: AsyncEngine | None = llm  # None after `close`
        self._make_words = make_words
        self._numbers = count(1)
        self._by_name: dict[str, Held] = {}
        self._held: list[Held] = []  # unloaded ones too, until their place is needed
        self._changes = asyncio.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    @property
    def _llm(self) -> AsyncEngine:
        """Raises: EngineDead after `close`."""
        if self._running is None:
            raise EngineDead("the engine was shut down")
        return self._running

    def close(self) -> None:
        """Let vLLM's engine go: one that lives until the process exits writes an error there."""
        self._running = None

    async def load_first(self) -> None:
        """Have vLLM load the first adapters. Raises: ModelError with vLLM's message."""
        for name, directory in self._plan.first.items():
            try:
                self._by_name[name] = await self._add(name, directory)
            except Exception as error:  # vLLM raises errors of its processes as plain exceptions
                raise ModelError(f"{directory}: vLLM does not load this adapter: {error}") from error

    def use(self, name: str) -> Held:
        """The adapter, held until `release`. Raises: UnsupportedFeature if it is gone."""
        if name not in self._by_name:
            raise UnsupportedFeature(f"adapter {name} has just been unloaded", param="adapter")
        held = self._by_name[name]
        held.num_users += 1
        return held

    def release(self, held: Held) -> None:
        held.num_users -= 1

    async def load(self, name: str, directory: Path, *, is_replacing: bool) -> None:
        async with self._changes:
            if name in self._by_name and not is_replacing:
                raise Conflict(f"Adapter {name} is already loaded", param="name")
            try:
                self._plan.check(await asyncio.to_thread(_read, directory))
            except ModelError as error:
                raise InvalidRequest(f"Adapter {name} cannot be loaded: {error}", param="src") from error
            await self._make_room(name)
            try:
                self._by_name[name] = await self._add(name, directory)
            except Exception as error:
                if self._llm.errored:
                    raise EngineDead(f"Adapter {name} cannot be loaded: vLLM's engine has died") from error
                raise InvalidRequest(f"Adapter {name} cannot be loaded: vLLM says {error}", param="src") from error

    async def unload(self, name: str) -> None:
        async with self._changes:
            if name not in self._by_name:
                raise NotFound(f"Adapter {name} is not loaded", param="name")
            del self._by_name[name]

    async def _add(self, name: str, directory: Path) -> Held:
        number = next(self._numbers)
        held = Held(number, self._make_words(f"{name}#{number}", number, str(directory)))
        try:
            await self._llm.add_lora(held.words)
            answers = await self._llm.collective_rpc(METHOD, args=(number,))
            left_out = set.intersection(*map(set, answers))  # a worker may have only some layers
            if left_out:
                raise ModelError(f"it has no place for {', '.join(sorted(left_out)[:3])}")
        except Exception:
            with contextlib.suppress(Exception):  # vLLM may not have it
                await self._llm.remove_lora(number)
            raise
        self._held.append(held)
        return held

    async def _make_room(self, name: str) -> None:
        """Have vLLM drop an unloaded adapter if it is full. Raises: NoMemory, Overloaded."""
        if len(self._held) < self._plan.num_slots:
            return
        served = {held.number for held in self._by_name.values()}
        gone = [held for held in self._held if held.number not in served]
        if not gone:
            raise NoMemory(
                f"Adapter {name} does not fit: max_loras is {self._plan.num_slots}, loaded: {', '.join(self._by_name)}"
            )
        idle = [held for held in gone if not held.num_users]
        if not idle:
            raise Overloaded(f"Adapter {name} has to wait: requests still use an unloaded adapter")
        await self._llm.remove_lora(idle[0].number)
        self._held.remove(idle[0])
