"""The adapters of a rolling engine: their names, and the slots that hold their matrices.

Slots are filled on the engine thread between steps, the rest of the table runs on event loops.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from hashlib import blake2b
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import openvino as ov

from dragoman.engine.rolling.sequence import NO_SLOT, AdapterUse
from dragoman.errors import Conflict, InvalidRequest, NoMemory, NotFound, Overloaded, UnsupportedFeature
from dragoman.models import ModelError
from dragoman.models.adapters.adapted_model import Change, ModelAdapters
from dragoman.models.adapters.files import Adapter
from dragoman.models.adapters.inputs import MASK

Array = npt.NDArray[Any]  # of f32 or bfloat16
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


_LEAST_ROWS = 2  # of a step's matrices


class AdapterBank:
    """The matrices of adapters in `num_slots` slots of `rank` rows each. Made on any thread.

    Pages take no memory until they are written. A step's tensors hold only the rows from the first to the last slot that
    it uses, without copying them, but at least two: OpenVINO computes with a single row in another order.
    """

    def __init__(self, adapters: ModelAdapters, num_slots: int, rank: int) -> None:
        self.num_slots = num_slots
        self.rank = rank
        self._ranks = [0] * num_slots  # of the adapters in the slots
        self._matrices: list[tuple[Any, Array]] = []  # the ports, and the rows of all slots for each
        self._downs: dict[str, Array] = {}
        self._ups: dict[str, list[tuple[Array, Array]]] = {}
        for place in adapters.places:
            down = self._matrix(place.down, place.num_columns)
            self._downs[place.module] = down
            self._ups[place.module] = [(part.rows, self._matrix(part.port, len(part.rows))) for part in place.parts]
        self._shown = (-1, -1)

    def _matrix(self, port: Any, width: int) -> Array:
        stored = ml_dtypes.bfloat16 if port.get_element_type() == ov.Type.bf16 else np.float32
        matrix: Array = np.zeros((self.num_slots * self.rank + 1, width), dtype=stored)
        self._matrices.append((port, matrix))
        return matrix

    def fill(self, slot: int, changes: tuple[Change, ...]) -> None:
        """Put an adapter into a slot that no step uses. Its rank must fit."""
        begin = slot * self.rank
        used = max(self._ranks[slot], *(change.matrices.rank for change in changes))
        for _, matrix in self._matrices:
            matrix[begin : begin + used] = 0
        for place, matrices in changes:
            rows = slice(begin, begin + matrices.rank)
            self._downs[place.module][rows] = matrices.down
            for outputs, up in self._ups[place.module]:
                up[rows] = matrices.up[outputs].T
        self._ranks[slot] = max(change.matrices.rank for change in changes)

    def set_inputs(self, request: Any, slots: npt.NDArray[np.int64] | None, num_tokens: int) -> None:
        """Set a step's inputs. `slots`: one for each of its tokens, perhaps fewer; NO_SLOT = no adapter."""
        begin, end, owners = 0, 0, np.zeros(0, dtype=np.int64)
        if slots is not None and (slots != NO_SLOT).any():
            first, last = slots[slots != NO_SLOT].min(), slots.max()
            begin, end = int(first) * self.rank, int(last) * self.rank + self._ranks[last]
            end = max(end, begin + _LEAST_ROWS)
            owners = np.arange(begin, end) // self.rank
        if self._shown != (begin, end):
            for port, matrix in self._matrices:
                request.set_tensor(port, _shown(matrix[begin:end]))
            self._shown = (begin, end)
        mask = np.zeros((num_tokens, end - begin), dtype=np.float32)
        if len(owners) and slots is not None:
            mask[: len(slots)] = slots[:, None] == owners[None]
        request.set_tensor(MASK, ov.Tensor(mask))


def _shown(rows: Array) -> Any:
    if rows.dtype == np.float32:
        return ov.Tensor(rows, shared_memory=True)
    return ov.Tensor(rows.view(np.float16), ov.Shape(rows.shape), ov.Type.bf16)
