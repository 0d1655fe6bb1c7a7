"""What llama.cpp's converter does with Qwen3-Next, Qwen 3.5, and Qwen's models that see.

Does: rename, put in order and compute as its classes do. Does not: write files. Used by `gguf_writer`.
Source of the facts: llama.cpp, conversion/qwen.py, qwenvl.py and qwen3vl.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.support.family_checkpoint import Array

Config = dict[str, Any]

WITH_STATES = ("qwen3next", "qwen35", "qwen35moe")
_SEEING = re.compile(r"visual\.|vision_tower\.|multi_modal_projector\.")
_GUESSING = {  # newer than the package's table
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head_norm",
}


def text_part(config: Config, name: str, tensors: dict[str, Array]) -> tuple[Config, dict[str, Array]]:
    """The config and the tensors of texts alone; tensors that guess further tokens as those of layers after the last."""
    config = config | config.get("text_config", {})
    texts = {key.replace("language_model.", ""): value for key, value in tensors.items() if not _SEEING.search(key)}
    if name not in WITH_STATES:
        return config, texts
    last = config["num_hidden_layers"]
    found = {_guessing_name(key, last): value for key, value in texts.items()}
    guessing = config.get("mtp_num_hidden_layers") or int(len(found.keys() - texts.keys()) > 0)
    return config | {"num_nextn_predict_layers": guessing}, found


def _guessing_name(key: str, last: int) -> str:
    part = re.fullmatch(r"mtp\.(\w+)\.weight", key)
    return (
        f"blk.{last}.nextn.{_GUESSING[part[1]]}.weight" if part else key.replace("mtp.layers.0", f"model.layers.{last}")
    )


def changed(config: Config, key: str, value: Array, name: str) -> Iterator[tuple[str, Array]]:
    """A tensor as the file has it, under the name that the package's table knows."""
    keys, heads = (config.get(f"linear_num_{kind}_heads", 0) for kind in ("key", "value"))
    if name in ("qwen35", "qwen35moe") and "linear_attn." in key and keys != heads:
        value = _turning(config, key, value)
    if key.endswith(".A_log"):
        value = -np.exp(value)
    elif key.endswith(".dt_bias"):
        key = key.replace(".dt_bias", ".dt_proj.bias")
    elif "conv1d" in key:
        value = value.squeeze(1)
    elif name in WITH_STATES and key.endswith("norm.weight") and not key.endswith("linear_attn.norm.weight"):
        value = value + 1
    if "experts.gate_up_proj" in key:
        value = value.swapaxes(1, 2) if name == "qwen3vlmoe" else value
        for part, half in zip(("gate", "up"), np.split(value, 2, axis=1), strict=True):
            yield key.replace("gate_up_proj", f"{part}_proj.weight"), half
    elif key.endswith("experts.down_proj"):
        yield f"{key}.weight", value.swapaxes(1, 2) if name == "qwen3vlmoe" else value
    elif "in_proj_qkvz" in key and not config["legacy"]:
        yield from _apart(config, key, value)
    else:
        yield key, value


def _apart(config: Config, key: str, value: Array) -> Iterator[tuple[str, Array]]:
    keys, readers = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"]
    size, wide = config["linear_key_head_dim"], readers * config["linear_value_head_dim"]
    grouped = value.reshape(keys, -1, value.shape[-1])
    *mixed, gate = np.split(grouped, np.cumsum((size, size, wide)), axis=1)
    yield key.replace("qkvz", "qkv"), np.concatenate([part.reshape(-1, value.shape[-1]) for part in mixed])
    yield key.replace("qkvz", "z"), gate.reshape(-1, value.shape[-1])


def _turning(config: Config, key: str, value: Array) -> Array:
    """Heads of values from all of a key below each other to the first of every key, the second of every key, and so on."""
    keys, heads, size = (config[f"linear_{name}"] for name in ("num_key_heads", "num_value_heads", "value_head_dim"))
    if "out_proj" in key:
        return _turned(value.T, keys, heads).T
    if ".norm." in key:
        return value
    before = len(value) - heads * size if "qkv" in key or "conv1d" in key else 0
    return np.concatenate((value[:before], _turned(value[before:], keys, heads)))


def _turned(value: Array, keys: int, heads: int) -> Array:
    return value.reshape(keys, heads // keys, -1, *value.shape[1:]).swapaxes(0, 1).reshape(value.shape)


def metadata(config: Config, name: str) -> dict[str, Any]:
    """The keys behind the architecture's name that other models do not have."""
    rule = config.get("rope_parameters") or config.get("rope_scaling") or {}
    sections = rule.get("mrope_section") or ([11, 11, 10] if name.startswith("qwen35") else None)
    values: dict[str, Any] = {"rope.dimension_sections": [*sections, 0] if sections else None}
    if name.startswith("qwen3vl"):
        values["n_deepstack_layers"] = len(config["vision_config"]["deepstack_visual_indexes"])
    if name in WITH_STATES:
        values |= _states(config, rule)
    return values


def _states(config: Config, rule: Config) -> dict[str, Any]:
    layers, guessing = config["num_hidden_layers"], config["num_nextn_predict_layers"]
    kinds, heads = config.get("layer_types"), config["linear_num_value_heads"]
    recurs = [kind == "linear_attention" for kind in kinds or ()] + [False] * guessing
    part = rule.get("partial_rotary_factor", config.get("partial_rotary_factor", 0.25))
    return {
        "block_count": layers + guessing,
        "nextn_predict_layers": guessing or None,
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": config["linear_value_head_dim"] * heads,
        "attention.recurrent_layers": recurs if kinds else None,
        "full_attention_interval": config.get("full_attention_interval", 4),
        "rope.dimension_count": int(config["head_dim"] * part),
    }
