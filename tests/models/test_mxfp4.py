"""MXFP4 matrices have the values that the format's definition gives them, whole or in parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dragoman.models import ModelError, ModelOptions, load_model
from dragoman.models.sources.mxfp4 import Mxfp4Matrix
from tests.support.family_checkpoint import read_case, write_case


def test_every_code_has_its_value() -> None:
    codes = np.arange(16, dtype=np.uint8)
    blocks = np.concatenate([codes[0::2] | codes[1::2] << 4] * 2).reshape(1, 1, 16)
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = positive + [-value for value in positive]
    for scale, factor in ((127, 1.0), (126, 0.5), (130, 8.0), (0, 2.0**-127), (252, 2.0**125)):
        matrix = Mxfp4Matrix(blocks, np.full((1, 1), scale, dtype=np.uint8))
        assert np.array_equal(
            np.asarray(matrix), np.array(values * 2, dtype=np.float32).reshape(1, 32) * np.float32(factor)
        )


def test_parts_are_those_of_the_whole() -> None:
    stream = np.random.RandomState(3)
    blocks = stream.randint(0, 256, (6, 4, 16)).astype(np.uint8)
    matrix = Mxfp4Matrix(blocks, stream.randint(110, 130, (6, 4)).astype(np.uint8))
    whole = np.asarray(matrix)
    assert matrix.shape == whole.shape == (6, 128)
    assert np.array_equal(np.asarray(matrix[1::2]), whole[1::2])
    assert np.array_equal(np.asarray(matrix[:, 32:96][2:5]), whole[2:5, 32:96])


def test_a_scale_that_is_no_number_is_refused() -> None:
    with pytest.raises(ModelError, match="MXFP4 scale is 255, allowed: 0 to 252"):
        Mxfp4Matrix(np.zeros((1, 1, 16), dtype=np.uint8), np.full((1, 1), 255, dtype=np.uint8))


def test_other_families_do_not_take_it(tmp_path: Path) -> None:
    case = read_case("llama_default")
    case["config"]["quantization_config"] = {"quant_method": "mxfp4"}
    with pytest.raises(ModelError, match='quant_method "mxfp4" is not supported'):
        load_model(write_case("llama_default", case, tmp_path), ModelOptions("f32"))


def test_bits_are_no_weights_elsewhere(tmp_path: Path) -> None:
    case = read_case("gpt_oss_mxfp4")
    case["dtypes"]["*router.weight"] = "U8"
    case["values"]["*router.weight"] = {"low": 0, "high": 9}
    with pytest.raises(ModelError, match=r"router.weight' has elements of type U8, allowed: floating-point numbers"):
        load_model(write_case("gpt_oss_mxfp4", case, tmp_path), ModelOptions("f32"))
