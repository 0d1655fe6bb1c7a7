"""Integers of 4 or 8 bits packed in words of 32 bits, and integers of several matrices below each other.

Made when a graph is built; their rows are computed a part at a time, on the storage's threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dragoman.models.sources.base import Array, ComputedRows

WORD_BITS = 32


def words_of(integers: Array) -> Array:
    words: Array = integers.view(np.uint32)
    return words


def along_columns(
    words: Array, bits: int, num_columns: int, *, is_signed: bool, order: Array | None = None
) -> ComputedRows:
    """A matrix of which a word holds neighbours of a row, the first in its lowest bits.

    `is_signed`: values are stored with half their range added (8 or 128), and handed out without it as i8; else as u8.
    `order`: of the columns handed out. Shapes: words u32 [out, in / values in a word, rounded up].
    """

    def compute(rows: Array) -> Array:
        values = np.ascontiguousarray(rows).view(np.uint8)
        values = (_halves(values) if bits == 4 else values)[:, :num_columns]
        values = values if order is None else values[:, order]
        return _signed(values, bits) if is_signed else values

    return ComputedRows(words, num_columns, compute, _type(is_signed))


def along_rows(words: Array, places: Sequence[int], *, is_signed: bool) -> ComputedRows:
    """A matrix of which a word holds values of neighbouring rows in one column; `places`: where in a word each row is.

    Shapes: words u32 [in, out / len(places)]; values as `along_columns` has them.
    """
    in_word, bits = len(places), WORD_BITS // len(places)

    def compute(rows: Array) -> Array:
        numbers, where = np.unique(rows // in_word, return_inverse=True)
        chosen = np.ascontiguousarray(words[:, numbers].T)  # [words, in]
        values = np.empty((len(numbers), in_word, len(words)), dtype=np.uint8)
        for row, place in enumerate(places):
            values[:, row] = (chosen >> np.uint32(bits * place)) & np.uint32((1 << bits) - 1)
        found = values.reshape(-1, len(words))[where * in_word + rows % in_word]
        return _signed(found, bits) if is_signed else found

    return ComputedRows(np.arange(words.shape[1] * in_word), len(words), compute, _type(is_signed))


def flipped(values: Array) -> ComputedRows:
    """Integers of 8 bits with the other sign: u8 [out, in] for i8, and so on, their zero moved by 128."""
    dtype = _type(values.dtype == np.uint8)
    return ComputedRows(values, values.shape[1], lambda rows: (rows.view(np.uint8) ^ np.uint8(0x80)).view(dtype), dtype)


def below(parts: Sequence[Any]) -> ComputedRows:
    """The rows of several matrices of the same width and type; only neighbours may be taken."""
    begins = np.cumsum([0, *(part.shape[0] for part in parts)]).tolist()

    def compute(rows: Array) -> Array:
        first, end = int(rows[0]), int(rows[-1]) + 1
        pieces = [
            np.asarray(part[max(first - begin, 0) : end - begin])
            for part, begin in zip(parts, begins[:-1], strict=True)
            if first < begin + part.shape[0] and end > begin
        ]
        return np.concatenate(pieces)

    return ComputedRows(np.arange(begins[-1]), parts[0].shape[1], compute, parts[0].dtype)


def _type(is_signed: bool) -> np.dtype[Any]:
    return np.dtype(np.int8 if is_signed else np.uint8)


def _halves(packed: Array) -> Array:
    values = np.empty((packed.shape[0], packed.shape[1], 2), dtype=np.uint8)
    np.bitwise_and(packed, 0x0F, out=values[:, :, 0])
    np.right_shift(packed, 4, out=values[:, :, 1])
    return values.reshape(len(packed), -1)


def _signed(values: Array, bits: int) -> Array:
    signed: Array = (values ^ np.uint8(0x80)).view(np.int8) if bits == 8 else values.view(np.int8) - np.int8(8)
    return signed


def unpacked_words(words: Array, bits: int, places: Sequence[int] | None = None) -> Array:
    """All values of words, beside each other. Shapes: u32 [n, m] -> u8 [n, m * values in a word]."""
    in_word = WORD_BITS // bits
    shifts = np.array(places if places is not None else range(in_word), dtype=np.uint32) * np.uint32(bits)
    values: Array = (words[:, :, None] >> shifts) & np.uint32((1 << bits) - 1)
    return values.astype(np.uint8).reshape(len(words), -1)
