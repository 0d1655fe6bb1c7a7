"""Every architecture of GGUF files computes what its Hugging Face checkpoint computes.

The cases of tests/models/families are written as llama.cpp's converter writes them. Where the format cannot say all that a
case has, the checkpoint is changed. Both ways must build the same graph; some models, and at full width all, run as well.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dragoman.models import ModelOptions, load_model
from tests.support.family_checkpoint import Array, Case, read_case
from tests.support.family_logits import error_on_prompt, logits_of
from tests.support.gguf_writer import write_gguf
from tests.support.graphs import difference
from tests.support.tables import Rows
from tests.support.tiers import width
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
    *("afmoe", "arcee", "dots1", "exaone_moe", "gemma3n", "gemma4", "gemma4_moe", "glm4_moe_lite", "hunyuan_v1_moe"),
    *("jais2", "minimax_m2", "ministral3", "nemotron", "solar_open"),
    *("bamba", "falcon_mamba", "granite4_hybrid", "jamba", "mamba"),
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
    "mamba2": {"time_step_limit": [0.0, float("inf")]},
    "nemotron_h": {"time_step_min": 0.001},
    "nemotron_h_latent": {"time_step_min": 0.001},
    "nemotron_h_moe": {"time_step_min": 0.001},
    "lfm2_moe": {"routed_scaling_factor": 1.0},
}
"""With what llama.cpp takes for granted in place of the case's own."""


def case_of(name: str) -> Case:
    """The case of that name, with what llama.cpp takes for granted."""
    case = read_case(name)
    case["config"] |= CHANGED.get(name, {})
    if name == "glm":
        case["tensors"] = {tensor: _narrowed(tensor, shape) for tensor, shape in case["tensors"].items()}
    return case


def test_every_architecture_builds_the_graph_of_its_checkpoint(tmp_path: Path) -> None:
    with Rows() as rows:
        for name in [*WHOLE, *CHANGED]:
            with rows.row(name):
                path = write_gguf(name, case_of(name), tmp_path / name)
                assert difference(path, tmp_path / name / "checkpoint") is None


def test_gates_and_ups_of_experts_may_be_one_tensor(tmp_path: Path) -> None:
    """Whatever the family calls them."""
    with Rows() as rows:
        for name in ("lfm2_moe", "minimax_m2", "mixtral", "qwen3_moe"):
            with rows.row(name):
                path = write_gguf(name, case_of(name), tmp_path / name, joins_experts=True)
                assert any("ffn_gate_up_exps" in tensor.name for tensor in gguf.GGUFReader(path).tensors)
                assert difference(path, tmp_path / name / "checkpoint") is None


def test_what_falcon_h1_multiplies_by_is_in_its_matrices(tmp_path: Path) -> None:
    case = read_case("falcon_h1")
    case["config"] |= {"mamba_norm_before_gate": False}  # as llama.cpp takes for granted
    path = write_gguf("falcon_h1", case, tmp_path)
    token_ids = [(37 * index) % 290 for index in range(60)]
    found, expected = (logits_of(load_model(model, EXACT), token_ids) for model in (path, tmp_path / "checkpoint"))
    assert _error(found, expected) < 1e-4


def test_queries_that_grow_by_nothing_are_those_of_mistral(tmp_path: Path) -> None:
    """As Devstral 2's files say it, with keys that are 0."""
    zeros = {f"mistral3.{key}": 0.0 for key in ("attention.temperature_scale", "rope.scaling.yarn_log_multiplier")}
    path = write_gguf("mistral3", case_of("mistral3"), tmp_path, changes=zeros)
    assert difference(path, tmp_path / "checkpoint") is None


def test_a_graph_that_computes_otherwise_is_told_apart(tmp_path: Path) -> None:
    """So that the test above can fail: by a key of the config that becomes a constant, or by one value of a tensor."""
    path = write_gguf("granite", read_case("granite"), tmp_path)
    config_path, weights_path = (tmp_path / "checkpoint" / name for name in ("config.json", "model.safetensors"))
    config, tensors = json.loads(config_path.read_text()), load_file(weights_path)
    with Rows() as rows:
        for key in ("rms_norm_eps", "rope_theta", "embedding_multiplier", "residual_multiplier", "logits_scaling"):
            with rows.row(key):
                config_path.write_text(json.dumps(config | {key: config[key] * 1.01}))
                assert difference(path, tmp_path / "checkpoint") is not None
        config_path.write_text(json.dumps(config))
        for name in [name for name in tensors if ".0." in name or ".layers." not in name]:
            with rows.row(name):
                changed = tensors[name].copy()
                changed.flat[-1] += 0.01
                save_file({**tensors, name: changed}, weights_path, metadata={"format": "pt"})
                assert difference(path, tmp_path / "checkpoint") is not None


@pytest.mark.parametrize("name", width(WHOLE, ["llama_llama3", "qwen3_5_moe"]))
def test_float32_logits_equal_the_recorded_ones(name: str, tmp_path: Path) -> None:
    loaded = load_model(write_gguf(name, read_case(name), tmp_path), EXACT)
    assert error_on_prompt(loaded, name, 700) < 1e-4


@pytest.mark.full("whoever builds the checkpoint's graph has its logits")
@pytest.mark.parametrize("name", CHANGED)
def test_float32_logits_equal_those_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    path = write_gguf(name, case_of(name), tmp_path)
    token_ids = [(37 * index) % 290 for index in range(200)]
    found, expected = (logits_of(load_model(model, EXACT), token_ids) for model in (path, tmp_path / "checkpoint"))
    assert _error(found, expected) < 1e-4


@pytest.mark.parametrize("type_name", ["F32", "Q8_0"])
def test_gpt_oss_with_experts_in_mxfp4_builds_the_graph_of_their_values(type_name: str, tmp_path: Path) -> None:
    """As its files have them, beside matrices of another type: compared with a checkpoint of what all of them stand for."""
    path = write_gguf("gpt_oss", case_of("gpt_oss"), tmp_path, type_name, expert_type="MXFP4")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert {kinds[f"blk.0.ffn_{part}_exps.weight"] for part in ("gate", "up", "down")} == {"MXFP4"}
    assert kinds["blk.0.attn_q.weight"] == type_name
    checkpoint = tmp_path / "checkpoint"
    assert difference(path, checkpoint) is not None, "rounding changes nothing"
    _round_experts(checkpoint, type_name)
    assert difference(path, checkpoint) is None


@pytest.mark.full("whoever builds the graph of these values has their logits")
@pytest.mark.parametrize("type_name", ["F32", "Q8_0"])
def test_gpt_oss_with_experts_in_mxfp4_has_the_logits_of_their_values(type_name: str, tmp_path: Path) -> None:
    path = write_gguf("gpt_oss", case_of("gpt_oss"), tmp_path, type_name, expert_type="MXFP4")
    token_ids = [(37 * index) % 290 for index in range(200)]
    checkpoint = tmp_path / "checkpoint"
    before = logits_of(load_model(checkpoint, EXACT), token_ids)
    _round_experts(checkpoint, type_name)
    expected = logits_of(load_model(checkpoint, EXACT), token_ids)
    assert _error(logits_of(load_model(path, EXACT), token_ids), expected) < 1e-4
    assert _error(before, expected) > 1e-2, "rounding changes nothing"


def _round_experts(checkpoint: Path, type_name: str) -> None:
    """Replace the values of a checkpoint of gpt-oss by those that the types of its file keep."""
    tensors = load_file(checkpoint / "model.safetensors")
    for name, matrix in tensors.items():
        if name.endswith(("gate_up_proj", "down_proj")):  # [experts, in, out]
            tensors[name] = np.ascontiguousarray(_rounded(matrix.swapaxes(1, 2), "MXFP4").swapaxes(1, 2))
        elif matrix.ndim == 2 and "router" not in name and not name.endswith("_bias"):
            tensors[name] = _rounded(matrix, type_name)
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})


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


TYPED = [
    *(
        (name, type_name)
        for name in (
            "llama_llama3",
            "qwen3",
            "gemma",
            "gpt_neox",
            "gpt2",
            "phi3",
            "mixtral",
            "granitemoe",
            "qwen3_5_text",
            "qwen3_next",
            "jamba",
            "nemotron_h_moe",
        )
        for type_name in ("Q8_0", "Q4_0", "F16", "BF16")
    ),
    *(
        ("wide", type_name)
        for type_name in ("Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
    ),
]
"""Cases, and types that their matrices are written as. "wide": rows of whole blocks of 256, whose values are computed."""

FEW_TYPED = [(name, type_name) for name, type_name in TYPED if name in ("llama_llama3", "wide") or type_name == "Q4_0"]
"""Every type with one case, and every case with one that stays packed."""


def test_other_types_build_the_graph_of_their_values(tmp_path: Path) -> None:
    """The same file with its matrices' values as f32 is what transformers would compute with."""
    with Rows() as rows:
        for name, type_name in width(TYPED, FEW_TYPED):
            with rows.row(name, type_name):
                typed, plain = typed_and_plain(name, type_name, tmp_path / f"{name}-{type_name}")
                assert difference(typed, plain) is None


@pytest.mark.parametrize(("name", "type_name"), width(TYPED, [("mixtral", "Q4_0"), ("wide", "Q4_K")]))
def test_other_types_give_the_logits_of_their_values(name: str, type_name: str, tmp_path: Path) -> None:
    token_ids = [(37 * index) % 290 for index in range(64)]
    found, expected = (
        logits_of(load_model(model, EXACT), token_ids) for model in typed_and_plain(name, type_name, tmp_path)
    )
    assert np.abs(expected).max() > 0.01
    assert _error(found, expected) < 1e-4


def typed_and_plain(name: str, type_name: str, directory: Path) -> tuple[Path, Path]:
    """A case's file with matrices of that type, and one that has the values of these as f32."""
    case = _widened(read_case("qwen3")) if name == "wide" else read_case(name)
    case["extra_tensors"] = {}  # large ones, which no file has
    typed = write_gguf(name, case, directory, type_name, random_blocks=name == "wide")
    return typed, write_gguf(name, case, directory / "plain", "F32", values=values_of(typed))


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
