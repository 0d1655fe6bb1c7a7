"""Loads the library of kernels once, and calls its entry points, on any thread. native/build.py builds it.

Memory that the library holds, for packed weights, is shown to numpy. Operations ask for it by its number, and keep it. The
library frees it when neither operations nor arrays use it. As inputs of a node, weights would cost two microseconds each, at
every step.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dragoman.kernels import presence

PANEL = 16  # outputs that lie together
FLOATS = {"bf16": "bfloat16", "f16": "float16"}  # formats that hold numbers as they are, by numpy's names of these
CHUNK = 32  # columns of which groups are multiples, unless a group is all columns

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_MATRIX = (ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)  # format, group, outputs, columns
_POINTERS = (ctypes.c_void_p, ctypes.c_void_p)
_CACHES = ("f32", "bf16", "f16", "u8")  # in the order of native/attention.hpp
_NUMBERS = ("float32", "float16", "bfloat16")  # in the order of native/pack.hpp


class LibraryMissing(Exception):
    """There is no library of kernels; the message says why."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a packed matrix. `format`: a name in native/formats.hpp. `group`: columns that share a scale."""

    format: str
    group: int
    outputs: int
    columns: int


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded library. `instruction_set`: of its products. `digest`: of what it was built from.

    `quick`: the same, called without releasing the interpreter's lock: while another thread imports modules, it takes
    milliseconds to get that back.
    """

    path: Path
    entries: ctypes.CDLL
    quick: ctypes.PyDLL
    instruction_set: str
    digest: str

    def words(self, layout: Layout) -> tuple[int, int, int, int]:
        """A layout as entry points take it, which check nothing. Raises: ValueError if no matrix is packed so."""
        number = self.quick_entry("dragoman_format", ctypes.c_int32, ctypes.c_char_p)(layout.format.encode())
        is_whole = layout.group > 0 and (layout.group % CHUNK == 0 or layout.group >= layout.columns)
        if number < 0 or not is_whole or layout.outputs < 1 or layout.columns < 1:
            raise ValueError(f"no matrix is packed as {layout}")
        return number, layout.group, layout.outputs, layout.columns

    def packed_bytes(self, layout: Layout) -> int:
        return int(self.quick_entry("dragoman_packed_bytes", ctypes.c_int64, *_MATRIX)(*self.words(layout)))

    def product(self, layout: Layout, packed: Bytes, rows: Floats) -> Floats:
        """Rows times the matrix, on this thread: f32 [rows, outputs]. Raises: ValueError if sizes do not fit."""
        rows = np.ascontiguousarray(rows, np.float32)
        if rows.ndim != 2 or rows.shape[1] != layout.columns:
            raise ValueError(f"rows {rows.shape} do not fit {layout}")
        results = np.empty((len(rows), layout.outputs), np.float32)
        entry = self.entry("dragoman_product", None, *_MATRIX, *_POINTERS, ctypes.c_int64, ctypes.c_void_p)
        entry(*self.words(layout), self._data(layout, packed), rows.ctypes.data, len(rows), results.ctypes.data)
        return results

    def pack_gguf(self, layout: Layout, first: int, rows: Bytes, out: Bytes) -> None:
        """Pack rows of a GGUF file, u8 [outputs, bytes], as outputs from `first`, a multiple of 16. Raises: ValueError."""
        row_bytes = int(self.quick_entry("dragoman_gguf_row_bytes", ctypes.c_int64, *_MATRIX)(*self.words(layout)))
        if rows.ndim != 2 or rows.shape[1] != row_bytes:
            raise ValueError(f"rows {rows.shape} do not fit {layout}")
        self._pack("dragoman_pack_gguf", layout, first, [rows], out)

    def pack_gguf_file(
        self,
        layout: Layout,
        first: int,
        count: int,
        file: tuple[int, int],
        out: Bytes,
        order: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Pack `count` outputs from rows of an open GGUF file: `file` is its descriptor, and where the rows begin.

        `order`: numbers of the rows, None = the first ones. Raises: ValueError for wrong sizes or an unreadable file.
        """
        words, data = self.words(layout), self._data(layout, out)
        self._check_part(layout, first, count)
        order = None if order is None else np.ascontiguousarray(order, np.int64)
        if order is not None and (order.shape != (count,) or (count and order.min() < 0)):
            raise ValueError(f"an order {order.shape} does not fit {count} outputs")
        takes = (*_MATRIX, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32, ctypes.c_int64, *_POINTERS)
        entry = self.entry("dragoman_pack_gguf_file", ctypes.c_int32, *takes)
        failure = entry(*words, first, count, *file, None if order is None else order.ctypes.data, data)
        if failure:
            why = "it has become shorter" if failure < 0 else os.strerror(failure)
            raise ValueError(f"its file cannot be read: {why}")

    def pack_numbers(self, layout: Layout, first: int, rows: npt.NDArray[Any], out: Bytes) -> None:
        """Quantise outputs from `first` on, a multiple of 16, in the groups of the layout, i4z or i8z, and pack them.

        Shapes: rows [outputs, columns] of f32, f16 or bfloat16. Raises: ValueError for wrong sizes, or large or
        infinite numbers.
        """
        if layout.format not in ("i4z", "i8z") or rows.shape[1:] != (layout.columns,):
            raise ValueError(f"rows {rows.shape} do not fit {layout}")
        number = _NUMBERS.index(rows.dtype.name)
        if not self._pack("dragoman_pack_numbers", layout, first, [rows], out, number, returns=ctypes.c_bool):
            raise ValueError("it holds numbers that are not finite, or too large for a scale of f16")

    def pack_floats(self, layout: Layout, first: int, rows: npt.NDArray[Any], out: Bytes) -> None:
        """Pack rows [outputs, columns] of the layout type as outputs from `first`, a multiple of 16. Raises: ValueError."""
        if FLOATS.get(layout.format) != rows.dtype.name or rows.shape[1:] != (layout.columns,):
            raise ValueError(f"rows {rows.shape} of {rows.dtype.name} do not fit {layout}")
        self._pack("dragoman_pack_floats", layout, first, [rows], out)

    def pack_groups(
        self, layout: Layout, first: int, codes: Bytes, scales: npt.NDArray[np.float16], minima: Any, out: Bytes
    ) -> None:
        """Pack outputs from `first` on, a multiple of 16. `minima`: zero points of a byte, or f16; None if there are
        none.

        Shapes: codes u8 or i8 [outputs, columns]; scales, minima [outputs, groups]. Raises: ValueError.
        """
        shape = (len(codes), -(-layout.columns // layout.group))
        if codes.shape[1:] != (layout.columns,) or scales.shape != shape or scales.dtype != np.float16:
            raise ValueError(f"codes {codes.shape} and scales {scales.shape} do not fit {layout}")
        if minima is not None and minima.shape != shape:
            raise ValueError(f"minima {minima.shape} do not fit {layout}")
        self._pack("dragoman_pack_groups", layout, first, [codes, scales, minima], out)

    def _pack(
        self, name: str, layout: Layout, first: int, arrays: list[Any], out: Bytes, *numbers: int, returns: Any = None
    ) -> Any:
        """The first of `arrays` has a row for each output."""
        words, data, count = self.words(layout), self._data(layout, out), len(arrays[0])
        self._check_part(layout, first, count)
        kept = [None if array is None else np.ascontiguousarray(array) for array in arrays]
        places = [None if array is None else array.ctypes.data for array in kept]
        takes = [*[ctypes.c_int64] * 2, *[ctypes.c_int32] * len(numbers), *[ctypes.c_void_p] * (len(places) + 1)]
        return self.entry(name, returns, *_MATRIX, *takes)(*words, first, count, *numbers, *places, data)

    def _check_part(self, layout: Layout, first: int, count: int) -> None:
        is_last = first + count == layout.outputs
        if first % PANEL or not 0 <= first <= first + count <= layout.outputs or (count % PANEL and not is_last):
            raise ValueError(f"outputs {first} to {first + count} are not whole panels of {layout}")

    def unpack_rows(self, layout: Layout, packed: Bytes, indices: npt.NDArray[np.int64]) -> Floats:
        """Rows of the matrix, f32 [rows, columns]. Raises: ValueError if sizes do not fit, IndexError for no row."""
        indices = np.ascontiguousarray(indices, np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < layout.outputs:
            raise IndexError(f"rows {indices.min()} to {indices.max()} of {layout}")
        results = np.empty((len(indices), layout.columns), np.float32)
        entry = self.entry("dragoman_unpack_rows", None, *_MATRIX, *_POINTERS, ctypes.c_int64, ctypes.c_void_p)
        entry(*self.words(layout), self._data(layout, packed), indices.ctypes.data, len(indices), results.ctypes.data)
        return results

    @property
    def attends(self) -> bool:
        """False for a library that an earlier version has built, which has only products."""
        return hasattr(self.entries, "dragoman_block_bytes")

    def block_bytes(self, cache_type: str, head_size: int, value_size: int) -> tuple[int, int]:
        """The bytes of a block of keys of one head, and of a block of values."""
        keys, values = ctypes.c_int64(), ctypes.c_int64()
        pointer = ctypes.POINTER(ctypes.c_int64)
        takes = (ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, pointer, pointer)
        numbers = (_CACHES.index(cache_type), head_size, value_size)
        self.entry("dragoman_block_bytes", None, *takes)(*numbers, ctypes.byref(keys), ctypes.byref(values))
        return keys.value, values.value

    def entry(self, name: str, returns: Any, *takes: Any) -> Callable[..., Any]:
        """An entry point. ctypes keeps one object for each name, so declaring it again changes nothing."""
        return _declared(self.entries, name, returns, takes)

    def quick_entry(self, name: str, returns: Any, *takes: Any) -> Callable[..., Any]:
        return _declared(self.quick, name, returns, takes)

    def _data(self, layout: Layout, packed: Bytes) -> int:
        size = self.packed_bytes(layout)
        if packed.nbytes != size or not packed.flags.c_contiguous:
            raise ValueError(f"{packed.nbytes} packed bytes, and {size} are needed for {layout}")
        return packed.ctypes.data


def library() -> Library:
    """The library, loaded once. Raises: LibraryMissing."""
    return _loaded(presence.PLACE / presence.LIBRARY, presence.held())


@cache
def _loaded(path: Path, _held: str | None) -> Library:
    if reason := presence.why_not():
        raise LibraryMissing(reason)
    import openvino  # noqa: F401  # brings the libraries that this one is linked with

    try:
        entries = ctypes.CDLL(str(path))
        instruction_set = entries.dragoman_instruction_set
    except (OSError, AttributeError) as error:
        raise LibraryMissing(f"not loaded: {error}") from error
    instruction_set.restype = ctypes.c_char_p
    return Library(path, entries, ctypes.PyDLL(str(path)), instruction_set().decode(), presence.digest())


def _declared(entries: ctypes.CDLL, name: str, returns: Any, takes: Any) -> Callable[..., Any]:
    function = getattr(entries, name)
    function.restype, function.argtypes = returns, takes
    return function  # type: ignore[no-any-return]


class Memory(NamedTuple):
    """`data`: u8 [bytes], which keeps it. `number`, `offset`: its place for operations. `is_filled`: by an earlier run."""

    data: Bytes
    number: int
    offset: int = 0
    is_filled: bool = False

    def part(self, offset: int, num_bytes: int, *, is_filled: bool = False) -> Memory:
        return Memory(self.data[offset : offset + num_bytes], self.number, self.offset + offset, is_filled)


def of_process(num_bytes: int) -> Memory:
    """Memory of this process, in huge pages where the system has some. Raises: OSError if there is none left."""
    make = library().entry("dragoman_memory_of_process", ctypes.c_int64, ctypes.c_int64)
    return _held(make(num_bytes), num_bytes)


def of_file(descriptor: int, offset: int, num_bytes: int, *, is_written: bool) -> Memory:
    """A part of an open file, from a page's begin on; `is_written`: changes go into the file. Raises: OSError."""
    takes = (ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_bool)
    make = library().entry("dragoman_memory_of_file", ctypes.c_int64, *takes)
    return _held(make(descriptor, offset, num_bytes, is_written), num_bytes)


class _Owner:
    def __init__(self, number: int) -> None:
        self._number = number
        self._let_go = library().entry("dragoman_memory_let_go", None, ctypes.c_int64)

    def __del__(self) -> None:
        self._let_go(self._number)


def _held(number: int, num_bytes: int) -> Memory:
    if not number:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    place = library().entry("dragoman_memory_data", ctypes.c_void_p, ctypes.c_int64)(number)
    view: Any = (ctypes.c_uint8 * num_bytes).from_address(place)
    view.owner = _Owner(number)
    return Memory(np.frombuffer(view, np.uint8), number)
