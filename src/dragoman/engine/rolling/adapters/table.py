"""The adapters of an engine. Slots are filled on the engine thread between steps, the rest runs on event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from hashlib import blake2b
from pathlib import Path

import numpy as np

from dragoman.engine.rolling.adapters.bank import AdapterBank
from dragoman.engine.rolling.sequence import AdapterUse
from dragoman.errors import Conflict, InvalidRequest, NoMemory, NotFound, Overloaded, UnsupportedFeature
from dragoman.models import ModelError
from dragoman.models.adapters.loading import Change, ModelAdapters
from dragoman.models.adapters.low_rank import Adapter

RunBetweenSteps = Callable[[Callable[[], None]], "Future[None]"]


class AdapterTable:
    """The adapters of one engine. A slot becomes free when its adapter is unloaded and its last request has ended."""

    def __init__(self, adapters: ModelAdapters, bank: AdapterBank, *, takes_more: bool) -> None:
        self.takes_more = takes_more
        self._adapters = adapters
        self._bank = bank
        self._lock = threading.Lock()
        self._uses: dict[str, AdapterUse] = {}
        self._num_users = [0] * bank.num_slots
        self._taken: set[int] = set()  # slots whose adapters are available, or being loaded
        self._changes = asyncio.Lock()
        for name, adapter in adapters.first.items():
            slot = self._take_slot(name)
            changes = self._changes_of(adapter)
            self._bank.fill(slot, changes)
            self._publish(name, slot, digest_of(changes))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._uses)

    def use(self, name: str) -> AdapterUse:
        """The adapter, held until it is released. Raises: UnsupportedFeature if it is gone."""
        with self._lock:
            if name not in self._uses:
                raise UnsupportedFeature(f"adapter {name} has just been unloaded", param="adapter")
            use = self._uses[name]
            self._num_users[use.slot] += 1
            return use

    def release(self, use: AdapterUse) -> None:
        """Release the adapter of a request that has ended, or whose abort has been sent to the engine thread."""
        with self._lock:
            self._num_users[use.slot] -= 1

    async def load(self, name: str, path: Path, run: RunBetweenSteps, *, is_replacing: bool = False) -> None:
        """Read an adapter and serve it. Raises: as `base.AdapterLoading`."""
        async with self._changes:
            if name in self._uses and not is_replacing:
                raise Conflict(f"Adapter {name} is already loaded", param="name")
            try:
                changes = self._changes_of(await asyncio.to_thread(self._adapters.read, path))
            except ModelError as error:
                raise InvalidRequest(f"Adapter {name} cannot be loaded: {error}", param="src") from error
            digest = await asyncio.to_thread(digest_of, changes)
            slot = self._take_slot(name)
            try:
                await asyncio.wrap_future(run(lambda: self._bank.fill(slot, changes)))
            except BaseException:
                self._taken.discard(slot)
                raise
            self.forget(name)
            self._publish(name, slot, digest)

    def forget(self, name: str) -> bool:
        with self._lock:
            use = self._uses.pop(name, None)
            if use is not None:
                self._taken.discard(use.slot)
            return use is not None

    async def unload(self, name: str) -> None:
        async with self._changes:
            if not self.forget(name):
                raise NotFound(f"Adapter {name} is not loaded", param="name")

    def _changes_of(self, adapter: Adapter) -> tuple[Change, ...]:
        """Raises: ModelError if the adapter does not fit the model."""
        if adapter.rank > self._bank.rank:
            raise ModelError(
                f"{adapter.path}: the adapter has rank {adapter.rank}, allowed: at most max_lora_rank {self._bank.rank}"
            )
        return self._adapters.changes(adapter)

    def _take_slot(self, name: str) -> int:
        with self._lock:
            free = [slot for slot in range(self._bank.num_slots) if slot not in self._taken]
            if not free:
                raise NoMemory(
                    f"Adapter {name} does not fit: max_loras is {self._bank.num_slots}, loaded: {', '.join(self._uses)}"
                )
            idle = [slot for slot in free if not self._num_users[slot]]
            if not idle:
                raise Overloaded(f"Adapter {name} has to wait: requests still use an unloaded adapter")
            self._taken.add(idle[0])
            return idle[0]

    def _publish(self, name: str, slot: int, digest: str) -> None:
        with self._lock:
            self._uses[name] = AdapterUse(name, slot, digest)


def digest_of(changes: Sequence[Change]) -> str:
    whole = blake2b(digest_size=16)
    for place, matrices in sorted(changes, key=lambda change: change.place.module):
        for matrix in (matrices.down, matrices.up):
            whole.update(f"{place.module} {matrix.shape} {matrix.dtype}\n".encode())
            whole.update(np.ascontiguousarray(matrix).data)
    return whole.hexdigest()
