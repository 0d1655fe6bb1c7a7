"""Integers of 4 or 8 bits that lie packed in words of 32 bits, and integers of several matrices below each other.

Does: hand out rows of them, computed a part at a time. Does not: know checkpoints' layouts (each has a module of its own),
or scales. Made when a graph is built; their rows are computed on the storage's threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dragoman.models.sources.base import Array

WORD_BITS = 32


def words_of(integers: Array) -> Array:
    """Words of any integer type of 32 bits as u32."""
    words: Array = integers.view(np.uint32)
    return words


class AlongColumns:
    """A matrix of which a word holds neighbours of a row, the first in its lowest bits.

    `is_signed`: values are stored with half their range added (8 or 128), and handed out without it as i8; else as u8.
    `order`: columns are handed out in this order. Shapes: words u32 [out, in / values in a word, rounded up].
    """

    def __init__(
        self, words: Array, bits: int, num_columns: int, *, is_signed: bool, order: Array | None = None
    ) -> None:
        self._words, self._bits, self._num_columns = words, bits, num_columns
        self._is_signed, self._order = is_signed, order

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in]."""
        return len(self._words), self._num_columns

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values."""
        return np.dtype(np.int8 if self._is_signed else np.uint8)

    def __getitem__(self, rows: slice | Array) -> AlongColumns:
        return AlongColumns(
            self._words[rows], self._bits, self._num_columns, is_signed=self._is_signed, order=self._order
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        values = np.ascontiguousarray(self._words).view(np.uint8)
        if self._bits == 4:
            values = _halves(values)
        values = values[:, : self._num_columns]
        if self._order is not None:
            values = values[:, self._order]
        return _signed(values, self._bits) if self._is_signed else values


class AlongRows:
    """A matrix of which a word holds values of neighbouring rows in one column; `places`: where in a word each row is.

    Shapes: words u32 [in, out / len(places)]; rows i64 [rows], those that are handed out; values as `AlongColumns` has them.
    """

    def __init__(self, words: Array, places: Sequence[int], *, is_signed: bool, rows: Array | None = None) -> None:
        self._words, self._places, self._is_signed = words, places, is_signed
        self._rows: Array = np.arange(words.shape[1] * len(places)) if rows is None else rows

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in]."""
        return len(self._rows), len(self._words)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values."""
        return np.dtype(np.int8 if self._is_signed else np.uint8)

    def __getitem__(self, rows: slice | Array) -> AlongRows:
        return AlongRows(self._words, self._places, is_signed=self._is_signed, rows=self._rows[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        in_word, bits = len(self._places), WORD_BITS // len(self._places)
        numbers, where = np.unique(self._rows // in_word, return_inverse=True)
        words = np.ascontiguousarray(self._words[:, numbers].T)  # [words, in]
        values = np.empty((len(numbers), in_word, words.shape[1]), dtype=np.uint8)
        for row, place in enumerate(self._places):
            values[:, row] = (words >> np.uint32(bits * place)) & np.uint32((1 << bits) - 1)
        chosen = values.reshape(-1, words.shape[1])[where * in_word + self._rows % in_word]
        return _signed(chosen, bits) if self._is_signed else chosen


class Flipped:
    """Integers of 8 bits with the other sign: u8 [out, in] for i8, and so on, their zero moved by 128."""

    def __init__(self, values: Array) -> None:
        self._values = values

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in]."""
        rows, columns = self._values.shape
        return rows, columns

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values."""
        return np.dtype(np.uint8 if self._values.dtype == np.int8 else np.int8)

    def __getitem__(self, rows: slice | Array) -> Flipped:
        return Flipped(self._values[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        flipped: Array = (self._values.view(np.uint8) ^ np.uint8(0x80)).view(self.dtype)
        return flipped


class Below:
    """The rows of several matrices of the same width and type, below each other."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._begins = np.cumsum([0, *(part.shape[0] for part in parts)])

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in]."""
        return int(self._begins[-1]), int(self._parts[0].shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values."""
        dtype: np.dtype[Any] = self._parts[0].dtype
        return dtype

    def __getitem__(self, rows: slice | Array) -> Below | Any:
        assert isinstance(rows, slice), "of joined matrices parts are taken"
        begin, end, _ = rows.indices(self.shape[0])
        pieces = [
            part[max(begin - first, 0) : end - first]
            for part, first in zip(self._parts, self._begins[:-1].tolist(), strict=True)
            if begin < first + part.shape[0] and end > first
        ]
        return Below(pieces)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        rows: Array = np.concatenate([np.asarray(part) for part in self._parts])
        return rows


def _halves(packed: Array) -> Array:
    """Of each byte its two halves, the low one first. Shapes: u8 [n, m] -> [n, 2 m]."""
    values = np.empty((packed.shape[0], packed.shape[1], 2), dtype=np.uint8)
    np.bitwise_and(packed, 0x0F, out=values[:, :, 0])
    np.right_shift(packed, 4, out=values[:, :, 1])
    return values.reshape(len(packed), -1)


def _signed(values: Array, bits: int) -> Array:
    """Without the half of the range that was added."""
    signed: Array = (values ^ np.uint8(0x80)).view(np.int8) if bits == 8 else values.view(np.int8) - np.int8(8)
    return signed


def unpacked_words(words: Array, bits: int, places: Sequence[int] | None = None) -> Array:
    """All values of words, beside each other. Shapes: u32 [n, m] -> u8 [n, m * values in a word]."""
    in_word = WORD_BITS // bits
    shifts = np.array(places if places is not None else range(in_word), dtype=np.uint32) * np.uint32(bits)
    values: Array = (words[:, :, None] >> shifts) & np.uint32((1 << bits) - 1)
    return values.astype(np.uint8).reshape(len(words), -1)
