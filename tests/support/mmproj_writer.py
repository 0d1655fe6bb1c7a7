"""Writes the tower and projector of the cases of tests/models/vision as llama.cpp's converter does: a file mmproj.

Does: rename tensors, and write the metadata. Names are those of the `gguf` package's own table. Does not: write the text's
part (`gguf_writer` does). Source of the facts: llama.cpp, convert_hf_to_gguf.py and tools/mtmd.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.support.family_checkpoint import Array
from tests.support.gguf_blocks import quantise
from tests.support.gguf_writer import Config, Writing, write_tensors

KINDS = {
    "Gemma3ForConditionalGeneration": ("gemma3", "Gemma3ForCausalLM"),
    "Idefics3ForConditionalGeneration": ("idefics3", "LlamaForCausalLM"),
    "LlavaForConditionalGeneration": ("mlp", "LlamaForCausalLM"),
    "Qwen2VLForConditionalGeneration": ("qwen2vl_merger", "Qwen2VLForConditionalGeneration"),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2.5vl_merger", "Qwen2_5_VLForConditionalGeneration"),
    "Qwen3VLForConditionalGeneration": ("qwen3vl_merger", "Qwen3VLForConditionalGeneration"),
    "SmolVLMForConditionalGeneration": ("idefics3", "LlamaForCausalLM"),
}
_BODIES = ("language_model.model.", "model.language_model.", "model.text_model.", "language_model.")
_SEEING = re.compile("visual|vision|projector|connector")
_LINEAR = {
    "visual.merger.linear_fc1": "mm.0",
    "visual.merger.linear_fc2": "mm.2",
    "visual.merger.norm": "v.post_ln",
    "visual.merger.mlp.0": "mm.0",
    "visual.merger.mlp.2": "mm.2",
    "multi_modal_projector.linear_1": "mm.0",
    "multi_modal_projector.linear_2": "mm.2",
}


def write_both(
    case: Config,
    tensors: Mapping[str, Array],
    directory: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    type_name: str = "F32",
    swaps: bool = False,
    tokenizer: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """The model and, beside it, what sees of it. `changes`: metadata of the latter, None = it is left out.

    `swaps`: the MLP's matrices have each other's names, as the first converter wrote them. `tokenizer`: keys behind
    `tokenizer.`, None = only the case's words.
    """
    config = case["config"]
    kind, decoder = KINDS[config["architectures"][0]]
    seeing = {name: value for name, value in tensors.items() if _SEEING.search(name)}
    text = {_below_body(name): value for name, value in tensors.items() if name not in seeing}
    directory.mkdir(parents=True, exist_ok=True)
    text_config = {**config.get("text_config", config), "architectures": [decoder]}
    text_config.setdefault("vision_config", config["vision_config"])
    tokens = [f"<w{index}>" for index in range(text_config["vocab_size"])]
    for token, index in case["tokens"].items():
        tokens[index] = token
    keys = {"ggml.tokens": tokens}
    model = write_tensors(text_config, text, directory / "model.gguf", "F32", Writing(tokenizer=tokenizer or keys))
    return model, _write(case, kind, seeing, directory / "mmproj-model.gguf", dict(changes or {}), type_name, swaps)


def _below_body(name: str) -> str:
    if name.endswith("lm_head.weight"):
        return "lm_head.weight"
    return next((f"model.{name.removeprefix(body)}" for body in _BODIES if name.startswith(body)), name)


def _write(
    case: Config, kind: str, tensors: Mapping[str, Array], path: Path, changes: Config, type_name: str, swaps: bool
) -> Path:
    vision, pictures = case["config"]["vision_config"], case["preprocessor"]
    layers = vision.get("num_hidden_layers", vision.get("depth"))
    writer = gguf.GGUFWriter(path, changes.pop("general.architecture", "clip"))
    values: Config = {
        "general.type": "mmproj",
        "clip.projector_type": kind,
        "clip.has_vision_encoder": True,
        "clip.use_silu": kind == "qwen2.5vl_merger",
        "clip.use_gelu": kind in ("gemma3", "idefics3", "qwen3vl_merger"),
        "clip.vision.image_size": vision.get("image_size", 560),
        "clip.vision.patch_size": vision["patch_size"],
        "clip.vision.embedding_length": vision.get("embed_dim", vision["hidden_size"]),
        "clip.vision.feed_forward_length": vision.get("intermediate_size", vision["hidden_size"]),
        "clip.vision.block_count": layers,
        "clip.vision.attention.head_count": vision.get("num_attention_heads", vision.get("num_heads")),
        "clip.vision.attention.layer_norm_epsilon": vision.get("layer_norm_eps", 1e-5 if kind == "mlp" else 1e-6),
        "clip.vision.projection_dim": case["config"].get("text_config", case["config"])["hidden_size"],
        "clip.vision.image_mean": pictures["image_mean"],
        "clip.vision.image_std": pictures["image_std"],
    }
    if kind == "gemma3":
        side = vision["image_size"] // vision["patch_size"]
        values["clip.vision.projector.scale_factor"] = int(side / case["config"]["mm_tokens_per_image"] ** 0.5)
    if kind == "qwen2.5vl_merger":
        values["clip.vision.n_wa_pattern"] = vision["fullatt_block_indexes"][0] + 1
        values["clip.vision.window_size"] = vision["window_size"]
    if kind.startswith("qwen"):
        size = pictures.get("size", {})
        values["clip.vision.image_min_pixels"] = pictures.get("min_pixels", size.get("shortest_edge"))
        values["clip.vision.image_max_pixels"] = pictures.get("max_pixels", size.get("longest_edge"))
    levels = vision.get("deepstack_visual_indexes", [])
    if kind == "qwen3vl_merger":
        values["clip.vision.is_deepstack_layers"] = [index in levels for index in range(layers)]
    if kind == "idefics3":
        values["clip.vision.projector.scale_factor"] = case["config"]["scale_factor"]
        values["clip.vision.preproc_image_size"] = pictures["size"]["longest_edge"]
    for key, value in (values | changes).items():
        match value:
            case None:
                pass
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, layers)
    for name, stored in _cut(tensors, keeps_joined=kind == "qwen3vl_merger"):
        target = _renamed(table, name, levels)
        value = stored + 1 if target.endswith("soft_emb_norm.weight") else stored
        if swaps:
            target = target.replace("ffn_up", "ffn_").replace("ffn_down", "ffn_up").replace("ffn_.", "ffn_down.")
        if kind == "mlp" and "post_ln" in target:
            continue
        is_small = value.ndim != 2 or "embd" in target or value.shape[1] % gguf.GGML_QUANT_SIZES[_type(type_name)][0]
        if is_small or type_name == "F32":
            writer.add_tensor(target, np.ascontiguousarray(value, dtype=np.float32))
        else:
            writer.add_tensor(target, quantise(value, type_name), raw_dtype=_type(type_name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _cut(tensors: Mapping[str, Array], *, keeps_joined: bool) -> Iterator[tuple[str, Array]]:
    """Queries, keys and values apart, unless they stay joined, and the two frames of a patch."""
    for name, value in tensors.items():
        if ".attn.qkv." in name and not keeps_joined:
            yield from ((name.replace("qkv", part), one) for part, one in zip("qkv", np.split(value, 3), strict=True))
        elif value.ndim == 5:
            yield from ((f"{name}{end}", value[:, :, index]) for index, end in enumerate(("", ".1")))
        else:
            yield name, value


def _type(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name]


def _renamed(table: gguf.TensorNameMap, name: str, levels: Sequence[int]) -> str:
    if name.endswith("mm_input_projection_weight"):
        return "mm.input_projection.weight"
    if name.endswith("class_embedding"):
        return "v.class_embd"
    if name.endswith("weight.1"):
        return f"{_renamed(table, name.removesuffix('.1'), levels)}.1"
    stem, _, ending = name.removeprefix("model.").rpartition(".") if ".visual." in name else name.rpartition(".")
    if level := re.fullmatch(r"visual\.deepstack_merger_list\.(\d)\.(?:linear_)?(\w+)", stem):
        return f"v.deepstack.{levels[int(level[1])]}.{level[2]}.{ending}"
    found = _LINEAR.get(stem) or table.get_name(stem)
    assert found is not None, name
    return f"{found}.{ending}"
