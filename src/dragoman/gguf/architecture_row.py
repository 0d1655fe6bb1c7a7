"""The row that describes an architecture of GGUF files, and parts shared by several rows.

Source of the facts: llama.cpp's converter of Hugging Face checkpoints, inverted here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Names = dict[str, str]
Order = Literal["pairs", "by_group", "turns", "turns_by_column"]
"""The order of rows in a file: a head's halves taking turns; queries, keys and values apart that belong in groups; or,
at the end, heads of values whose keys take turns, for columns too.
"""


def without(names: Names, *keys: str) -> Names:
    return {key: name for key, name in names.items() if key not in keys}


KEYS = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture. `hugging_face`: its name in config.json. `keys`: of config.json, with the metadata's keys for them.

    `fixed`: keys and values of all its models. `unread`: keys of the metadata that change nothing here. `flags`: keys
    that are true if a layer has a tensor whose name begins so; `sizes`: keys of its last axis. `outer`: names of
    tensors outside the layers that the family's class does not tell; `layer`: of those in a layer; an `{expert}` in a
    name counts along a tensor's first axis. `joined`: tensors that are one here: below each other, or "turns" for rows
    that take turns. `orders`: of rows that lie otherwise than here. `turned`: matrices that are [in, out] here.
    `has_raised_norms`: the file's norms have one added.
    """

    hugging_face: str
    keys: Names = field(default_factory=lambda: KEYS)
    outer: Names = field(default_factory=dict)
    layer: Names = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sizes: Names = field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    orders: Mapping[str, Order] = field(default_factory=dict)
    turned: tuple[str, ...] = ()
    has_raised_norms: bool = False


OLD_KEYS = without(KEYS, "rms_norm_eps", "rope_theta", "head_dim") | {
    "layer_norm_epsilon": "attention.layer_norm_epsilon"
}
LAYER_NORM_KEYS = without(KEYS, "rms_norm_eps")
WINDOW = {"sliding_window": "attention.sliding_window"}
EXPERT_KEYS = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
LOCAL_EXPERT_KEYS = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
FACTOR_KEYS = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}

NORM_AFTER_ATTENTION = {"post_attention_norm": "post_attention_layernorm"}  # where it is the norm before the MLP
BIASES = {"attention_bias": ("attn_q.bias",), "mlp_bias": ("ffn_up.bias",)}
QKV_BIASES = {"attention_bias": ("attn_q.bias", "attn_qkv.bias")}  # which may be one tensor
MOE_SIZE = {"moe_intermediate_size": "ffn_down_exps.weight"}
EXPERT_SIZE = {"intermediate_size": "ffn_down_exps.weight"}
PAIRS: Mapping[str, Order] = {"attn_q": "pairs", "attn_k": "pairs"}
EXPERT_SIZES = ("expert_feed_forward_length", "expert_shared_feed_forward_length")

LLAMA = Architecture("LlamaForCausalLM", orders=PAIRS)
