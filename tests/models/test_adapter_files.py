"""What may be in an adapter's directory, and what is refused, by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dragoman.models import ModelError, ModelOptions, load_model
from dragoman.models.adapters.files import read_peft_adapter
from dragoman.models.profile import AdapterOptions
from tests.support.adapters import PREFIX, matrices_of, write_adapter
from tests.support.family_checkpoint import write_family_checkpoint

MODULES = {f"model.layers.{layer}.self_attn.{name}": (8, 6) for layer in (0, 1) for name in ("q_proj", "v_proj")}
Q0, V1 = (f"model.layers.{layer}.self_attn.{name}" for layer, name in ((0, "q_proj"), (1, "v_proj")))
WEIGHTS = "adapter_model.safetensors"


def changed(directory: Path, **config: Any) -> Path:
    return write_adapter(directory, MODULES, config=config)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"peft_type": "LOHA"}, "peft_type"),
        ({"task_type": "SEQ_CLS"}, "task_type"),
        ({"bias": "all"}, "bias"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"target_parameters": ["experts.w"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"r": 0}, "r is 0"),
        ({"r": 5}, f"{PREFIX}{Q0}.lora_A.weight"),
        ({"rank_pattern": {"v_proj": 2}}, f"{PREFIX}model.layers.0.self_attn.v_proj.lora_A.weight"),
        ({"rank_pattern": {"v_proj": "x"}}, "rank_pattern"),
        ({"alpha_pattern": {"(": 2}}, "alpha_pattern"),
        ({"lora_alpha": "high"}, "lora_alpha"),
        ({"target_modules": ["q_proj"]}, "model.layers.0.self_attn.v_proj"),
        ({"target_modules": ["q_proj", "v_proj", "o_proj"]}, "o_proj"),
        ({"target_modules": r".*\.q_proj"}, "model.layers.0.self_attn.v_proj"),
        ({"target_modules": "("}, "target_modules"),
        ({"layers_to_transform": [0]}, "model.layers.1"),
        ({"exclude_modules": ["v_proj"]}, "v_proj"),
        ({"new_kind_of_adapter": 3}, "new_kind_of_adapter"),
    ],
)
def test_what_is_not_computed_is_refused_by_its_key_or_tensor(
    config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as caught:
        read_peft_adapter(changed(tmp_path / "a", **config))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": "all-linear"},
        {"target_modules": r"model\.layers\.\d+\.self_attn\.[qv]_proj"},
        {"layers_to_transform": [0, 1], "layers_pattern": "layers"},
        {"modules_to_save": [], "use_dora": False, "init_lora_weights": "pissa", "peft_version": "0.18.0"},
        {"task_type": None, "exclude_modules": ["o_proj"]},
    ],
)
def test_what_changes_nothing_is_read_over(config: dict[str, Any], tmp_path: Path) -> None:
    assert set(read_peft_adapter(changed(tmp_path / "a", **config)).modules) == set(MODULES)


def test_scales_follow_rank_and_alpha_of_each_module(tmp_path: Path) -> None:
    plain = read_peft_adapter(changed(tmp_path / "plain", lora_alpha=4)).modules  # of rank 4: times 1
    stabilised = read_peft_adapter(changed(tmp_path / "rs", lora_alpha=4, use_rslora=True)).modules
    patterned = read_peft_adapter(
        changed(tmp_path / "p", lora_alpha=4, alpha_pattern={r"1\.self_attn\.v_proj": 12})
    ).modules
    assert np.allclose(stabilised[Q0].up, plain[Q0].up * 2)  # 4 / sqrt(4)
    assert np.allclose(patterned[V1].up, plain[V1].up * 3)
    assert np.array_equal(patterned[Q0].up, plain[Q0].up)


def test_files_that_are_missing_or_run_code_are_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a directory"):
        read_peft_adapter(tmp_path / "none")
    directory = changed(tmp_path / "a")
    (directory / WEIGHTS).rename(directory / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"adapter_model\.bin is a pickle.*save_pretrained"):
        read_peft_adapter(directory)
    (directory / "adapter_model.bin").unlink()
    with pytest.raises(ModelError, match=f"{WEIGHTS} does not exist"):
        read_peft_adapter(directory)
    (directory / WEIGHTS).write_bytes(b"\xff" * 40)
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        read_peft_adapter(directory)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{PREFIX}{Q0}.lora_A.weight", "has no partner"),
        (f"{PREFIX}model.embed_tokens.lora_embedding_A", "lora_embedding_A"),
        (f"{PREFIX}{Q0}.lora_magnitude_vector", "lora_magnitude_vector"),
        (f"{PREFIX}lm_head.modules_to_save.weight", "modules_to_save"),
    ],
)
def test_tensors_of_another_kind_are_refused_by_name(name: str, said: str, tmp_path: Path) -> None:
    directory = changed(tmp_path / "a")
    tensors = load_file(directory / WEIGHTS)
    if name in tensors:
        del tensors[name]
    else:
        tensors[name] = np.zeros((4, 6), dtype=np.float32)
    save_file(tensors, directory / WEIGHTS)
    with pytest.raises(ModelError, match=said):
        read_peft_adapter(directory)


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    directory = changed(tmp_path / "a")
    tensors = load_file(directory / WEIGHTS)
    tensors[f"{PREFIX}{Q0}.lora_B.weight"][0, 0] = np.inf
    save_file(tensors, directory / WEIGHTS)
    with pytest.raises(ModelError, match="not finite"):
        read_peft_adapter(directory)


@pytest.mark.parametrize("merges", [False, True])
def test_an_adapter_of_another_model_is_refused_with_the_module(merges: bool, tmp_path: Path) -> None:
    base = write_family_checkpoint("qwen3", tmp_path / "base")
    (q_proj, (num_out, num_in)), *_ = matrices_of(base, ("0.self_attn.q_proj",)).items()
    for modules, said in (
        ({q_proj: (num_out, num_in + 2)}, f"{q_proj}'.*allowed: \\[{num_out}, {num_in}\\]"),
        ({q_proj: (num_out + 2, num_in)}, f"{q_proj}'.*allowed: \\[{num_out}, {num_in}\\]"),
        ({q_proj.replace("q_proj", "c_attn"): (num_out, num_in)}, "c_attn"),
        ({q_proj.replace("layers.0", "layers.99"): (num_out, num_in)}, r"layers\.99"),
        ({f"vision_tower.{q_proj}": (num_out, num_in)}, "vision_tower"),
    ):
        adapter = write_adapter(tmp_path / f"a{len(list(tmp_path.iterdir()))}", modules)
        options = ModelOptions("f32", adapters=AdapterOptions((("a", adapter),), merges=merges))
        with pytest.raises(ModelError, match=said):
            load_model(base, options)


def test_experts_are_refused_beside_the_weights_and_merged_into_them(tmp_path: Path) -> None:
    base = write_family_checkpoint("mixtral", tmp_path / "base")
    modules = matrices_of(base, ("experts.0.w1",))
    named = (("a", write_adapter(tmp_path / "a", modules)),)
    with pytest.raises(ModelError, match=r"experts\.0\.w1.*outside experts"):
        load_model(base, ModelOptions("f32", adapters=AdapterOptions(named)))
    load_model(base, ModelOptions("f32", adapters=AdapterOptions(named, merges=True)))


def test_a_kept_graph_is_found_again_for_the_same_modules_alone(tmp_path: Path) -> None:
    base = write_family_checkpoint("qwen3", tmp_path / "base")
    every = matrices_of(base, ("q_proj", "v_proj"))
    some = {name: shape for name, shape in every.items() if name.endswith("q_proj")}
    first, same, other = (
        write_adapter(tmp_path / name, modules, seed=seed)
        for name, modules, seed in (("first", every, 1), ("same", every, 2), ("other", some, 3))
    )

    def load(adapter: Path, *, merges: bool = False) -> bool:
        adapters = AdapterOptions((("a", adapter),), merges=merges)
        return load_model(base, ModelOptions("f32", cache_dir=tmp_path / "kept", adapters=adapters)).from_cache

    assert [load(adapter) for adapter in (first, same, other)] == [False, True, False]
    assert [load(adapter, merges=True) for adapter in (first, first, same)] == [False, True, False]


def test_settings_that_are_no_json_are_told(tmp_path: Path) -> None:
    directory = changed(tmp_path / "a")
    (directory / "adapter_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match=r"adapter_config\.json"):
        read_peft_adapter(directory)
    (directory / "adapter_config.json").write_text(json.dumps([1]), encoding="utf-8")
    with pytest.raises(ModelError, match="expected a JSON object"):
        read_peft_adapter(directory)
