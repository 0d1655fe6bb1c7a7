"""Quantised checkpoints mean what the numbers mean that they stand for, in every layout, whole or in parts.

Test code packs tiny checkpoints and keeps the numbers (tests/support/packers.py). With f32 weights both must give the same
logits; with others what is packed stays packed, and logits stay close.
"""

from __future__ import annotations

import json
import os
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dragoman.engine.rolling.needs import memory_needs
from dragoman.engine.rolling.options import RollingOptions
from dragoman.models import ModelError, ModelOptions, load_model
from dragoman.models.profile import kernel_profile
from tests.support import graphs
from tests.support.expert_models import write_experts
from tests.support.family_checkpoint import write_family_checkpoint
from tests.support.packed_layouts import LAYOUTS, LLAMA, SMALL_GROUPS, difference, prompt_logits
from tests.support.packers import Packed, PackedPair, Packer, write_pair
from tests.support.random_checkpoint import RandomShape, write_checkpoint
from tests.support.tables import Rows
from tests.support.tiers import width

Array = np.ndarray[Any, Any]

WEIGHTS = "model.safetensors"

LARGER = RandomShape("larger", seed=8, hidden_size=512, num_layers=1, num_heads=8, head_size=64, intermediate_size=1024)

FAMILIES = (
    "llama_llama3",
    "qwen2",
    "phi3",
    "mixtral",
    "qwen3_moe",
    "deepseek_v3",
    "gpt_neox",
    "gemma3_text",
    "qwen3_5_text",
)


def pair_of(name: str, directory: Path, layout: str) -> PackedPair:
    """A checkpoint of a recorded family, or `LLAMA`, in a layout."""
    if name == LLAMA.name:
        source = write_checkpoint(LLAMA, directory / "source")
    else:
        source = write_family_checkpoint(name, directory / "source")
    return write_pair(source, directory, *(LAYOUTS | SMALL_GROUPS)[layout])


OF_FAMILIES = [
    *zip(FAMILIES, cycle(SMALL_GROUPS)),  # each layout with every third family: all would take a minute
    *((name, "fp8 in blocks that rows do not fill") for name in ("phi3", "deepseek_v3", "qwen3_moe")),
]
"""Cases of recorded families, and the layouts that they are packed in."""


# Each expert's columns have an order of their own, so that experts are computed apart.
APART = [("mixtral", "gptq 16"), ("deepseek_v3", "gptq 16")]


def test_in_f32_the_graph_is_that_of_the_numbers(tmp_path: Path) -> None:
    with Rows() as rows:
        for name, layout in [*((LLAMA.name, layout) for layout in LAYOUTS), *OF_FAMILIES]:
            if (name, layout) in APART:
                continue
            with rows.row(name, layout):
                pair = pair_of(name, tmp_path / f"{name} {layout}", layout)
                assert graphs.difference(pair.packed, pair.plain) is None


@pytest.mark.varies("packed weights are multiplied by other kernels on other processors")
@pytest.mark.parametrize("layout", width(list(LAYOUTS), ["awq", "gptq of 8 bits, any order", "w8a8", "fp8 in blocks"]))
def test_quantised_weights_are_the_numbers_that_they_stand_for(layout: str, tmp_path: Path) -> None:
    pair = pair_of(LLAMA.name, tmp_path, layout)
    plain = prompt_logits(pair.plain, "f32")
    assert difference(prompt_logits(pair.packed, "f32"), plain) < 1e-5
    assert difference(prompt_logits(pair.packed, "int8"), plain) < 0.05


# What is fused, experts beside latent attention, and those that are computed apart.
FEW_FAMILIES = [("phi3", "awq 16"), ("deepseek_v3", "fp8 in blocks that rows do not fill"), *APART[:1]]


@pytest.mark.parametrize(("name", "layout"), width(OF_FAMILIES, FEW_FAMILIES))
def test_families_take_their_matrices_packed(name: str, layout: str, tmp_path: Path) -> None:
    """Fused ones of which rows are taken, experts, latent attention, tied heads; with int4, where products are joined."""
    pair = pair_of(name, tmp_path, layout)
    plain = prompt_logits(pair.plain, "f32")
    assert difference(prompt_logits(pair.packed, "f32"), plain) < 1e-5
    assert difference(prompt_logits(pair.packed, "int4"), plain) < 0.6


def test_a_product_of_matrices_that_are_stored_in_different_ways_is_cut(tmp_path: Path) -> None:
    """With int4 queries, keys and values are one product, and so are the two halves of an MLP: if they can be."""
    source = write_checkpoint(LLAMA, tmp_path / "source")
    pair = write_pair(source, tmp_path, *LAYOUTS["awq"], chosen=lambda name: "q_proj" in name or "up_proj" in name)
    plain = prompt_logits(pair.plain, "f32")
    assert difference(prompt_logits(pair.packed, "f32"), plain) < 1e-5
    assert difference(prompt_logits(pair.packed, "int4"), plain) < 0.3


EXPERTS = [("awq", False), ("gptq", False), ("w8a8", False), ("fp8 in blocks", False), ("awq", True)]


@pytest.mark.parametrize(("layout", "is_mixed"), width(EXPERTS, [("awq", False), ("awq", True)]))
def test_experts_are_taken_packed(layout: str, is_mixed: bool, tmp_path: Path) -> None:
    """Also if they are not stored alike. A router that is rounded chooses other experts now and then."""
    source = write_experts("many", tmp_path / "source")
    chosen = (lambda name: ".3." not in name) if is_mixed else (lambda name: ".experts." in name)
    pair = write_pair(source, tmp_path, *LAYOUTS[layout], chosen=chosen)
    plain = prompt_logits(pair.plain, "f32")
    assert difference(prompt_logits(pair.packed, "f32"), plain) < 1e-5
    assert difference(prompt_logits(pair.packed, "int8"), plain) < 0.4


def test_a_zero_point_may_lie_one_above_the_values(tmp_path: Path) -> None:
    """GPTQ stores zero points minus one: 15 in four bits means 16."""
    pair = pair_of(LLAMA.name, tmp_path, "gptq, not symmetric")
    tensors, name = load_file(pair.packed / WEIGHTS), "model.layers.0.self_attn.q_proj"
    tensors[f"{name}.qzeros"] = np.full_like(tensors[f"{name}.qzeros"], -1)  # all bits
    save_file(tensors, pair.packed / WEIGHTS)
    plain = load_file(pair.plain / WEIGHTS)
    values = unpacked(tensors[f"{name}.qweight"].T, 4).astype(np.float32) - 16
    plain[f"{name}.weight"] = values * np.repeat(tensors[f"{name}.scales"].T.astype(np.float32), 32, axis=1)
    save_file(plain, pair.plain / WEIGHTS)
    expected = prompt_logits(pair.plain, "f32")
    assert difference(prompt_logits(pair.packed, "f32"), expected) < 1e-5
    assert difference(prompt_logits(pair.packed, "int8"), expected) < 0.05


def unpacked(words: Array, bits: int) -> Array:
    """The values of words of 32 bits, the lowest first. Shapes: i32 [n, m] -> [n, m * 32 / bits]."""
    shifts = np.arange(0, 32, bits)
    values: Array = (words.astype(np.int64)[:, :, None] >> shifts) & (2**bits - 1)
    return values.reshape(len(words), -1)


@pytest.mark.parametrize(("layout", "kind"), [("awq", "u4"), ("gptq, any order", "i4"), ("w8a8", "i8")])
def test_what_is_packed_stays_packed(layout: str, kind: str, tmp_path: Path) -> None:
    pair = pair_of(LLAMA.name, tmp_path, layout)
    compiled = load_model(pair.packed, ModelOptions("int8", kernels="openvino")).compiled
    nodes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    types = [node["outputPrecisions"].astype(str) for node in nodes if node["layerType"].astype(str) == "Const"]
    assert types.count(kind) >= 5 * LLAMA.num_layers  # all matrices of its layers, of which three may be one


@pytest.mark.parametrize(
    ("layout", "group"), [("awq", 32), ("awq of whole rows", 128), ("w8a8", 128), ("fp8 in blocks", 128)]
)
def test_activations_are_quantised_in_groups_no_larger_than_weights(layout: str, group: int, tmp_path: Path) -> None:
    pair = pair_of(LLAMA.name, tmp_path, layout)
    assert load_model(pair.packed, ModelOptions("int8")).profile.activation_group == group


def test_groups_of_activations_fill_those_of_weights() -> None:
    """With a rest OpenVINO's kernels do not quantise activations, and compute something else with several rows."""
    for group, filling in ((16, 16), (32, 32), (48, 48), (96, 96), (192, 96), (256, 128), (2880, 96)):
        assert kernel_profile(ModelOptions(), smallest_group=group).activation_group == filling
    assert kernel_profile(ModelOptions("f32"), smallest_group=32).activation_group == 0


FORETOLD = ["awq", "gptq", "w8a16, not symmetric", "w8a8", "fp8 in blocks"]


@pytest.mark.parametrize("layout", width(FORETOLD, ["awq", "w8a8"]))
def test_what_a_model_will_take_is_foretold(layout: str, tmp_path: Path) -> None:
    """Compared with the numbers as f32, which all processors keep as such: what graphs have besides hardly counts."""
    pair = write_pair(write_checkpoint(LARGER, tmp_path / "source"), tmp_path, *LAYOUTS[layout])
    sizes = []
    for directory, weight_type in ((pair.packed, "int8"), (pair.plain, "f32")):
        options = RollingOptions(dtype=weight_type, cache_dir=tmp_path / weight_type)
        load_model(directory, options.model_options)
        kept = next((tmp_path / weight_type).glob("*.blob")).stat().st_size
        sizes.append((kept, memory_needs(directory, options).weights))
    saved, foretold = (sizes[1][place] - sizes[0][place] for place in (0, 1))
    assert 0.95 * saved < foretold < 1.15 * saved


def test_a_kept_graph_is_of_one_description(tmp_path: Path) -> None:
    """Also where that lies in a file of its own, as the first tools wrote it."""
    pair = pair_of(LLAMA.name, tmp_path, "gptq_v2")
    path = pair.packed / "config.json"
    config = json.loads(path.read_text())
    described = config.pop("quantization_config")
    del described["quant_method"]
    path.write_text(json.dumps(config))
    options = ModelOptions("int8", cache_dir=tmp_path / "kept")
    for form, from_cache in (("gptq_v2", False), ("gptq_v2", True), ("gptq", False)):
        (pair.packed / "quantize_config.json").write_text(json.dumps(described | {"checkpoint_format": form}))
        os.utime(pair.packed / "quantize_config.json", (1, 1 if form == "gptq" else 2))
        assert load_model(pair.packed, options).from_cache == from_cache


def test_people_are_told_what_weights_are(tmp_path: Path) -> None:
    pair = pair_of(LLAMA.name, tmp_path / "4", "gptq")
    assert load_model(pair.packed, ModelOptions("int8")).stored_as == "GPTQ int4 weights, others int8"
    assert load_model(pair.packed, ModelOptions("f32")).stored_as == "f32 weights from GPTQ int4"
    floats = pair_of(LLAMA.name, tmp_path / "8", "fp8 in blocks")
    assert load_model(floats.packed, ModelOptions("int8")).stored_as == "int8 weights from fp8"


@pytest.mark.parametrize("layout", ["fp8 with one scale", "w8a8"])
def test_tensors_that_change_nothing_are_passed_over(layout: str, tmp_path: Path) -> None:
    """How others round activations, keys and values; biases of zeros. A bias of anything else is refused."""
    packer, described = LAYOUTS[layout]

    def with_more(bias: float) -> Packer:
        def pack(name: str, matrix: Array) -> Packed:
            tensors, numbers = packer(name, matrix)
            stem = name.removesuffix(".weight")
            tensors[f"{stem}.input_scale"] = np.array(2, dtype=np.float32)
            tensors[f"{stem.rpartition('.')[0]}.k_scale"] = np.array(2, dtype=np.float32)
            tensors[f"{stem}.bias"] = np.full(len(matrix), bias, dtype=np.float16)
            if layout == "w8a8":  # symmetric, as early versions wrote it
                tensors[f"{name}_zero_point"] = np.zeros((len(matrix), 1), dtype=np.int8)
            return tensors, numbers

        return pack

    source = write_checkpoint(LLAMA, tmp_path / "source")
    pair = write_pair(source, tmp_path / "zeros", with_more(0), described)
    assert difference(prompt_logits(pair.packed, "f32"), prompt_logits(pair.plain, "f32")) < 1e-5
    pair = write_pair(source, tmp_path / "ones", with_more(1), described)
    with pytest.raises(ModelError, match=r"14 tensors that .* does not know: model.layers.0.mlp.down_proj.bias"):
        load_model(pair.packed, ModelOptions("f32"))


def test_matrices_that_families_keep_by_columns_are_refused(tmp_path: Path) -> None:
    pair = write_pair(write_family_checkpoint("gpt2", tmp_path / "source"), tmp_path, *SMALL_GROUPS["awq 16"])
    with pytest.raises(ModelError, match=r"is packed, allowed: numbers, as it is stored by columns"):
        load_model(pair.packed, ModelOptions("int8"))
