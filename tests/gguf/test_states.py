"""GGUF files of models whose layers keep a state: what is stored otherwise, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from dragoman.engine.rolling.needs import memory_needs
from dragoman.engine.rolling.options import RollingOptions
from dragoman.models import ModelError, ModelOptions, load_model
from dragoman.models.sources.base import PackedMatrix
from dragoman.models.stored.opening import stored_weights
from tests.support.family_checkpoint import Array, read_case
from tests.support.family_logits import error_on_prompt, logits_of
from tests.support.gguf_writer import write_gguf
from tests.support.graphs import difference
from tests.support.tables import Rows

EXACT = ModelOptions("f32")
KEYS, HEADS, SIZE = 2, 4, 16  # of the cases' states


def values_of(path: Path, name: str) -> Array:
    (tensor,) = (tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
    values: Array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return values


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0"])
def test_columns_that_take_turns_stay_packed(type_name: str, tmp_path: Path) -> None:
    """The file has the first value's head of each key, then the second of each; a checkpoint has all of a key's."""
    path = write_gguf("qwen3_5_text", read_case("qwen3_5_text"), tmp_path, type_name)
    stored = values_of(path, "blk.0.ssm_out.weight")
    with stored_weights(path).open() as source:
        matrix = source.tensor("model.layers.0.linear_attn.out_proj.weight", (64, HEADS * SIZE))
    assert isinstance(matrix, PackedMatrix)
    by_head = stored.reshape(64, HEADS // KEYS, KEYS, SIZE).swapaxes(1, 2)
    assert np.array_equal(matrix.unpacked(), by_head.reshape(64, -1))
    assert not np.array_equal(matrix.unpacked(), stored)


def test_columns_of_other_types_are_computed_in_order(tmp_path: Path) -> None:
    path = write_gguf("qwen3_5_text", read_case("qwen3_5_text"), tmp_path, "Q5_0")
    stored = values_of(path, "blk.0.ssm_out.weight")
    with stored_weights(path).open() as source:
        matrix = np.asarray(source.tensor("model.layers.0.linear_attn.out_proj.weight", (64, HEADS * SIZE)))
    assert np.array_equal(matrix, stored.reshape(64, HEADS // KEYS, KEYS, SIZE).swapaxes(1, 2).reshape(64, -1))


def test_packed_columns_run_in_a_compressed_graph(tmp_path: Path) -> None:
    """Beside their own values in f32, what is lost is what arithmetic in bf16 and activations in int8 lose."""
    path = write_gguf("qwen3_5_text", read_case("qwen3_5_text"), tmp_path, "Q8_0")
    token_ids = [(37 * index) % 290 for index in range(64)]
    exact, packed = (logits_of(load_model(path, ModelOptions(kind)), token_ids) for kind in ("f32", "int8"))
    assert float(np.sqrt(np.mean((packed - exact) ** 2) / np.mean(exact**2))) < 0.2


def test_rows_that_take_turns_stay_packed(tmp_path: Path) -> None:
    path = write_gguf("qwen3_5_text", read_case("qwen3_5_text"), tmp_path, "Q8_0")
    stored = values_of(path, "blk.0.attn_qkv.weight")
    with stored_weights(path).open() as source:
        matrix = source.tensor("model.layers.0.linear_attn.in_proj_qkv.weight", (128, 64))
    assert isinstance(matrix, PackedMatrix)
    values = stored[64:].reshape(HEADS // KEYS, KEYS, SIZE, 64).swapaxes(0, 1)
    assert np.array_equal(matrix.unpacked(), np.concatenate((stored[:64], values.reshape(64, 64))))


@pytest.mark.parametrize("name", ["qwen3_5_text", "qwen3_next"])
def test_layers_that_guess_further_tokens_are_not_read(name: str, tmp_path: Path) -> None:
    case = read_case(name)
    attends = {key: shape for key, shape in case["tensors"].items() if key.startswith("model.layers.3.")}
    case["extra_tensors"] = {key.replace("model.layers.3", "mtp.layers.0"): shape for key, shape in attends.items()}
    case["extra_tensors"] |= {"mtp.fc.weight": [64, 128], "mtp.norm.weight": [64]}
    path = write_gguf(name, case, tmp_path)
    layers = case["config"]["num_hidden_layers"]
    assert any(tensor.name.startswith(f"blk.{layers}.nextn.") for tensor in gguf.GGUFReader(path).tensors)
    assert not any(f"layers.{layers}." in key for key in stored_weights(path).shapes())
    assert error_on_prompt(load_model(path, EXACT), name, 90) < 1e-4


def test_older_files_of_qwen3_next_have_one_matrix_where_newer_have_two(tmp_path: Path) -> None:
    """Which is that of the checkpoint; and say by an interval alone which layers attend."""
    case = read_case("qwen3_next")
    path = write_gguf("qwen3_next", case, tmp_path, legacy=True)
    names = {tensor.name for tensor in gguf.GGUFReader(path).tensors}
    assert "blk.0.ssm_in.weight" in names
    assert "blk.0.attn_qkv.weight" not in names
    assert error_on_prompt(load_model(path, EXACT), "qwen3_next", 90) < 1e-4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qwen35.ssm.time_step_rank": 5}, "ssm.time_step_rank is 5, allowed: a multiple of 2 that divides 64"),
        ({"qwen35.ssm.time_step_rank": 0}, "ssm.time_step_rank is 0, allowed: a multiple of 2"),
        ({"qwen35.ssm.inner_size": 63}, "ssm.time_step_rank is 4, allowed: a multiple of 2 that divides 63"),
        ({"qwen35.ssm.inner_size": 0}, "cannot be put in order|linear_value_head_dim"),
        ({"qwen35.ssm.inner_size": 2**31}, "cannot be put in order"),
        ({"qwen35.ssm.group_count": None}, "has no qwen35.ssm.group_count"),
        ({"qwen35.ssm.group_count": 0}, "ssm.group_count is 0, allowed: an integer of at least 1"),
        ({"qwen35.attention.recurrent_layers": [True] * 7}, "has no attention layer"),
        ({"qwen35.nextn_predict_layers": 7}, "nextn_predict_layers is 7, allowed: an integer below the 7 layers"),
        ({"qwen35.block_count": 1.5}, "block_count is 1.5, allowed: an integer"),
        ({"qwen35.ssm.dt_b_c_rms": True}, "unknown metadata for this architecture: qwen35.ssm.dt_b_c_rms"),
    ],
)
def test_metadata_of_states_is_read_or_refused_by_name(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = write_gguf("qwen3_5_text", read_case("qwen3_5_text"), tmp_path, changes=changes)
    for use in (lambda: load_model(path, EXACT), lambda: memory_needs(path, RollingOptions())):
        with pytest.raises(ModelError, match=words):
            use()


def test_metadata_of_scans_is_read_or_refused_by_name(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("mamba", {"mamba.ssm.state_size": 13}, "metadata implies"),
        ("mamba", {"mamba.ssm.inner_size": None}, "has no mamba.ssm.inner_size"),
        (
            "mamba2",
            {"mamba2.ssm.time_step_rank": 7},
            "ssm.time_step_rank is 7, allowed: what divides mamba2.ssm.inner_size",
        ),
        ("mamba2", {"mamba2.ssm.time_step_rank": 0}, "ssm.time_step_rank is 0, allowed: what divides"),
        (
            "jamba",
            {"jamba.attention.head_count_kv": [2, 2, 0, 0]},
            "head_count_kv is a list, allowed: layers that come again",
        ),
        (
            "jamba",
            {"jamba.attention.head_count_kv": [0, 2]},
            "head_count_kv is a list, allowed: an integer for each of 4",
        ),
        ("jamba", {"jamba.block_count": 2**32 - 1}, "an integer for each of 4294967295 layers"),
        (
            "granite4_hybrid",
            {"granitehybrid.attention.head_count_kv": None},
            "head_count_kv, allowed: an integer for each of 4",
        ),
        ("nemotron_h_moe", {"nemotron_h_moe.block_count": 8}, "layers_block_type is"),
        ("nemotron_h_moe", {"nemotron_h_moe.expert_shared_count": 2}, "n_shared_experts is 2, allowed: 1"),
        (
            "falcon_h1",
            {"falcon-h1.ssm.unheard_of": 1},
            "unknown metadata for this architecture: falcon-h1.ssm.unheard_of",
        ),
    ]
    with Rows() as rows:
        for index, (name, changes, words) in enumerate(cases):
            with rows.row(name, str(changes)), pytest.raises(ModelError, match=words):
                load_model(write_gguf(name, read_case(name), tmp_path / str(index), changes=changes), EXACT)


def test_a_layer_of_nemotron_h_is_what_its_tensors_are(tmp_path: Path) -> None:
    """Newer converters call dense models, too, a mixture of experts, if config.json has numbers for experts."""
    case, of_experts = read_case("nemotron_h"), read_case("nemotron_h_moe")["config"]
    case["config"] |= {"time_step_min": 0.001}
    for config in (case["config"], of_experts | case["config"]):
        path = write_gguf("nemotron_h", case | {"config": config}, tmp_path / str(len(config)))
        assert difference(path, path.with_name("checkpoint")) is None


@pytest.mark.parametrize("count", [1.5, "three", 2**32 - 1])
def test_a_number_of_layers_that_cannot_be_is_refused(count: object, tmp_path: Path) -> None:
    """Whatever is looked up for each layer of a model with experts."""
    path = write_gguf("qwen3_moe", read_case("qwen3_moe"), tmp_path, changes={"qwen3moe.block_count": count})
    with pytest.raises(ModelError, match=r"block_count is|num_hidden_layers is 4294967295"):
        load_model(path, EXACT)


def test_rates_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """A state fades; it does not grow."""
    case = read_case("qwen3_5_text")
    path = write_gguf("qwen3_5_text", case, tmp_path)
    (tensor,) = (tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "blk.1.ssm_a")
    data = bytearray(path.read_bytes())
    data[tensor.data_offset + 3] &= 0x7F  # the sign
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"tensor 'blk.1.ssm_a' has numbers that are not below 0"):
        load_model(path, EXACT)


def test_granite_that_does_not_turn_is_refused(tmp_path: Path) -> None:
    changes = {"granite.rope.scaling.finetuned": False}
    path = write_gguf("granite4_dense", read_case("granite4_dense"), tmp_path, changes=changes)
    with pytest.raises(ModelError, match=r"granite.rope.scaling.finetuned is False, allowed: true"):
        load_model(path, EXACT)
