"""What llama.cpp's converter does with models whose layers scan: Mamba and its hybrids, and LFM2 with experts.

Does: rename, fold and tell as its classes do. Does not: write files. Used by `gguf_writer`.
Source of the facts: llama.cpp, conversion/mamba.py, jamba.py, granite.py, falcon_h1.py, nemotron.py, lfm2.py.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tests.support.family_checkpoint import Array

Config = dict[str, Any]

ARCHITECTURES = {
    "BambaForCausalLM": "granitehybrid",
    "FalconH1ForCausalLM": "falcon-h1",
    "FalconMambaForCausalLM": "mamba",
    "JambaForCausalLM": "jamba",
    "Lfm2MoeForCausalLM": "lfm2moe",
    "Mamba2ForCausalLM": "mamba2",
    "MambaForCausalLM": "mamba",
    "NemotronHForCausalLM": "nemotron_h",
}
SCANNING = ("falcon-h1", "granitehybrid", "jamba", "mamba", "mamba2", "nemotron_h", "nemotron_h_moe")
PERMUTED = ("granitehybrid", "nemotron_h", "nemotron_h_moe")
_FACTORS = {
    "self_attn.o_proj": "attention_out_multiplier",
    "mamba.out_proj": "ssm_out_multiplier",
    "lm_head": "lm_head_multiplier",
    "embed_tokens": "embedding_multiplier",
}


def architecture(config: Config, name: str) -> str:
    """The file's, where that is not the same for all of a family's models."""
    if name == "granite" and any(kind in ("mamba", "linear_attention") for kind in config.get("layer_types", ())):
        return "granitehybrid"
    return "nemotron_h_moe" if name == "nemotron_h" and "num_experts_per_tok" in config else name


def merged_name(name: str) -> str:
    """That of the stack of a layer's experts, which the package's table knows."""
    name = re.sub(r"^model\.(layers\.\d+\.feed_forward\.experts\.w\d)", r"\1", name)
    return re.sub(r"^\w+\.layers\.(\d+)\.(mixer|feed_forward)\.experts", r"model.layers.\1.mlp.experts", name)


def changed(config: Config, key: str, value: Array, name: str) -> tuple[str, Array]:
    """A tensor as the file has it, under the name that the package's table knows."""
    by_head = name not in ("jamba", "mamba")
    if key.endswith(".A_log"):
        return key, -np.exp(value).reshape(-1, 1) if by_head else -np.exp(value)
    if key.endswith((".mixer.D", ".mamba.D")):
        return key, value.reshape(-1, 1) if by_head else value
    if key.endswith("conv1d.weight"):
        return key, value.squeeze(1)
    if key.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        groups: int = config["mamba_n_groups" if "mamba_n_groups" in config else "n_groups"]
        return key, value.reshape(groups, -1)
    if name == "falcon-h1":
        value = _multiplied(config, key, value)
    return key.replace(".dt_bias", ".dt_proj.bias"), value


def _multiplied(config: Config, key: str, value: Array) -> Array:
    """Falcon H1's numbers, which the file has in its matrices."""
    factor: float | Array = next((config[name] for part, name in _FACTORS.items() if part in key), 1.0)
    if re.search(r"self_attn\.[qkv]_proj", key):
        factor = config["attention_in_multiplier"] * (config["key_multiplier"] if ".k_proj" in key else 1.0)
    if "feed_forward" in key:
        gate, down = config["mlp_multipliers"]
        factor = gate if "gate_proj" in key else down if "down_proj" in key else 1.0
    if "mamba.in_proj" in key:
        inner, state = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = (inner, inner, state, state, config["mamba_n_heads"])
        factor = config["ssm_in_multiplier"] * np.repeat(config["ssm_multipliers"], sizes)[:, None]
    multiplied: Array = value * np.asarray(factor, dtype=np.float32)
    return multiplied


def metadata(config: Config, name: str) -> dict[str, Any]:
    """The keys behind the architecture's name that other models do not have, or have otherwise."""
    if name not in (*SCANNING, "lfm2moe"):
        return {}
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    match name:
        case "mamba" | "mamba2":
            return {
                "context_length": 1 << 20,
                "feed_forward_length": 0,
                "attention.head_count": 0,
                "attention.head_count_kv": None,
                "attention.key_length": None,
                "attention.value_length": None,
                "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
                "attention.layer_norm_epsilon": None,
            } | (_channel_scan(config) if name == "mamba" else _head_scan(config, config["num_heads"]))
        case "jamba":
            attends = [index % config["attn_layer_period"] == config["attn_layer_offset"] for index in range(layers)]
            return {
                "attention.head_count_kv": [config["num_key_value_heads"] * attending for attending in attends],
                "ssm.conv_kernel": config["mamba_d_conv"],
                "ssm.inner_size": config["mamba_expand"] * hidden,
                "ssm.state_size": config["mamba_d_state"],
                "ssm.time_step_rank": config["mamba_dt_rank"],
            }
        case "falcon-h1":
            return _hybrid_scan(config, config["mamba_d_ssm"])
        case "granitehybrid":
            return _granite_hybrid(config)
        case "nemotron_h" | "nemotron_h_moe":
            return _nemotron_h(config, name)
        case "lfm2moe":
            attends = [kind == "full_attention" for kind in config["layer_types"]]
            return {
                "attention.head_count_kv": [config["num_key_value_heads"] * attending for attending in attends],
                "attention.layer_norm_rms_epsilon": config["norm_eps"],
                "leading_dense_block_count": config["num_dense_layers"],
                "expert_feed_forward_length": config["moe_intermediate_size"],
                "expert_gating_func": 2,
                "shortconv.l_cache": config["conv_L_cache"],
            }
    return {}


def _channel_scan(config: Config) -> dict[str, Any]:
    rank, hidden = config["time_step_rank"], config["hidden_size"]
    return {
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.inner_size": config["expand"] * hidden,
        "ssm.state_size": config["state_size"],
        "ssm.time_step_rank": -(-hidden // 16) if rank == "auto" else rank,
        "ssm.dt_b_c_rms": config["model_type"] == "falcon_mamba",
    }


def _head_scan(config: Config, heads: int) -> dict[str, Any]:
    size: int = config["mamba_head_dim" if "mamba_head_dim" in config else "head_dim"]
    return {
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.inner_size": heads * size,
        "ssm.state_size": config.get("state_size", config.get("ssm_state_size")),
        "ssm.time_step_rank": heads,
        "ssm.group_count": config["n_groups"],
    }


def _hybrid_scan(config: Config, inner_size: int) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.inner_size": inner_size,
        "ssm.state_size": config["mamba_d_state"],
        "ssm.time_step_rank": config["mamba_n_heads"],
        "ssm.group_count": config["mamba_n_groups"],
    }


def _granite_hybrid(config: Config) -> dict[str, Any]:
    turns = config["model_type"] == "bamba"
    indices = config.get("attn_layer_indices") or [
        index for index, kind in enumerate(config["layer_types"]) if kind == "attention"
    ]
    names = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
    keys = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")
    return {
        **({} if turns else {"context_length": 1 << 20}),
        **{key: config.get(old) for key, old in zip(keys, names, strict=True)},
        **_hybrid_scan(config, config["mamba_expand"] * config["hidden_size"]),
        "attention.head_count_kv": [
            config["num_key_value_heads"] * (index in indices) for index in range(config["num_hidden_layers"])
        ],
        "expert_shared_feed_forward_length": config.get("shared_intermediate_size"),
        "rope.dimension_count": config.get("attn_rotary_emb", config["hidden_size"] // config["num_attention_heads"]),
        "rope.scaling.finetuned": turns,
    }


def _nemotron_h(config: Config, name: str) -> dict[str, Any]:
    pattern, epsilon = config["hybrid_override_pattern"], config["layer_norm_epsilon"]
    inner = config["moe_intermediate_size"] if name == "nemotron_h_moe" else config["intermediate_size"]
    letter = "E" if name == "nemotron_h_moe" else "-"
    values = {
        "context_length": 1 << 20,
        "attention.head_count_kv": [config["num_key_value_heads"] * (kind == "*") for kind in pattern],
        "attention.layer_norm_rms_epsilon": epsilon,
        "attention.layer_norm_epsilon": epsilon,
        "feed_forward_length": [inner * (kind == letter) for kind in pattern],
        "rope.dimension_count": config["head_dim"],
        "rope.scaling.finetuned": False,
    } | _head_scan(config, config["mamba_num_heads"])
    if name == "nemotron_h":
        return values
    return values | {
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "moe_latent_size": config.get("moe_latent_size"),
    }
