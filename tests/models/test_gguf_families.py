"""Every architecture of GGUF files computes what its Hugging Face checkpoint computes.

The cases of tests/models/families are written as llama.cpp's converter writes them. Where the format can say all that a case
has, logits are compared with those recorded; where it cannot, the checkpoint is changed, and loaded both ways.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dragoman.models import ModelOptions, load_model
from tests.support.family_checkpoint import Array, read_case
from tests.support.family_logits import error_on_prompt, logits_of
from tests.support.gguf_writer import write_gguf
from tests.support.vision_checkpoint import read_vision_case

EXACT = ModelOptions("f32")

WHOLE = [
    *("bloom", "cohere", "cohere2", "cohere_qk_norm", "deepseek_v2_lite", "deepseek_v3", "ernie4_5"),
    *("ernie4_5_moe", "exaone4", "exaone4_hybrid", "falcon_11b", "falcon_40b", "falcon_7b", "gemma", "glm4"),
    *("glm4_moe_qk_norm", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_neox_new_style", "granite", "granite4_dense"),
    *("granitemoe", "granitemoeshared", "hunyuan_v1_dense", "lfm2", "llama_default", "llama_linear"),
    *("llama_llama3", "llama_yarn", "mistral3", "mistral_nemo", "mixtral", "mpt", "olmo", "olmo2", "olmo3"),
    *("olmo_tied", "olmoe", "phi", "phi3", "phi3_128k", "phi4_mini", "qwen2", "qwen2_5_vl", "qwen2_moe"),
    *("qwen2_vl", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe"),
    *("qwen3_next", "qwen3_vl", "seed_oss", "stablelm", "stablelm_12b"),
]
"""Of which a GGUF says everything."""

CHANGED: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 32},
    "gemma3_text": {"query_pre_attn_scalar": 32, "sliding_window_pattern": 6, "num_hidden_layers": 4},
    "glm": {"num_attention_heads": 2, "num_key_value_heads": 1},  # heads as wide as the hidden size allows
    "gpt_oss": {"swiglu_limit": 7.0},
    "starcoder2": {"sliding_window": 4096},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "gpt_neox_sequential": {"hidden_act": "gelu"},
}
"""With what llama.cpp takes for granted in place of the case's own."""


@pytest.mark.parametrize("name", WHOLE)
def test_float32_logits_equal_the_recorded_ones(name: str, tmp_path: Path) -> None:
    loaded = load_model(write_gguf(name, read_case(name), tmp_path), EXACT)
    assert error_on_prompt(loaded, name, 700) < 1e-4


@pytest.mark.parametrize("name", CHANGED)
def test_float32_logits_equal_those_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    case = read_case(name)
    case["config"] |= CHANGED[name]
    if name == "glm":
        case["tensors"] = {tensor: _narrowed(tensor, shape) for tensor, shape in case["tensors"].items()}
    path = write_gguf(name, case, tmp_path)
    token_ids = [(37 * index) % 290 for index in range(200)]
    found, expected = (logits_of(load_model(model, EXACT), token_ids) for model in (path, tmp_path / "checkpoint"))
    assert _error(found, expected) < 1e-4


@pytest.mark.parametrize("type_name", ["F32", "Q8_0"])
def test_gpt_oss_with_experts_in_mxfp4_has_the_logits_of_their_values(type_name: str, tmp_path: Path) -> None:
    """As its files have them, beside matrices of another type: compared with a checkpoint of what all of them stand for."""
    case = read_case("gpt_oss")
    case["config"] |= CHANGED["gpt_oss"]
    path = write_gguf("gpt_oss", case, tmp_path, type_name, expert_type="MXFP4")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert {kinds[f"blk.0.ffn_{part}_exps.weight"] for part in ("gate", "up", "down")} == {"MXFP4"}
    assert kinds["blk.0.attn_q.weight"] == type_name

    token_ids = [(37 * index) % 290 for index in range(200)]
    checkpoint = tmp_path / "checkpoint"
    before = logits_of(load_model(checkpoint, EXACT), token_ids)
    tensors = load_file(checkpoint / "model.safetensors")
    for name, matrix in tensors.items():
        if name.endswith(("gate_up_proj", "down_proj")):  # [experts, in, out]
            tensors[name] = np.ascontiguousarray(_rounded(matrix.swapaxes(1, 2), "MXFP4").swapaxes(1, 2))
        elif matrix.ndim == 2 and "router" not in name and not name.endswith("_bias"):
            tensors[name] = _rounded(matrix, type_name)
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
    expected = logits_of(load_model(checkpoint, EXACT), token_ids)
    assert _error(logits_of(load_model(path, EXACT), token_ids), expected) < 1e-4
    assert _error(before, expected) > 1e-2, "rounding changes nothing"


def _rounded(matrix: Array, type_name: str) -> Array:
    """What blocks of a type, along the last axis, keep of the values."""
    kind = gguf.GGMLQuantizationType[type_name]
    values: Array = np.ascontiguousarray(matrix, dtype=np.float32)
    return gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind).reshape(matrix.shape)


def _narrowed(name: str, shape: list[int]) -> list[int]:
    """Of attention, with half of the heads."""
    if "o_proj" in name:
        return [shape[0], shape[1] // 2]
    return [shape[0] // 2, *shape[1:]] if "_proj" in name and "self_attn" in name else shape


def test_texts_of_a_model_that_sees_have_the_logits_of_its_checkpoint(tmp_path: Path) -> None:
    """One with experts, of which no case for texts alone is recorded."""
    path = write_gguf("qwen3_vl_moe", read_vision_case("qwen3_vl_moe"), tmp_path)
    token_ids = [(37 * index) % 290 for index in range(200)]
    found, expected = (logits_of(load_model(model, EXACT), token_ids) for model in (path, tmp_path / "checkpoint"))
    assert _error(found, expected) < 1e-4


@pytest.mark.parametrize(
    "name",
    [
        *("llama_llama3", "qwen3", "gemma", "gpt_neox", "gpt2", "phi3", "mixtral", "granitemoe"),
        *("qwen3_5_text", "qwen3_next"),
    ],
)
@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0", "F16", "BF16"])
def test_other_types_give_the_logits_of_their_values(name: str, type_name: str, tmp_path: Path) -> None:
    """The same file with its matrices' values as f32 is what transformers would compute with."""
    _compare_with_values(name, type_name, tmp_path)


@pytest.mark.parametrize(
    "type_name", ["Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
)
def test_types_that_are_computed_give_the_logits_of_their_values(type_name: str, tmp_path: Path) -> None:
    _compare_with_values("wide", type_name, tmp_path)


def _compare_with_values(name: str, type_name: str, tmp_path: Path) -> None:
    case = read_case("qwen3" if name == "wide" else name)
    if name == "wide":  # rows of whole blocks of 256
        case = _widened(case)
    path = write_gguf(name, case, tmp_path, type_name, random_blocks=name == "wide")
    values = values_of(path)
    plain = write_gguf(name, case, tmp_path / "plain", "F32", values=values)
    token_ids = [(37 * index) % 290 for index in range(64)]
    found, expected = (logits_of(load_model(model, EXACT), token_ids) for model in (path, plain))
    assert np.abs(expected).max() > 0.01
    assert _error(found, expected) < 1e-4


def values_of(path: Path) -> dict[str, Array]:
    """The values of every tensor of a file, by the package's own reader."""
    reader = gguf.GGUFReader(path)
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(
            tuple(reversed([int(size) for size in tensor.shape]))
        )
        for tensor in reader.tensors
    }


def _widened(case: dict[str, Any]) -> dict[str, Any]:
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 1}
    config = case["config"] | sizes
    rename = {64: 256, 192: 256, 128: 256, 32: 64}
    tensors = {}
    for name, shape in case["tensors"].items():
        if ".layers." in name and ".layers.0." not in name:
            continue
        tensors[name] = [_wide(name, axis, size, rename) for axis, size in enumerate(shape)]
    return {**case, "config": config, "tensors": tensors}


def _wide(name: str, axis: int, size: int, rename: dict[int, int]) -> int:
    if axis == 0 and (".k_proj." in name or ".v_proj." in name):
        return 128  # two heads
    return rename.get(size, size)


def _error(found: Array, expected: Array) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))
