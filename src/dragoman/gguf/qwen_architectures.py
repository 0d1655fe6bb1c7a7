"""Qwen's architectures of GGUF files. Source: llama.cpp, conversion/qwen.py, qwenvl.py and qwen3vl.py."""

from __future__ import annotations

from dataclasses import replace

from dragoman.gguf.architecture import (
    ATTENTION,
    CUTS,
    EXPERT_KEYS,
    EXPERTS,
    HEAD_NORMS,
    KEYS,
    MLP,
    MOE_SIZE,
    OUTER,
    PLAIN,
    QKV_BIASES,
    SHARED_GATED,
    Architecture,
)

_QWEN2 = replace(PLAIN, hugging_face="Qwen2ForCausalLM", fixed={"use_sliding_window": False})
_QWEN3 = replace(_QWEN2, hugging_face="Qwen3ForCausalLM", layer=PLAIN.layer | HEAD_NORMS, flags=QKV_BIASES)
_SHARED_SIZE = {"shared_expert_intermediate_size": "ffn_down_shexp.weight"}
_QWEN3_EXPERTS = replace(
    _QWEN3,
    hugging_face="Qwen3MoeForCausalLM",
    keys=KEYS | EXPERT_KEYS,
    layer=_QWEN3.layer | EXPERTS,
    fixed=_QWEN2.fixed | {"norm_topk_prob": True},
    unread=("expert_feed_forward_length", "expert_shared_feed_forward_length"),
    flags={},
    sizes=MOE_SIZE,
)
_QWEN2_EXPERTS = replace(
    _QWEN3_EXPERTS,
    hugging_face="Qwen2MoeForCausalLM",
    layer=PLAIN.layer | EXPERTS | SHARED_GATED,
    fixed=_QWEN2.fixed | {"norm_topk_prob": False},
    sizes=MOE_SIZE | _SHARED_SIZE,
)
# Of models that see: texts have one position on all axes, so sections of a head change nothing.
_SEES: tuple[str, ...] = ("rope.dimension_sections", "n_deepstack_layers")
_STATES = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_QWEN35 = Architecture(
    "Qwen3_5ForCausalLM",
    KEYS
    | {
        "linear_conv_kernel_dim": "ssm.conv_kernel",
        "linear_key_head_dim": "ssm.state_size",
        "linear_num_key_heads": "ssm.group_count",
        "linear_num_value_heads": "ssm.time_step_rank",
        "full_attention_interval": "full_attention_interval",
    },
    outer=OUTER,
    layer=ATTENTION
    | MLP
    | HEAD_NORMS
    | _STATES
    | {
        "post_attention_norm": "post_attention_layernorm",
        "ssm_alpha": "linear_attn.in_proj_a",
        "ssm_beta": "linear_attn.in_proj_b",
    },
    orders={
        **dict.fromkeys(
            ("attn_qkv", "attn_gate", "ssm_conv1d", "ssm_dt.bias", "ssm_a", "ssm_alpha", "ssm_beta"), "turns"
        ),
        "ssm_out": "turns_by_column",
    },
    unread=(*_SEES, "ssm.inner_size", "attention.recurrent_layers", "nextn_predict_layers"),
    has_raised_norms=True,
    flags={"attention_bias": ("attn_q.bias",)},
)
_QWEN35_EXPERTS = replace(
    _QWEN35,
    hugging_face="Qwen3_5MoeForCausalLM",
    keys=_QWEN35.keys | EXPERT_KEYS,
    layer=_QWEN35.layer | EXPERTS | SHARED_GATED,
    cuts={"ffn_gate_up_exps": CUTS["ffn_gate_up_exps"]},
    unread=(*_QWEN35.unread, *_QWEN3_EXPERTS.unread),
    sizes=MOE_SIZE | _SHARED_SIZE,
)
_QWEN3_NEXT = replace(
    _QWEN35_EXPERTS,
    hugging_face="Qwen3NextForCausalLM",
    layer=ATTENTION
    | HEAD_NORMS
    | EXPERTS
    | SHARED_GATED
    | _STATES
    | {
        "post_attention_norm": "post_attention_layernorm",
        "ssm_in": "linear_attn.in_proj_qkvz",  # older files have it as one tensor
        "ssm_ba": "linear_attn.in_proj_ba",
    },
    orders={},
)

QWENS: dict[str, Architecture] = {
    "qwen2": _QWEN2,
    "qwen2moe": _QWEN2_EXPERTS,
    "qwen2vl": replace(_QWEN2, unread=_SEES),
    "qwen3": _QWEN3,
    "qwen35": _QWEN35,
    "qwen35moe": _QWEN35_EXPERTS,
    "qwen3moe": _QWEN3_EXPERTS,
    "qwen3next": _QWEN3_NEXT,
    "qwen3vl": replace(_QWEN3, unread=_SEES),
    "qwen3vlmoe": replace(_QWEN3_EXPERTS, unread=(*_QWEN3_EXPERTS.unread, *_SEES)),
}
"""By the name in general.architecture."""
