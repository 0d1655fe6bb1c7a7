"""Models over kernels of our own: matrices keep the values of their files, and options without effect are told."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from dragoman.kernels.native import CHUNK, Layout, library
from dragoman.models import ModelOptions, load_model
from dragoman.models.sources.gguf_rows import GGUF_FORMATS, QuantisedRows
from dragoman.models.storage.constants import WeightMemory
from tests.models.test_gguf_families import TYPED, typed_and_plain
from tests.support.family_logits import logits_of
from tests.support.tables import Rows

pytestmark = [pytest.mark.usefixtures("kernels"), pytest.mark.varies("the instruction set is the processor's")]

TOKEN_IDS = [(37 * index) % 290 for index in range(64)]
OWN = ModelOptions("int8", kv_type="u8", kernels="own")


def loss(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def test_matrices_of_gguf_files_keep_their_values(tmp_path: Path) -> None:
    """What is lost is what activations of 8 bits lose; storing values anew as int4 would lose several times as much."""
    with Rows() as rows:
        for name, type_name in (row for row in TYPED if row[0] == "wide"):
            with rows.row(name, type_name):
                typed, plain = typed_and_plain(name, type_name, tmp_path / type_name)
                loaded = load_model(typed, OWN)
                assert (loaded.profile.kernels, loaded.facts.departures) == ("own", ())
                expected = logits_of(load_model(plain, ModelOptions("f32")), TOKEN_IDS)
                assert loss(logits_of(loaded, TOKEN_IDS), expected) < 0.05


def test_packed_matrices_take_no_more_room_than_their_file() -> None:
    outputs, columns = 4096, 3584
    for type_name, form in GGUF_FORMATS.items():
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
        group = columns if block == 1 else max(block, CHUNK)
        packed_bytes = library().packed_bytes(Layout(form, group, outputs, columns))
        in_file = outputs * columns // block * size
        assert in_file <= packed_bytes <= 1.001 * in_file, type_name


def test_matrices_share_few_pieces_of_memory() -> None:
    room = WeightMemory()
    taken = [room.take(30_000_001) for _ in range(60)]
    by_number: dict[int, list[int]] = {}
    for memory in taken:
        assert memory.data.nbytes == 30_000_001
        by_number.setdefault(memory.number, []).append(memory.offset)
    assert len(by_number) <= 7
    for offsets in by_number.values():
        assert all(after - before >= 30_000_001 for before, after in itertools.pairwise(offsets))


def test_rows_in_another_order_are_read_in_it() -> None:
    stored = np.random.default_rng(0).integers(0, 200, (48, 144), np.uint8)
    order = np.random.default_rng(1).permutation(48)
    rows = QuantisedRows(stored, "Q4_K", 256)[order]
    assert rows.shape == (48, 256)
    for part in (slice(0, 48), slice(16, 40)):
        assert np.array_equal(rows[part].data, stored[order][part])
        assert np.array_equal(rows[part][np.array([3, 1])].data, stored[order][part][[3, 1]])


def test_a_type_that_is_asked_for_is_stored(tmp_path: Path) -> None:
    typed, plain = typed_and_plain("wide", "Q6_K", tmp_path)
    asked = ModelOptions("int4", kv_type="u8", kernels="own", asks_for_type=True)
    loaded = load_model(typed, asked)
    (said,) = loaded.facts.departures
    assert said.startswith("Q6_K weights are computed and stored anew as int4")
    expected = logits_of(load_model(plain, ModelOptions("f32")), TOKEN_IDS)
    kept, stored = (loss(logits_of(model, TOKEN_IDS), expected) for model in (load_model(typed, OWN), loaded))
    assert stored > 2 * kept


def test_options_without_effect_are_told(tmp_path: Path) -> None:
    typed, _ = typed_and_plain("wide", "Q4_K", tmp_path)
    loaded = load_model(typed, ModelOptions("f32", kernels="own"))
    assert loaded.profile.kernels == "openvino"
    assert loaded.facts.departures == ("kernels own attend, and multiply int8, int4, bf16 and f16 weights, not f32",)
