"""Divides memory among models: the parts at a start, then a ledger of the bytes that each model holds, and the free ones.

The ledger is used by `ModelHost` alone. Its sum exceeds the limit in two cases only: an operator's start asked for larger
caches (`is_forced`), or a model took more than its estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.config.resolve import Config
from dragoman.engine.base import MemoryNeeds
from dragoman.errors import NoMemory
from dragoman.host.loading import has_model
from dragoman.host.machine import GIB, MIB, available_memory_bytes, in_mib
from dragoman.server.hosting import ModelMemory

# The cache's share of free memory. The rest is for activations, HTTP and the page cache.
_SHARE_OF_FREE_MEMORY = 0.5


@dataclass(slots=True, eq=False)
class Holding:
    """The bytes of one loading or loaded model. `handed_over`: promised to others once it is gone."""

    name: str
    memory: ModelMemory
    handed_over: int = 0

    @property
    def num_bytes(self) -> int:
        return self.memory.total - self.handed_over


class MemoryLedger:
    """The holdings of all models. `limit_bytes`: their largest sum; `measure` returns the machine's free bytes."""

    def __init__(self, limit_bytes: int, measure: Callable[[], int]) -> None:
        self.limit_bytes = limit_bytes
        self._measure = measure
        self.holdings: list[Holding] = []  # oldest first

    @property
    def held_bytes(self) -> int:
        return sum(holding.num_bytes for holding in self.holdings)

    def available_bytes(self, leaving: Sequence[Holding] = ()) -> int:
        """The bytes for one more model, once the `leaving` ones have gone.

        An allocated but unused cache still looks free to the machine, and the ledger does not know other programs.
        """
        freed = sum(holding.num_bytes for holding in leaving)
        return max(0, min(self.limit_bytes - self.held_bytes, self._measure()) + freed)

    def reserve(
        self, name: str, memory: ModelMemory, leaving: Sequence[Holding] = (), *, is_forced: bool = False
    ) -> Holding:
        """Reserve room for a model, partly in the place of `leaving` ones. Raises: NoMemory, without any change."""
        if not is_forced:
            self.check(name, memory.total, leaving)
        shortfall = memory.total - max(0, self.limit_bytes - self.held_bytes)
        for holding in leaving:
            part = max(0, min(shortfall, holding.num_bytes))
            holding.handed_over += part
            shortfall -= part
        holding = Holding(name, memory)
        self.holdings.append(holding)
        return holding

    def check(self, name: str, needed_bytes: int, leaving: Sequence[Holding] = ()) -> None:
        """Raises: NoMemory with the numbers if a model of that size does not fit."""
        available = self.available_bytes(leaving)
        if needed_bytes > available:
            raise NoMemory(
                f"Model {name} does not fit into memory: it needs {in_mib(needed_bytes)}, {available // MIB} MiB are "
                f"available{' once idle models are unloaded' if leaving else ''} ({self._shares()})"
            )

    def correct(self, holding: Holding, memory: ModelMemory) -> None:
        if holding in self.holdings:
            holding.memory = memory

    def release(self, holding: Holding) -> None:
        if holding in self.holdings:
            self.holdings.remove(holding)

    def _shares(self) -> str:
        totals: dict[str, int] = {}
        for holding in self.holdings:
            totals[holding.name] = totals.get(holding.name, 0) + holding.num_bytes
        largest_first = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{name} holds {in_mib(size)}" for name, size in largest_first) or "no model is loaded"


def split_memory(configs: Sequence[Config]) -> list[int | None]:
    """For each model its bytes besides the weights: equal parts of what all weights leave, None if alone.

    Models with `kv_cache_gb` take that. Decided before the first load, as an allocated but unused cache still looks
    free.
    """
    if len(configs) == 1:
        return [None]
    caches = [config.engine.kv_cache_gb for config in configs if has_model(config)]
    taken = sum(int(size * GIB) for size in caches if size is not None)
    weights = sum(file.stat().st_size for config in configs for file in _weight_files(config.model_dir))
    most_gb = configs[0].server.memory_gb if configs else None
    free = available_memory_bytes() if most_gb is None else min(available_memory_bytes(), int(most_gb * GIB))
    rest = max(0, free - taken - weights)
    return [rest // max(1, caches.count(None))] * len(configs)


def _weight_files(model: Path) -> Iterable[Path]:
    return (model,) if model.is_file() else (*model.glob("*.safetensors"), *model.glob("*.gguf"))


def cache_bytes(needs: MemoryNeeds, memory_bytes: int) -> int:
    """The bytes of cache that a model will probably allocate if it may use `memory_bytes` besides its weights."""
    return max(min(needs.useful_cache, int(memory_bytes * _SHARE_OF_FREE_MEMORY)), needs.least_cache)
