"""Adapters as GGUF files: the same as PEFT's, on bases of both kinds; what is not computed is refused by its name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from dragoman.files.model_texts import naming_gguf
from dragoman.gguf.files import read_gguf
from dragoman.models import ModelError, ModelOptions, load_model
from dragoman.models.adapters.files import most_numbers, read_adapter
from dragoman.models.families import read_model
from dragoman.models.profile import AdapterOptions
from dragoman.models.vision.described import read_seeing_config
from tests.models.test_adapters import ALL_SEVEN, EXACT, FAMILIES, logits
from tests.support.adapters import matrices_of, write_adapter, write_gguf_adapter
from tests.support.family_checkpoint import read_case, write_family_checkpoint
from tests.support.gguf_writer import write_gguf
from tests.support.tables import Rows

OF_FAMILIES = {
    **{name: FAMILIES[name] for name in ("llama_llama3", "qwen3", "gemma2", "phi3", "gpt2", "gpt_neox", "falcon_7b")},
    "granite": ALL_SEVEN,
    "lfm2": FAMILIES["lfm2"],
    "mistral_nemo": ALL_SEVEN,
    "phi4_mini": ("qkv_proj", "gate_up_proj"),
    "qwen2_vl": ("q_proj", "k_proj"),
    "qwen3_5_text": ("in_proj_qkv", "in_proj_z", "q_proj", "gate_proj"),
}
"""Cases, and the modules that their adapters change."""


def facts_of(base: Path) -> Any:
    with naming_gguf(base):
        return read_model(read_seeing_config(base), sees=False).facts


def test_a_file_changes_what_the_directory_changes_it_was_made_of(tmp_path: Path) -> None:
    """By the same numbers, whatever the converter does with the rows of the base."""
    with Rows() as rows:
        for name, endings in OF_FAMILIES.items():
            with rows.row(name):
                base = write_family_checkpoint(name, tmp_path / name / "base")
                modules = matrices_of(base, endings)
                assert len(modules) >= len(endings)
                adapter = write_adapter(tmp_path / name / "peft", modules, rank=8, is_transposed=name == "gpt2")
                file = write_gguf_adapter(adapter, base, tmp_path / name / "adapter.gguf")
                found, expected = (read_adapter(path, facts_of(base)).modules for path in (file, adapter))
                assert {below_body(module) for module in found} == {below_body(module) for module in expected}
                by_name = {below_body(module): change for module, change in found.items()}
                for module, change in expected.items():
                    assert np.array_equal(by_name[below_body(module)].down, change.down), module
                    assert np.array_equal(by_name[below_body(module)].up, change.up), module


def below_body(module: str) -> str:
    return re.sub(r"^.*?(?=\b\d)", "", module)


def test_queries_keys_and_values_in_one_tensor_are_three_modules(tmp_path: Path) -> None:
    base = write_family_checkpoint("glm", tmp_path / "base")
    modules = matrices_of(base, ("0.self_attn.q_proj", "0.self_attn.k_proj", "0.self_attn.v_proj"))
    adapter = write_adapter(tmp_path / "peft", modules)
    expected = read_adapter(adapter, facts_of(base)).modules
    down = next(iter(expected.values())).down
    up = np.concatenate([expected[f"model.layers.0.self_attn.{part}_proj"].up for part in "qkv"])
    file = write_raw(tmp_path / "joined.gguf", "chatglm", {"blk.0.attn_qkv.weight": (down, up)})
    found = read_adapter(file, facts_of(base)).modules
    assert set(found) == set(expected)
    for module, change in expected.items():
        assert np.array_equal(found[module].up, change.up)


def test_it_answers_alike_on_bases_of_both_kinds(tmp_path: Path) -> None:
    case = "llama_llama3"
    base = write_gguf(case, read_case(case), tmp_path / "base")
    checkpoint = tmp_path / "base" / "checkpoint"
    modules = matrices_of(checkpoint, ALL_SEVEN) | matrices_of(checkpoint, ("lm_head",))
    adapter = write_adapter(tmp_path / "peft", modules)
    (tmp_path / "store").mkdir()
    file = write_gguf_adapter(adapter, checkpoint, tmp_path / "store" / "a.gguf")

    def answer(model: Path, path: Path, **options: bool) -> Any:
        return logits(
            load_model(model, ModelOptions("f32", num_threads=1, adapters=AdapterOptions((("a", path),), **options))),
            () if options else (0, -1, 0),
        )

    expected = answer(checkpoint, adapter)
    merged = answer(checkpoint, adapter, merges=True)
    assert np.abs(expected - logits(load_model(checkpoint, EXACT))).max() > 1e-2, "the adapter changes nothing"
    with Rows() as rows:
        for model in (base, checkpoint):
            for path in (file, file.parent):
                with rows.row(f"{model.name} {path.name}"):
                    assert np.abs(answer(model, path) - expected).max() < 1e-4
            with rows.row(f"merged into {model.name}"):
                assert np.abs(answer(model, file, merges=True) - merged).max() < 1e-4


def test_alpha_may_be_missing_and_numbers_quantised(tmp_path: Path) -> None:
    facts, down, up = facts_of(write_family_checkpoint("qwen3", tmp_path / "base")), *pair(tmp_path / "base", 32)
    scales = {None: 1.0, 0.0: 1.0, 64.0: 2.0}
    for alpha, scale in scales.items():
        file = write_raw(tmp_path / "a.gguf", "qwen3", {Q: (down, up)}, {"adapter.lora.alpha": alpha})
        (change,) = read_adapter(file, facts).modules.values()
        assert np.array_equal(change.up, up * np.float32(scale))
    for type_name, most in (("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 1e-2)):
        file = write_raw(tmp_path / "a.gguf", "qwen3", {Q: (down, up)}, {"adapter.lora.alpha": 32.0}, type_name)
        (change,) = read_adapter(file, facts).modules.values()
        assert np.abs(change.up - up).max() < most * np.abs(up).max()
        assert most_numbers(file) == down.size + up.size


Q = "blk.0.attn_q.weight"


def pair(base: Path, rank: int = 4) -> tuple[Any, Any]:
    stream = np.random.default_rng(1)
    ((num_out, num_in),) = matrices_of(base, ("0.self_attn.q_proj",)).values()
    down, up = stream.standard_normal((rank, num_in)), stream.standard_normal((num_out, rank))
    return down.astype(np.float32), up.astype(np.float32)


def write_raw(
    target: Path,
    architecture: str,
    tensors: dict[str, tuple[Any, Any]],
    changes: dict[str, Any] | None = None,
    type_name: str = "F32",
) -> Path:
    """A file with these pairs; `changes`: as in `write_gguf_adapter`."""
    keys = {"general.type": "adapter", "adapter.type": "lora"} | (changes or {})
    writer = gguf.GGUFWriter(target, keys.pop("general.architecture", architecture))
    for key, value in keys.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            (writer.add_float32 if isinstance(value, float) else writer.add_string)(key, value)
    kind = gguf.GGMLQuantizationType[type_name]
    for name, pair_of in tensors.items():
        for side, value in zip(("lora_a", "lora_b"), pair_of, strict=True):
            if value is not None:
                data = gguf.quants.quantize(value, kind)
                writer.add_tensor(f"{name}.{side}", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_what_is_not_computed_is_refused_by_its_name(tmp_path: Path) -> None:
    base = write_family_checkpoint("qwen3", tmp_path / "base")
    facts, (down, up) = facts_of(base), pair(base)
    right = {Q: (down, up)}
    spoiled = up.copy()
    spoiled[0, 0] = np.nan
    refused: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (
            right,
            {"general.architecture": "llama"},
            "general.architecture is 'llama', allowed for Qwen3ForCausalLM: qwen3",
        ),
        (right, {"general.architecture": "controlvector"}, "is a control vector"),
        (right, {"adapter.type": "controlvector"}, "is a control vector"),
        (right, {"general.type": "model"}, "general.type is 'model', allowed: 'adapter'"),
        (right, {"adapter.type": None}, "has no adapter.type, allowed: 'lora'"),
        (right, {"adapter.type": "dora"}, "adapter.type is 'dora'"),
        (right, {"adapter.alora.invocation_tokens": [1, 2]}, "adapter.alora.invocation_tokens: an activated LoRA"),
        (right, {"adapter.lora.magnitude": 1.0}, "unknown metadata for an adapter: adapter.lora.magnitude"),
        (right, {"adapter.lora.alpha": -1.0}, "adapter.lora.alpha is -1.0"),
        ({}, {}, "has no tensors"),
        ({Q: (down, None)}, {}, f"'{Q}.lora_a' has no partner '{Q}.lora_b'"),
        ({Q: (down, up[:, :2])}, {}, r"allowed: \[rank, in\] and \[out, rank\]"),
        ({Q: (down, spoiled)}, {}, "not finite"),
        ({"blk.0.attn_q.bias": (down, up)}, {}, "allowed: TENSOR.weight.lora_a"),
        ({"blk.99.attn_q.weight": (down, up)}, {}, "allowed: layers below the model's"),
        ({"blk.0.attn_x.weight": (down, up)}, {}, "blk.0.attn_x.weight"),
        ({"token_embd.weight": (down, up)}, {}, "allowed: matrices of layers, and output.weight"),
    ]
    with Rows() as rows:
        for tensors, changes, said in refused:
            with rows.row(said), pytest.raises(ModelError, match=said) as caught:
                read_adapter(write_raw(tmp_path / "a.gguf", "qwen3", tensors, changes), facts)
            assert "\n" not in str(caught.value)


def test_experts_and_heads_that_are_cut_are_refused(tmp_path: Path) -> None:
    base = write_family_checkpoint("qwen3_moe", tmp_path / "base")
    down, up = np.zeros((2, 4, 8), dtype=np.float32), np.zeros((2, 8, 4), dtype=np.float32)
    with pytest.raises(ModelError, match="experts are not changed"):
        read_adapter(
            write_raw(tmp_path / "a.gguf", "qwen3moe", {"blk.0.ffn_up_exps.weight": (down, up)}), facts_of(base)
        )
    base = write_family_checkpoint("llama_llama3", tmp_path / "llama")
    rows = np.zeros((7, 4), dtype=np.float32)
    with pytest.raises(ModelError, match=r"7 rows of 'blk.0.attn_q.weight', which are not whole heads"):
        read_adapter(write_raw(tmp_path / "b.gguf", "llama", {Q: (down[0], rows)}), facts_of(base))


def test_shapes_are_the_models(tmp_path: Path) -> None:
    base = write_family_checkpoint("qwen3", tmp_path / "base")
    down, up = pair(base)
    file = write_raw(tmp_path / "a.gguf", "qwen3", {Q: (down[:, :-2], up)})
    for merges in (False, True):
        with pytest.raises(ModelError, match=r"self_attn.q_proj'.*allowed: \["):
            load_model(base, ModelOptions("f32", adapters=AdapterOptions((("a", file),), merges=merges)))


def test_paths_that_are_no_adapter_are_told(tmp_path: Path) -> None:
    base = write_family_checkpoint("qwen3", tmp_path / "base")
    facts, right = facts_of(base), {Q: pair(base)}
    for name in ("a", "b"):
        write_raw(tmp_path / f"{name}.gguf", "qwen3", right)
    (tmp_path / "c.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"holds 2 GGUF files, allowed: one, or name the file: a.gguf, b.gguf"):
        read_adapter(tmp_path, facts)
    with pytest.raises(ModelError, match=r"c.bin is not an adapter"):
        read_adapter(tmp_path / "c.bin", facts)
    with pytest.raises(ModelError, match=r"is an adapter .*--lora NAME=FILE"):
        load_model(tmp_path / "a.gguf", EXACT)
    assert read_gguf(tmp_path / "a.gguf").architecture == "qwen3"


def test_a_kept_graph_with_a_merged_file_is_found_by_its_bytes(tmp_path: Path) -> None:
    base = write_family_checkpoint("qwen3", tmp_path / "base")
    down, up = pair(base)
    files = [write_raw(tmp_path / f"{name}.gguf", "qwen3", {Q: (down, up * by)}) for name, by in (("a", 1), ("b", 2))]

    def load(file: Path) -> bool:
        adapters = AdapterOptions((("a", file),), merges=True)
        return load_model(base, ModelOptions("f32", cache_dir=tmp_path / "kept", adapters=adapters)).from_cache

    assert [load(file) for file in (files[0], files[0], files[1])] == [False, True, False]
