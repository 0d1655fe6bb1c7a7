"""Holds the matrices of adapters in consecutive slots. Made on any thread, used on the engine thread.

A step's tensors hold only the rows from the first to the last slot that it uses, without copying them.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import openvino as ov

from dragoman.engine.rolling.sequence import NO_SLOT
from dragoman.models.adapters.inputs import MASK
from dragoman.models.adapters.loading import Change, ModelAdapters

Array = npt.NDArray[Any]  # of f32 or bfloat16


class AdapterBank:
    """`num_slots` slots of `rank` rows each. Pages take no memory until they are written."""

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
        matrix: Array = np.zeros((self.num_slots * self.rank, width), dtype=stored)
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
