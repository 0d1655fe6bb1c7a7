"""The row that describes an architecture of GGUF files, and parts shared by several rows.

Source of the facts: llama.cpp's converter of Hugging Face checkpoints, inverted here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Names = dict[str, str]
Order = Literal["pairs", "by_group", "turns", "turns_by_column"]
"""The order of rows in a file: a head's halves taking turns; queries, keys and values apart that belong in groups; or,
at the end, heads of values whose keys take turns, for columns too.
"""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture. `hugging_face`: its name in config.json. `keys`: of config.json, with the metadata's keys for them.

    `fixed`: keys and values of all its models. `unread`: keys of the metadata that change nothing here. `flags`: keys
    that are true if a layer has a tensor whose name begins so; `sizes`: keys of its last axis. `outer`: tensors
    outside the layers; `layer`: those of a layer, below `layers`; an `{expert}` in a name counts along a tensor's
    first axis. `cuts`: tensors that are several here, below each other. `joined`: tensors that are one here: below
    each other, or "turns" for rows that take turns. `orders`: of rows that lie otherwise than here. `turned`: matrices
    that are [in, out] here. `has_raised_norms`: the file's norms have one added.
    """

    hugging_face: str
    keys: Names
    layers: str = "model.layers"
    outer: Names = field(default_factory=dict)
    layer: Names = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sizes: Names = field(default_factory=dict)
    cuts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    orders: Mapping[str, Order] = field(default_factory=dict)
    turned: tuple[str, ...] = ()
    has_raised_norms: bool = False


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

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
CUTS = {
    "attn_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "ffn_gate_up_exps": ("mlp.experts.{expert}.gate_proj", "mlp.experts.{expert}.up_proj"),
}
MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
NORM_BEFORE_MLP = {"ffn_norm": "post_attention_layernorm"}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
NORMS_AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
}
SHARED = {
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
SHARED_GATED = {name: target.replace("shared_experts", "shared_expert") for name, target in SHARED.items()} | {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate"
}
BIASES = {"attention_bias": ("attn_q.bias",), "mlp_bias": ("ffn_up.bias",)}
QKV_BIASES = {"attention_bias": ("attn_q.bias", "attn_qkv.bias")}  # which may be one tensor
MOE_SIZE = {"moe_intermediate_size": "ffn_down_exps.weight"}
EXPERT_SIZE = {"intermediate_size": "ffn_down_exps.weight"}
PAIRS: Mapping[str, Order] = {"attn_q": "pairs", "attn_k": "pairs"}

LLAMA = Architecture(
    "LlamaForCausalLM", KEYS, outer=OUTER, layer=ATTENTION | NORM_BEFORE_MLP | MLP, cuts=CUTS, orders=PAIRS
)
PLAIN = replace(LLAMA, orders={})  # rows lie as in the checkpoint
