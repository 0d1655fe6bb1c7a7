"""What a lossy type of GGUF files loses, and what storing its values anew loses beside that, as numbers that were recorded.

The demo model is written in each type, and reads text of the kind that it knows (scripts/record_gguf_divergence.py).
"""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from tests.support.gguf_divergence import LOSSY_TYPES, divergences_of, recorded_divergences, write_demo
from tests.support.tables import table
from tests.support.tiers import width

RECORDED = recorded_divergences()

# The file's values are computed with in f32, which gives nearly the same on every processor. Matrices of 8 bits are
# multiplied in f32 by some, and in bf16 with activations of 8 bits by others, which costs more than the 8 bits do: numbers
# were recorded with the latter, and the former lose a third of them. What 4 bits lose is nearly all there is to it.
FILE_PART = 0.01
INT8_LEAST, INT8_MOST = 1 / 8, 2.0
INT4_LEAST, INT4_MOST = 2 / 3, 1.5


def test_every_lossy_type_is_recorded() -> None:
    assert tuple(RECORDED) == LOSSY_TYPES


@pytest.mark.varies("matrices of 8 bits are multiplied in f32 or in bf16")
@pytest.mark.parametrize("type_name", width(LOSSY_TYPES, ["Q4_K"]))
def test_it_loses_what_was_recorded(type_name: str, tmp_path: Path) -> None:
    found, recorded = divergences_of(type_name, tmp_path), RECORDED[type_name]
    assert found["file"] == pytest.approx(recorded["file"], rel=FILE_PART)
    least = 0 if type_name == "MXFP4" else INT8_LEAST  # in groups as small as its own 8 bits keep its values
    assert recorded["int8"] * least < found["int8"] < recorded["int8"] * INT8_MOST
    assert recorded["int4"] * INT4_LEAST < found["int4"] < recorded["int4"] * INT4_MOST


@table("type_name", LOSSY_TYPES)
def test_every_matrix_of_the_file_is_of_the_type(type_name: str, tmp_path: Path) -> None:
    tensors = gguf.GGUFReader(write_demo(type_name, tmp_path)).tensors
    assert {tensor.tensor_type.name for tensor in tensors if len(tensor.shape) == 2} == {type_name}


def test_more_bits_lose_less() -> None:
    """Of the types of one kind, and 8 bits are always nearly nothing beside what a file of 4 bits or fewer has lost."""
    for kind in (("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"), ("Q4_1", "Q5_1")):
        lost = [RECORDED[name]["file"] for name in kind]
        assert lost == sorted(lost, reverse=True)
    for name in ("Q2_K", "Q3_K", "Q4_K", "Q4_1", "IQ4_NL", "MXFP4"):
        assert RECORDED[name]["int8"] < RECORDED[name]["file"] / 20
