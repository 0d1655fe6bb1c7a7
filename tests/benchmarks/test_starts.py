"""Every format whose starts are measured is written so that it loads as what it says it is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving.formats import FORMATS
from benchmarks.serving.model import BenchShape
from benchmarks.start import weight_files
from benchmarks.starts import COLUMNS, rows
from dragoman.models import ModelOptions, load_model
from dragoman.models.stored.opening import stored_weights
from tests.support.family_logits import logits_of
from tests.support.tiers import width

SHAPE = BenchShape(256, 2, 4, 2, 64, 512, max_position=256, vocab_size=320)


@pytest.mark.parametrize("name", width(list(FORMATS), list(FORMATS)[::3]))
def test_it_loads_and_computes(name: str, tmp_path: Path) -> None:
    model = FORMATS[name].write(tmp_path / "model", SHAPE)
    assert sum(path.stat().st_size for path in weight_files(model)) > 100_000
    logits = logits_of(load_model(model, ModelOptions("int8")), list(range(40)))
    assert logits.shape[-1] == SHAPE.vocab_size
    assert np.isfinite(logits).all()
    assert logits.std() > 0.01


@pytest.mark.parametrize(
    ("name", "bits"), [("awq", 4), ("gptq", 4), ("w4a16", 4), ("w8a8", 8), ("gguf-Q4_0", 4), ("gguf-Q8_0", 8)]
)
def test_packed_matrices_take_what_their_bits_take(name: str, bits: int, tmp_path: Path) -> None:
    sizes = stored_weights(FORMATS[name].write(tmp_path / "model", SHAPE)).packed_bytes()
    for layer in range(SHAPE.num_layers):
        found = sizes[f"model.layers.{layer}.mlp.down_proj.weight"]
        assert found == pytest.approx(SHAPE.hidden_size * SHAPE.intermediate_size * bits / 8, rel=0.15)


@pytest.mark.full("measures starts in processes of their own; only the benchmark would tell wrong numbers")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", ["gguf-Q4_K", "ir-int4"])
def test_a_start_is_measured(name: str) -> None:
    (row,) = rows([name], SHAPE, rounds=1)
    assert (row["format"], row["dtype"]) == (FORMATS[name].name, "int8")
    assert all(row[column] > 0 for column in COLUMNS)


def test_what_holds_no_weights_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"MODEL=.*: must be a GGUF file, or a directory with \*.safetensors"):
        weight_files(tmp_path)
