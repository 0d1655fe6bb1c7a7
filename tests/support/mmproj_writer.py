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
from tests.support.gguf_writer import Config, Writing, add_value, write_tensors

KINDS = {
    "Gemma3ForConditionalGeneration": ("gemma3", "Gemma3ForCausalLM"),
    "Idefics3ForConditionalGeneration": ("idefics3", "LlamaForCausalLM"),
    "InternVLForConditionalGeneration": ("internvl", "Qwen2ForCausalLM"),
    "Lfm2VlForConditionalGeneration": ("lfm2", "Lfm2ForCausalLM"),
    "LlavaForConditionalGeneration": ("mlp", "LlamaForCausalLM"),
    "Mistral3ForConditionalGeneration": ("pixtral", "Mistral3ForConditionalGeneration"),
    "Qwen2VLForConditionalGeneration": ("qwen2vl_merger", "Qwen2VLForConditionalGeneration"),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2.5vl_merger", "Qwen2_5_VLForConditionalGeneration"),
    **{
        name: ("qwen3vl_merger", name)
        for name in (
            *("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
            *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
        )
    },
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
}
_PROJECTORS = {  # the package's table has those that are not here
    "mlp": {"linear_1": "mm.0", "linear_2": "mm.2"},
    "lfm2": {"linear_1": "mm.1", "linear_2": "mm.2"},
    "pixtral": {"linear_1": "mm.1", "linear_2": "mm.2"},
    "internvl": {"layer_norm": "mm.model.mlp.0", "linear_1": "mm.model.mlp.1", "linear_2": "mm.model.mlp.3"},
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
    writer = gguf.GGUFWriter(path, changes.pop("general.architecture", "clip"))
    values = {**_values(case["config"], case["preprocessor"], kind), **_values_of_kind(case, kind)}
    for key, value in (values | changes).items():
        if value is not None:
            add_value(writer, key, value)
    for name, value in _converted(case["config"], kind, tensors):
        target = _swapped(name) if swaps else name
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


def _swapped(name: str) -> str:
    return name.replace("ffn_up", "ffn_").replace("ffn_down", "ffn_up").replace("ffn_.", "ffn_down.")


# --- metadata ---------------------------------------------------------------------------------------------------------


def _values(config: Config, pictures: Config, kind: str) -> Config:
    """The keys that all kinds of files have."""
    vision = config["vision_config"]
    is_silu = kind == "qwen2.5vl_merger" or vision.get("hidden_act") == "silu"
    return {
        "general.type": "mmproj",
        "clip.projector_type": kind,
        "clip.has_vision_encoder": True,
        "clip.use_silu": is_silu,
        "clip.use_gelu": not is_silu and kind not in ("mlp", "qwen2vl_merger"),
        "clip.vision.image_size": _side(vision.get("image_size", 560)),
        "clip.vision.patch_size": _side(vision["patch_size"]),
        "clip.vision.embedding_length": vision.get("embed_dim", vision["hidden_size"]),
        "clip.vision.feed_forward_length": vision.get("intermediate_size", vision["hidden_size"]),
        "clip.vision.block_count": _num_layers(vision),
        "clip.vision.attention.head_count": vision.get("num_attention_heads", vision.get("num_heads")),
        "clip.vision.attention.layer_norm_epsilon": vision.get(
            "layer_norm_eps", 1e-5 if kind in ("mlp", "pixtral") else 1e-6
        ),
        "clip.vision.projection_dim": config.get("text_config", config)["hidden_size"],
        "clip.vision.image_mean": pictures["image_mean"],
        "clip.vision.image_std": pictures["image_std"],
    }


def _values_of_kind(case: Config, kind: str) -> Config:
    """The keys that one kind of file has."""
    config, pictures, vision = case["config"], case["preprocessor"], case["config"]["vision_config"]
    values: Config = {}
    match kind:
        case "gemma3":
            side = vision["image_size"] // vision["patch_size"]
            values["projector.scale_factor"] = int(side / config["mm_tokens_per_image"] ** 0.5)
        case "idefics3":
            values["projector.scale_factor"] = config["scale_factor"]
            values["preproc_image_size"] = pictures["size"]["longest_edge"]
        case "internvl":
            values["projector.scale_factor"] = int(1 / config["downsample_ratio"])
            values["preproc_min_tiles"] = pictures["min_patches"]
            values["preproc_max_tiles"] = pictures["max_patches"]
        case "lfm2":
            values["projector.scale_factor"] = config["downsample_factor"]
            values["image_size"] = 256
        case "pixtral":
            values["spatial_merge_size"] = config["spatial_merge_size"]
        case "qwen2.5vl_merger":
            values["n_wa_pattern"] = vision["fullatt_block_indexes"][0] + 1
            values["window_size"] = vision["window_size"]
        case "qwen3vl_merger":
            levels = vision.get("deepstack_visual_indexes", [])
            values["is_deepstack_layers"] = [index in levels for index in range(_num_layers(vision))]
            values["spatial_merge_size"] = vision["spatial_merge_size"]
    if kind.startswith("qwen"):
        size = pictures.get("size", {})
        values["image_min_pixels"] = pictures.get("min_pixels", size.get("shortest_edge"))
        values["image_max_pixels"] = pictures.get("max_pixels", size.get("longest_edge"))
    return {f"clip.vision.{key}": value for key, value in values.items()}


def _num_layers(vision: Config) -> int:
    layers: int = vision["depth" if "depth" in vision else "num_hidden_layers"]
    return layers


def _side(size: Any) -> int:
    """A number, or the first of two."""
    side: int = size[0] if isinstance(size, list) else size
    return side


# --- tensors ----------------------------------------------------------------------------------------------------------


def _converted(config: Config, kind: str, tensors: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """Every tensor as the file has it."""
    vision = config["vision_config"]
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, _num_layers(vision))
    levels = vision.get("deepstack_visual_indexes", [])
    for name, value in _cut(tensors, keeps_joined=kind == "qwen3vl_merger"):
        target = _renamed(table, kind, name, levels)
        if kind != "mlp" or "post_ln" not in target:
            yield target, _changed(vision, kind, target, value)
    if kind == "pixtral":
        yield "v.token_embd.img_break", np.ones(config["text_config"]["hidden_size"])


def _changed(vision: Config, kind: str, target: str, value: Array) -> Array:
    """The values of a tensor as the file has them."""
    if target.endswith("soft_emb_norm.weight"):
        return value + 1
    if kind == "pixtral" and re.search(r"attn_[qk]\.weight", target):
        halves = value.reshape(vision["num_attention_heads"], 2, -1, value.shape[1])
        return halves.swapaxes(1, 2).reshape(value.shape)
    if kind == "lfm2" and target == "v.patch_embd.weight":
        side = vision["patch_size"]
        return value.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
    return value


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


def _renamed(table: gguf.TensorNameMap, kind: str, name: str, levels: Sequence[int]) -> str:
    if name.endswith("mm_input_projection_weight"):
        return "mm.input_projection.weight"
    if name.endswith(("class_embedding", "cls_token")):
        return "v.class_embd"
    if name.endswith("weight.1"):
        return f"{_renamed(table, kind, name.removesuffix('.1'), levels)}.1"
    if name.endswith((".lambda_1", ".lambda_2", ".position_embeddings")):
        name = f"{name}.weight"
    stem, _, ending = name.rpartition(".")
    if kind.startswith("qwen") or kind == "lfm2":
        stem = stem.removeprefix("model.")
    if kind == "lfm2":  # the converter's checkpoints have one part more in their names
        stem = stem.replace("vision_tower.", "vision_tower.vision_model.")
    if level := re.fullmatch(r"visual\.deepstack_merger_list\.(\d)\.(?:linear_)?(\w+)", stem):
        return f"v.deepstack.{levels[int(level[1])]}.{level[2]}.{ending}"
    part = stem.rpartition("multi_modal_projector.")[2]
    if kind == "internvl" and stem.startswith("vision_tower."):
        stem = f"model.{stem}"  # as transformers writes it
    found = _LINEAR.get(stem) or _PROJECTORS.get(kind, {}).get(part) or table.get_name(stem)
    assert found is not None, name
    return f"{found}.{ending}"
