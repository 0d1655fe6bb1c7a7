"""Rows that are packed straight from an open GGUF file: as those in memory, and a file that ends early is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dragoman.kernels.native import Layout, Library

pytestmark = pytest.mark.usefixtures("kernels")

OUTPUTS, COLUMNS = 37, 512
BEGIN = 96  # of the rows in the file
ROW_BYTES = {"i4": 288, "i4m": 320, "i5": 352, "i5m": 384, "i8": 544, "iq4_nl": 288, "mxfp4": 272} | {
    "q2_k": 168, "q3_k": 220, "q4_k": 288, "q5_k": 352, "q6_k": 420,
}  # fmt: skip


def test_rows_of_a_file_are_packed_as_those_in_memory_in_any_order(kernels: Library, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for name, row_bytes in ROW_BYTES.items():
        layout = Layout(name, 256 if name.endswith("_k") else 32, OUTPUTS, COLUMNS)
        rows = generator.integers(0, 256, (OUTPUTS, row_bytes), dtype=np.uint8)
        path = tmp_path / name
        path.write_bytes(bytes(BEGIN) + rows.tobytes())
        expected, found = (np.full(kernels.packed_bytes(layout), fill, np.uint8) for fill in (1, 2))
        with path.open("rb") as file:
            place = file.fileno(), BEGIN
            kernels.pack_gguf(layout, 0, rows, expected)
            kernels.pack_gguf_file(layout, 0, 16, place, found)
            kernels.pack_gguf_file(layout, 16, 21, (place[0], BEGIN + 16 * row_bytes), found)
            np.testing.assert_array_equal(found, expected, name)
            order = generator.permutation(OUTPUTS)
            kernels.pack_gguf(layout, 0, rows[order], expected)
            kernels.pack_gguf_file(layout, 0, OUTPUTS, place, found, order)
            np.testing.assert_array_equal(found, expected, f"{name} in another order")


def test_a_file_that_became_shorter_or_cannot_be_read_is_told(kernels: Library, tmp_path: Path) -> None:
    layout = Layout("q4_k", 256, OUTPUTS, COLUMNS)
    packed = np.zeros(kernels.packed_bytes(layout), np.uint8)
    path = tmp_path / "short"
    path.write_bytes(bytes(BEGIN + OUTPUTS * ROW_BYTES["q4_k"] - 1))
    with path.open("rb") as file, pytest.raises(ValueError, match="its file cannot be read: it has become shorter"):
        kernels.pack_gguf_file(layout, 0, OUTPUTS, (file.fileno(), BEGIN), packed)
    with path.open("ab") as file, pytest.raises(ValueError, match="its file cannot be read: Bad file descriptor"):
        kernels.pack_gguf_file(layout, 0, OUTPUTS, (file.fileno(), BEGIN), packed)
