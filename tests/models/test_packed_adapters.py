"""Adapters beside weights that are packed; and what refuses them: merging into such weights, and exported graphs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dragoman.models import ModelError, ModelOptions, load_model
from dragoman.models.profile import AdapterOptions
from tests.models.test_adapters import ALL_SEVEN, EXACT, logits, of_prompt
from tests.support.adapters import matrices_of, write_adapter, write_merged
from tests.support.exported_model import write_exported
from tests.support.gguf_writer import write_tensors
from tests.support.packed_layouts import LAYOUTS, LLAMA
from tests.support.packers import PackedPair, write_pair
from tests.support.random_checkpoint import write_checkpoint
from tests.support.tiers import width

PACKED = ("awq", "gptq, any order", "w8a8", "Q8_0", "Q4_0")
"""Layouts of checkpoints, and types of GGUF files."""


def pair_of(layout: str, directory: Path) -> PackedPair:
    """A llama that is packed, and a checkpoint of the numbers that it stands for."""
    source = write_checkpoint(LLAMA, directory / "source")
    if layout in LAYOUTS:
        return write_pair(source, directory, *LAYOUTS[layout])
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    tensors = {name: tensor.astype(np.float32) for name, tensor in load_file(source / "model.safetensors").items()}
    packed = write_tensors(config, tensors, directory / "packed.gguf", layout)
    kind = gguf.GGMLQuantizationType[layout]
    for name, matrix in tensors.items():
        if matrix.ndim == 2:  # the file has rows in another order, of the same blocks
            tensors[name] = gguf.quants.dequantize(gguf.quants.quantize(matrix, kind), kind)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    return PackedPair(packed, source)


@pytest.mark.parametrize("layout", width(PACKED, ["gptq, any order", "Q8_0"]))
def test_adapters_change_packed_weights_as_they_change_their_numbers(layout: str, tmp_path: Path) -> None:
    pair = pair_of(layout, tmp_path)
    adapter = write_adapter(tmp_path / "a", matrices_of(pair.plain, ALL_SEVEN), rank=8)
    with_adapter = replace(EXACT, adapters=AdapterOptions((("a", adapter),)))
    mixed = logits(load_model(pair.packed, with_adapter), (0, -1, 0))

    changed = logits(load_model(write_merged(pair.plain, adapter, tmp_path / "merged"), EXACT))
    plain = logits(load_model(pair.plain, EXACT))
    for prompt, expected in ((0, changed), (1, plain), (2, changed)):
        assert np.abs(of_prompt(mixed, prompt) - of_prompt(expected, prompt)).max() < 1e-4
    assert np.abs(changed - plain).max() > 1e-2, "the adapter changes nothing"


@pytest.mark.parametrize("layout", width(["Q4_1", "Q5_0", "MXFP4", "fp8 in blocks"], ["MXFP4", "fp8 in blocks"]))
def test_an_adapter_is_merged_into_weights_that_are_unpacked_when_they_are_read(layout: str, tmp_path: Path) -> None:
    pair = pair_of(layout, tmp_path)
    adapter = write_adapter(tmp_path / "a", matrices_of(pair.plain, ALL_SEVEN))
    merging = replace(EXACT, adapters=AdapterOptions((("a", adapter),), merges=True))
    expected = logits(load_model(write_merged(pair.plain, adapter, tmp_path / "merged"), EXACT))
    assert np.abs(logits(load_model(pair.packed, merging)) - expected).max() < 1e-4


@pytest.mark.parametrize("layout", PACKED)
def test_merging_into_packed_weights_is_refused(layout: str, tmp_path: Path) -> None:
    pair = pair_of(layout, tmp_path)
    adapter = write_adapter(tmp_path / "a", matrices_of(pair.plain, ("v_proj",)))
    merging = ModelOptions("int8", adapters=AdapterOptions((("a", adapter),), merges=True), kernels="openvino")
    with pytest.raises(ModelError, match=r"'model\.layers\.0\.self_attn\.v_proj\.weight' is packed, allowed: numbers"):
        load_model(pair.packed, merging)


def test_an_exported_graph_refuses_adapters(tmp_path: Path) -> None:
    exported = write_exported("llama_llama3", tmp_path / "exported")
    adapter = ("a", write_adapter(tmp_path / "a", {"model.layers.0.self_attn.v_proj": (16, 64)}))
    for options in (
        AdapterOptions((adapter,)),
        AdapterOptions((adapter,), merges=True),
        AdapterOptions(takes_more=True),
    ):
        with pytest.raises(ModelError, match="holds an exported graph, which cannot take adapters"):
            load_model(exported, ModelOptions(adapters=options))
