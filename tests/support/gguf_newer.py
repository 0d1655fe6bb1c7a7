"""What llama.cpp's converter does with families of 2025 and 2026: Gemma 3n and 4, Ministral 3, mixtures of experts.

Does: rename, stack and tell as its classes do. Does not: write files. Used by `gguf_writer`.
Source of the facts: llama.cpp, conversion/gemma.py, mistral3.py, afmoe.py, exaone.py, hunyuan.py, minimax.py, dots1.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

from tests.support.family_checkpoint import Array

Config = dict[str, Any]

ARCHITECTURES = {
    "AfmoeForCausalLM": "afmoe",
    "ArceeForCausalLM": "arcee",
    "Dots1ForCausalLM": "dots1",
    "ExaoneMoeForCausalLM": "exaone-moe",
    "Gemma3nForCausalLM": "gemma3n",
    "Gemma4ForCausalLM": "gemma4",
    "Gemma4ForConditionalGeneration": "gemma4",
    "Glm4MoeLiteForCausalLM": "deepseek2",
    "HunYuanMoEV1ForCausalLM": "hunyuan-moe",
    "Jais2ForCausalLM": "jais2",
    "MiniMaxM2ForCausalLM": "minimax-m2",
    "NemotronForCausalLM": "nemotron",
    "SolarOpenForCausalLM": "glm4moe",
}
_SEEING = re.compile(r"vision_tower|embed_vision|multi_modal_projector")
_SCALES = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}


def text_part(config: Config, tensors: Mapping[str, Array]) -> tuple[Config, dict[str, Array]]:
    """The config and the tensors of texts alone."""
    texts = {key.replace("language_model.", ""): value for key, value in tensors.items() if not _SEEING.search(key)}
    return config | config.get("text_config", {}), texts


def renamed(key: str, value: Array, name: str) -> tuple[str, Array]:
    """A tensor under the name that the package's table knows."""
    place, _, part = key.removeprefix("model.layers.").partition(".")
    if name == "gemma4" and part in _SCALES:
        return f"blk.{place}.{_SCALES[part]}", value
    if name.startswith("gemma") and not key.endswith(".weight"):
        return f"{key}.weight", value
    if key.endswith(".expert_bias"):
        return f"{key}.bias", value
    return key, value


def stacked(tensors: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """Gemma 3n's matrices of streams, each kind in one tensor."""
    for kind in ("altup_projections", "altup_unembed_projections"):
        names = sorted(key for key in tensors if f".{kind}." in key)
        if names:
            yield f"model.{kind}.weight", np.stack([tensors[key] for key in names])
    yield from (
        (key, value) for key, value in tensors.items() if "altup_projections." not in key and "unembed" not in key
    )


def rope_factors(config: Config, name: str) -> Iterator[tuple[str, Array]]:
    """Of Gemma 4: which pairs of a head turn where a layer sees everything."""
    if name == "gemma4":
        size = config["global_head_dim"]
        turned = int(size * config["rope_parameters"]["full_attention"]["partial_rotary_factor"] / 2)
        yield "rope_freqs.weight", np.array([1.0] * turned + [1e30] * (size // 2 - turned), dtype=np.float32)


def metadata(config: Config, name: str) -> dict[str, Any]:
    """The keys behind the architecture's name that other models do not have."""
    inner, shared = (
        config.get("moe_intermediate_size"),
        config.get("num_shared_experts", config.get("n_shared_experts")),
    )
    rule = config.get("rope_parameters") or {}
    match name:
        case "mistral3" if "llama_4_scaling_beta" in rule:
            return {
                "rope.scaling.yarn_log_multiplier": float(rule["mscale_all_dim"]),
                "attention.temperature_scale": rule["llama_4_scaling_beta"],
            }
        case "gemma3n":
            return _gemma3n(config)
        case "gemma4":
            return _gemma4(config)
        case "minimax-m2":
            inner = config["intermediate_size"]
            return {"expert_feed_forward_length": inner, "rope.dimension_count": config["rotary_dim"]}
        case "nemotron":
            return {"attention.layer_norm_epsilon": config["norm_eps"]}
        case "hunyuan-moe":
            size, alpha = config["head_dim"], config["rope_scaling"]["alpha"]
            return {
                "expert_used_count": config["moe_topk"][0],
                "expert_shared_count": config["num_shared_expert"][0],
                "expert_feed_forward_length": config["moe_intermediate_size"][0],
                "expert_shared_feed_forward_length": config["intermediate_size"],
                "rope.freq_base": config["rope_theta"] * alpha ** (size / (size - 2)),
                "rope.scaling.type": "none",
                "rope.scaling.factor": 1.0,
            }
        case "afmoe":
            return {
                "attention.sliding_window": config["sliding_window"],
                "expert_feed_forward_length": inner,
                "expert_shared_count": shared,
                "expert_weights_norm": config["route_norm"],
                "expert_weights_scale": config["route_scale"],
                "leading_dense_block_count": config["num_dense_layers"],
            }
        case "dots1" | "exaone-moe":
            slides = [kind == "sliding_attention" for kind in config.get("layer_types", ())]
            guessing = config.get("num_nextn_predict_layers")
            return {
                "block_count": config["num_hidden_layers"] + (guessing or 0),
                "nextn_predict_layers": guessing,
                "attention.sliding_window": config["sliding_window"],
                "attention.sliding_window_pattern": slides or None,
                "expert_feed_forward_length": inner,
                "expert_gating_func": 2,
                "expert_shared_count": shared,
                "expert_weights_norm": config["norm_topk_prob"],
                "expert_weights_scale": config["routed_scaling_factor"],
                "leading_dense_block_count": config["first_k_dense_replace"],
            }
    return {}


def _sliding(config: Config) -> dict[str, Any]:
    return {
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "final_logit_softcapping": config["final_logit_softcapping"],
    }


def _gemma3n(config: Config) -> dict[str, Any]:
    sparsity = config["activation_sparsity_pattern"]
    return _sliding(config) | {
        "altup.active_idx": config["altup_active_idx"],
        "altup.num_inputs": config["altup_num_inputs"],
        "activation_sparsity_scale": [NormalDist().inv_cdf(part) if part else -np.inf for part in sparsity],
        "rope.freq_base_swa": config["rope_local_base_freq"],
    }


def _gemma4(config: Config) -> dict[str, Any]:
    full, sliding = (config["rope_parameters"][f"{kind}_attention"]["rope_theta"] for kind in ("full", "sliding"))
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    first = len(slides) - config["num_kv_shared_layers"]
    size, heads = config["intermediate_size"], config["num_key_value_heads"]
    wide = [size if index < first else 2 * size for index in range(len(slides))]
    fewer = config["num_global_key_value_heads"]
    return _sliding(config) | {
        "attention.head_count_kv": heads if fewer is None else [heads if slide else fewer for slide in slides],
        "attention.key_length": config["global_head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length": config["global_head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_used_count": config["top_k_experts"],
        "feed_forward_length": wide if config["use_double_wide_mlp"] else size,
        "rope.dimension_count": config["global_head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
        "rope.freq_base": full,
        "rope.freq_base_swa": sliding,
    }
