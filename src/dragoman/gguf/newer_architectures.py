"""Architectures of GGUF files of 2025 and 2026: mixtures of experts, Gemma 3n and 4, MLPs without a gate.

Source of the facts: llama.cpp, conversion/.
"""

from __future__ import annotations

from dataclasses import replace

from dragoman.gguf.architecture import (
    ATTENTION,
    BIASES,
    EXPERT_KEYS,
    EXPERT_SIZE,
    EXPERTS,
    HEAD_NORMS,
    KEYS,
    LAYER_NORM_KEYS,
    LLAMA,
    LOCAL_EXPERT_KEYS,
    MLP,
    MOE_SIZE,
    NORM_BEFORE_MLP,
    NORMS_AFTER,
    OUTER,
    PLAIN,
    QKV_BIASES,
    SHARED,
    WINDOW,
    Architecture,
    without,
)

_UP_DOWN = without(MLP, "ffn_gate")
_GROUPS = {"n_group": "expert_group_count", "topk_group": "expert_group_used_count"}
_SIZES = ("expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_gating_func")
MINISTRAL3 = replace(
    LLAMA,
    hugging_face="Ministral3ForCausalLM",
    unread=("attention.temperature_scale", "rope.scaling.yarn_log_multiplier"),
)
_MINIMAX_M2 = replace(
    PLAIN,
    hugging_face="MiniMaxM2ForCausalLM",
    keys=KEYS | LOCAL_EXPERT_KEYS,
    layer=ATTENTION
    | NORM_BEFORE_MLP
    | HEAD_NORMS
    | {
        "ffn_gate_inp": "block_sparse_moe.gate",
        "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
        "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
    },
    unread=(*_SIZES, "expert_weights_norm"),
    sizes=EXPERT_SIZE,
)
_AFMOE = replace(
    PLAIN,
    hugging_face="AfmoeForCausalLM",
    keys=KEYS
    | WINDOW
    | EXPERT_KEYS
    | _GROUPS
    | {
        "num_shared_experts": "expert_shared_count",
        "num_dense_layers": "leading_dense_block_count",
        "route_norm": "expert_weights_norm",
        "route_scale": "expert_weights_scale",
    },
    layer=ATTENTION
    | MLP
    | HEAD_NORMS
    | EXPERTS
    | SHARED
    | {
        "attn_gate": "self_attn.gate_proj",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_mlp_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
        "ffn_gate_inp": "mlp.router.gate",
        "exp_probs_b.bias": "mlp.expert_bias",
    },
    fixed={"mup_enabled": True},  # of all published models; the converter leaves it out
    unread=_SIZES,
    sizes=MOE_SIZE,
)
_HUNYUAN_EXPERTS = replace(
    PLAIN,
    hugging_face="HunYuanMoEV1ForCausalLM",
    keys=KEYS | EXPERT_KEYS | {"num_shared_expert": "expert_shared_count"},
    layer=ATTENTION
    | NORM_BEFORE_MLP
    | EXPERTS
    | {name: target.replace("shared_experts", "shared_mlp") for name, target in SHARED.items()}
    | {
        "ffn_gate_inp": "mlp.gate.wg",
        "attn_q_norm": "self_attn.query_layernorm",
        "attn_k_norm": "self_attn.key_layernorm",
    },
    unread=_SIZES,
    flags=BIASES,
    sizes=EXPERT_SIZE,
)
_BIASED_EXPERTS = {
    "num_experts_per_tok": "expert_used_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "norm_topk_prob": "expert_weights_norm",
    "routed_scaling_factor": "expert_weights_scale",
}
_DOTS1 = replace(
    PLAIN,
    hugging_face="Dots1ForCausalLM",
    keys=KEYS
    | _GROUPS
    | _BIASED_EXPERTS
    | {"n_routed_experts": "expert_count", "n_shared_experts": "expert_shared_count"},
    layer=PLAIN.layer | HEAD_NORMS | EXPERTS | SHARED | {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
    unread=_SIZES,
    flags=QKV_BIASES,
    sizes=MOE_SIZE,
)
_EXAONE_EXPERTS = replace(
    _DOTS1,
    hugging_face="ExaoneMoeForCausalLM",
    keys=KEYS
    | WINDOW
    | _GROUPS
    | _BIASED_EXPERTS
    | {"num_experts": "expert_count", "num_shared_experts": "expert_shared_count"},
    layer=_DOTS1.layer | {"exp_probs_b.bias": "mlp.e_score_correction_bias"},
    unread=(*_SIZES, "nextn_predict_layers"),
    flags={},
)
_PER_LAYER = {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_GEMMA3N = replace(
    PLAIN,
    hugging_face="Gemma3nForCausalLM",
    keys=without(KEYS, "intermediate_size")
    | WINDOW
    | {
        "altup_active_idx": "altup.active_idx",
        "altup_num_inputs": "altup.num_inputs",
        "final_logit_softcapping": "final_logit_softcapping",
        "hidden_size_per_layer_input": "embedding_length_per_layer_input",
        "num_kv_shared_layers": "attention.shared_kv_layers",
        "rope_local_base_freq": "rope.freq_base_swa",
    },
    outer=OUTER
    | {
        "altup_proj": "model.altup_projections.{expert}",
        "altup_unembd_proj": "model.altup_unembed_projections.{expert}",
        "per_layer_model_proj": "model.per_layer_model_projection",
        "per_layer_proj_norm": "model.per_layer_projection_norm",
        "per_layer_token_embd": "model.embed_tokens_per_layer",
    },
    layer=ATTENTION
    | MLP
    | HEAD_NORMS
    | NORMS_AFTER
    | _PER_LAYER
    | {
        "ffn_norm": "pre_feedforward_layernorm",
        "altup_correct_coef": "altup.correction_coefs",
        "altup_correct_scale.weight": "altup.correct_output_scale",
        "altup_predict_coef": "altup.prediction_coefs",
        "altup_router": "altup.modality_router",
        "altup_router_norm": "altup.router_norm",
        "laurel_l": "laurel.linear_left",
        "laurel_post_norm": "laurel.post_laurel_norm",
        "laurel_r": "laurel.linear_right",
    },
    unread=("feed_forward_length", "activation_sparsity_scale"),
    fixed={"rope_local_base_freq": 10_000.0},
)
_GEMMA4 = replace(
    PLAIN,
    hugging_face="Gemma4ForCausalLM",
    keys=without(KEYS, "head_dim", "intermediate_size", "num_key_value_heads", "rope_theta")
    | WINDOW
    | {
        "final_logit_softcapping": "final_logit_softcapping",
        "global_head_dim": "attention.key_length",
        "head_dim": "attention.key_length_swa",
        "hidden_size_per_layer_input": "embedding_length_per_layer_input",
        "num_experts": "expert_count",
        "num_kv_shared_layers": "attention.shared_kv_layers",
        "rope_local_base_freq": "rope.freq_base_swa",
        "top_k_experts": "expert_used_count",
    },
    outer=without(_GEMMA3N.outer, "altup_proj", "altup_unembd_proj"),
    layer=ATTENTION
    | MLP
    | HEAD_NORMS
    | NORMS_AFTER
    | _PER_LAYER
    | {
        "ffn_norm": "pre_feedforward_layernorm",
        "layer_output_scale.weight": "layer_scalar",
        "ffn_gate_inp": "router.proj",
        "ffn_gate_inp.scale": "router.scale",
        "ffn_down_exps.scale": "router.per_expert_scale",
        "ffn_gate_up_exps.weight": "experts.gate_up_proj",
        "ffn_down_exps.weight": "experts.down_proj",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
    },
    cuts={},
    unread=(
        "attention.head_count_kv",
        "attention.value_length_swa",
        "expert_feed_forward_length",
        "feed_forward_length",
        "rope.dimension_count_swa",
        "rope.freq_base",
    ),
)
_JAIS2 = replace(
    PLAIN,
    hugging_face="Jais2ForCausalLM",
    keys=LAYER_NORM_KEYS | {"layer_norm_eps": "attention.layer_norm_epsilon"},
    layer=ATTENTION | NORM_BEFORE_MLP | _UP_DOWN,
    flags=BIASES,
)

NEWER: dict[str, Architecture] = {
    "afmoe": _AFMOE,
    "arcee": replace(
        LLAMA, hugging_face="ArceeForCausalLM", layer=ATTENTION | NORM_BEFORE_MLP | _UP_DOWN, flags=BIASES
    ),
    "dots1": _DOTS1,
    "exaone-moe": _EXAONE_EXPERTS,
    "gemma3n": _GEMMA3N,
    "gemma4": _GEMMA4,
    "hunyuan-moe": _HUNYUAN_EXPERTS,
    "jais2": _JAIS2,
    "minimax-m2": _MINIMAX_M2,
    "nemotron": replace(
        _JAIS2,
        hugging_face="NemotronForCausalLM",
        keys=LAYER_NORM_KEYS | {"norm_eps": "attention.layer_norm_epsilon"},
        has_raised_norms=True,
        unread=("attention.layer_norm_rms_epsilon",),  # the converter writes both
    ),
}
