"""Adapters as PEFT and llama.cpp write them, with random values, and checkpoints with such adapters merged in.

Used by the tests of adapters; needs numpy, gguf and safetensors alone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

from dragoman.models.sources.safetensors import SafetensorsWeights
from tests.support.gguf_blocks import quantise
from tests.support.gguf_writer import ARCHITECTURES, converted

Array = np.ndarray[Any, Any]
PREFIX = "base_model.model."


def matrices_of(checkpoint: Path, endings: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Modules of a checkpoint that end in one of these names -> the stored shape of their matrices."""
    return {
        name.removesuffix(".weight"): shape
        for name, shape in SafetensorsWeights(checkpoint).shapes().items()
        if any(name.removesuffix(".weight").endswith(ending) for ending in endings)
    }


def write_adapter(
    directory: Path,
    modules: Mapping[str, tuple[int, ...]],
    *,
    rank: int = 4,
    seed: int = 0,
    is_transposed: bool = False,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """An adapter that changes these modules, of stored matrices [out, in] (`is_transposed`: [in, out]); `directory`."""
    stream = np.random.default_rng(seed)
    tensors: dict[str, Array] = {}
    for module, shape in modules.items():
        num_out, num_in = shape[::-1] if is_transposed else shape
        down = stream.standard_normal((rank, num_in)) / np.sqrt(num_in)
        up = stream.standard_normal((num_out, rank)) / np.sqrt(rank)
        tensors[f"{PREFIX}{module}.lora_A.weight"] = down.astype(np.float32)
        tensors[f"{PREFIX}{module}.lora_B.weight"] = up.astype(np.float32)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "somebody/model",
        "inference_mode": True,
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.05,
        "bias": "none",
        "fan_in_fan_out": is_transposed,
        "target_modules": sorted({module.rpartition(".")[2] for module in modules}),
        "modules_to_save": None,
        **(config or {}),
    }
    (directory / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return directory


def write_merged(checkpoint: Path, adapter: Path, directory: Path, *, is_transposed: bool = False) -> Path:
    """The checkpoint with alpha / r * B A added to its matrices, as f32; `directory`."""
    shutil.copytree(checkpoint, directory)
    weights = load_file(checkpoint / "model.safetensors")
    changes = load_file(adapter / "adapter_model.safetensors")
    settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    for name, down in changes.items():
        if name.endswith(".lora_A.weight"):
            module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
            up = changes[f"{PREFIX}{module}.lora_B.weight"].astype(np.float64)
            delta = settings["lora_alpha"] / settings["r"] * (up @ down.astype(np.float64))
            stored = weights[f"{module}.weight"]
            weights[f"{module}.weight"] = (stored + (delta.T if is_transposed else delta)).astype(np.float32)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def write_gguf_adapter(
    adapter: Path, base: Path, target: Path, *, changes: Mapping[str, Any] | None = None, type_name: str = "F32"
) -> Path:
    """PEFT's adapter as a GGUF file, as llama.cpp's converter writes it; `target`.

    `base`: the checkpoint that it changes; `changes`: metadata that is written otherwise, None = it is left out.
    """
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    name = ARCHITECTURES[config["architectures"][0]]
    keys: dict[str, Any] = {"general.type": "adapter", "adapter.type": "lora"}
    keys |= {"adapter.lora.alpha": float(settings["lora_alpha"]), "general.name": "an adapter"} | dict(changes or {})
    writer = gguf.GGUFWriter(target, keys.pop("general.architecture", name))
    for key, value in keys.items():
        if isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            writer.add_string(key, value)
    changed = load_file(adapter / "adapter_model.safetensors")
    for key in [key for key in changed if key.endswith(".lora_A.weight")]:
        module = key.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        down, up = changed[key], changed[f"{PREFIX}{module}.lora_B.weight"]
        # whatever the converter does with a base's rows it does with those of `up`, as its columns are other ones
        rows_of = converted(config, {f"{module}.weight": up.T if name == "gpt2" else up}, name)
        for tensor, rows in [(tensor, rows) for tensor, rows in rows_of if not tensor.startswith("rope_")]:
            for side, value in (("a", down), ("b", np.ascontiguousarray(rows))):
                kind = gguf.GGMLQuantizationType[type_name]
                data = value if type_name == "F32" else quantise(value, type_name)
                writer.add_tensor(f"{tensor}.lora_{side}", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
