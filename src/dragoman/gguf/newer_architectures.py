"""Architectures of GGUF files whose layers scan or convolve; and those of 2025 and 2026, most of them with experts.

Source of the facts: llama.cpp, conversion/, as for `architectures`, which lists them.
"""

from __future__ import annotations

from dataclasses import replace

from dragoman.gguf.architecture_row import (
    BIASES,
    EXPERT_KEYS,
    EXPERT_SIZE,
    EXPERT_SIZES,
    FACTOR_KEYS,
    KEYS,
    LAYER_NORM_KEYS,
    LLAMA,
    LOCAL_EXPERT_KEYS,
    MOE_SIZE,
    PAIRS,
    QKV_BIASES,
    WINDOW,
    Architecture,
    Names,
    without,
)

_SIZES = (*EXPERT_SIZES, "expert_gating_func")
_SAID_BY_TENSORS = ("feed_forward_length", "attention.head_count_kv", "ssm.inner_size")


def _scan(mixer: str) -> Names:
    names = {"ssm_in": "in_proj", "ssm_conv1d": "conv1d", "ssm_norm": "norm", "ssm_out": "out_proj"}
    alone = {"ssm_dt.bias": "dt_bias", "ssm_a": "A_log", "ssm_d": "D"}
    return {part: f"{mixer}.{name}" for part, name in (names | alone).items()}


def _channel_scan(mixer: str) -> Names:
    return without(_scan(mixer), "ssm_norm", "ssm_dt.bias") | {"ssm_x": f"{mixer}.x_proj", "ssm_dt": f"{mixer}.dt_proj"}


_SCAN_BIASES = {"use_conv_bias": ("ssm_conv1d.bias",), "use_bias": ("ssm_in.bias",)}
_MAMBA_BIASES = {"mamba_conv_bias": ("ssm_conv1d.bias",), "mamba_proj_bias": ("ssm_in.bias",)}
_HYBRID_KEYS = {
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_n_heads": "ssm.time_step_rank",
}
_MAMBA = Architecture(
    "MambaForCausalLM",
    {
        "num_hidden_layers": "block_count",
        "hidden_size": "embedding_length",
        "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
        "conv_kernel": "ssm.conv_kernel",
        "state_size": "ssm.state_size",
        "time_step_rank": "ssm.time_step_rank",
    },
    layer={"attn_norm": "norm"} | _channel_scan("mixer"),
    unread=("context_length", "feed_forward_length", "attention.head_count", "ssm.inner_size", "ssm.dt_b_c_rms"),
    flags=_SCAN_BIASES,
)
FALCON_MAMBA = replace(_MAMBA, hugging_face="FalconMambaForCausalLM")
_MAMBA2 = replace(
    _MAMBA,
    hugging_face="Mamba2ForCausalLM",
    keys=without(_MAMBA.keys, "time_step_rank") | {"n_groups": "ssm.group_count", "num_heads": "ssm.time_step_rank"},
    layer={"attn_norm": "norm"} | _scan("mixer"),
)
_NEMOTRON_H = Architecture(
    "NemotronHForCausalLM",
    without(KEYS, "intermediate_size", "rms_norm_eps", "rope_theta")
    | {
        "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
        "conv_kernel": "ssm.conv_kernel",
        "mamba_num_heads": "ssm.time_step_rank",
        "n_groups": "ssm.group_count",
        "ssm_state_size": "ssm.state_size",
    },
    layer={
        "attn_norm": "norm",
        "attn_q": "mixer.q_proj",
        "attn_k": "mixer.k_proj",
        "attn_v": "mixer.v_proj",
        "attn_output": "mixer.o_proj",
        "ffn_up": "mixer.up_proj",
        "ffn_down": "mixer.down_proj",
    }
    | _scan("mixer"),
    orders=PAIRS,
    # Keys about the scale and rotation of attention, which does not rotate here.
    unread=(*_SAID_BY_TENSORS, "attention.layer_norm_epsilon", "rope.freq_base"),
    flags=_SCAN_BIASES | BIASES | {"mlp_bias": ("ffn_up.bias", "ffn_up_shexp.bias")},
)
_NEMOTRON_H_EXPERTS = replace(
    _NEMOTRON_H,
    keys=_NEMOTRON_H.keys
    | {
        "n_routed_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "n_shared_experts": "expert_shared_count",
        "norm_topk_prob": "expert_weights_norm",
        "routed_scaling_factor": "expert_weights_scale",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
        "moe_latent_size": "moe_latent_size",
    },
    layer=_NEMOTRON_H.layer
    | {
        "ffn_gate_inp": "mixer.gate",
        "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
        "ffn_up_exps": "mixer.experts.{expert}.up_proj",
        "ffn_down_exps": "mixer.experts.{expert}.down_proj",
        "ffn_up_shexp": "mixer.shared_experts.up_proj",
        "ffn_down_shexp": "mixer.shared_experts.down_proj",
        "ffn_latent_down": "mixer.fc1_latent_proj",
        "ffn_latent_up": "mixer.fc2_latent_proj",
    },
    unread=(*_NEMOTRON_H.unread, *_SIZES, "nextn_predict_layers"),
    sizes=MOE_SIZE | {"moe_shared_expert_intermediate_size": "ffn_down_shexp.weight"},
)
_JAMBA = Architecture(
    "JambaForCausalLM",
    without(KEYS, "num_key_value_heads", "rope_theta")
    | EXPERT_KEYS
    | {"mamba_d_conv": "ssm.conv_kernel", "mamba_d_state": "ssm.state_size", "mamba_dt_rank": "ssm.time_step_rank"},
    layer=_channel_scan("mamba")
    | {
        "ssm_dt_norm": "mamba.dt_layernorm",
        "ssm_b_norm": "mamba.b_layernorm",
        "ssm_c_norm": "mamba.c_layernorm",
    },
    unread=("attention.head_count_kv", "ssm.inner_size"),
    flags=_MAMBA_BIASES,
)
_FALCON_H1 = Architecture(
    "FalconH1ForCausalLM",
    KEYS | _HYBRID_KEYS | {"mamba_d_ssm": "ssm.inner_size"},
    layer=_scan("mamba")
    # the one tensor whose name in the file is not that of a module
    | {"ffn_norm": "pre_ff_layernorm.weight", "ffn_norm.weight": "pre_ff_layernorm.weight"},
    flags=_MAMBA_BIASES | BIASES | {"mamba_rms_norm": ("ssm_norm",), "projectors_bias": ("ssm_out.bias",)},
    fixed={"mamba_norm_before_gate": False},  # as llama.cpp computes; what is multiplied is multiplied in the matrices
)
_GRANITE_HYBRID = Architecture(
    "GraniteMoeHybridForCausalLM",
    without(KEYS, "head_dim", "num_key_value_heads", "intermediate_size") | _HYBRID_KEYS | FACTOR_KEYS,
    layer=_scan("mamba") | {"ffn_down": "shared_mlp.output_linear"},
    joined={"shared_mlp.input_linear": ("ffn_gate", "ffn_up")},
    orders=PAIRS,
    unread=(*_SAID_BY_TENSORS, *_SIZES),
    flags=_MAMBA_BIASES | BIASES,
    sizes={"shared_intermediate_size": "ffn_down.weight"},
    fixed={"num_local_experts": 0, "position_embedding_type": "nope"},
)
GRANITE_HYBRID_EXPERTS = replace(
    _GRANITE_HYBRID,
    keys=_GRANITE_HYBRID.keys | LOCAL_EXPERT_KEYS,
    layer=_scan("mamba") | {"ffn_down_exps": "block_sparse_moe.output_linear"},
    joined={
        "block_sparse_moe.input_linear": ("ffn_gate_exps", "ffn_up_exps"),
        "shared_mlp.input_linear": ("ffn_gate_shexp", "ffn_up_shexp"),
    },
    sizes={"intermediate_size": "ffn_down_exps.weight", "shared_intermediate_size": "ffn_down_shexp.weight"},
)
BAMBA = replace(
    _GRANITE_HYBRID,
    hugging_face="BambaForCausalLM",
    keys=without(KEYS, "head_dim", "num_key_value_heads") | _HYBRID_KEYS,
    fixed={"partial_rotary_factor": 1.0},
    sizes={},
    layer=_FALCON_H1.layer,
    joined={},
)
_LFM2 = Architecture(
    "Lfm2ForCausalLM",
    without(KEYS, "rms_norm_eps", "num_key_value_heads")
    | {"norm_eps": "attention.layer_norm_rms_epsilon", "conv_L_cache": "shortconv.l_cache"},
    outer={"token_embd_norm": "model.embedding_norm"},
    layer={
        "shortconv.conv": "conv.conv",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.out_proj": "conv.out_proj",
    },
    fixed={"block_auto_adjust_ff_dim": False},
    unread=("attention.head_count_kv",),
    flags={"conv_bias": ("shortconv.conv.bias",)},
)
_LFM2_EXPERTS = replace(
    _LFM2,
    hugging_face="Lfm2MoeForCausalLM",
    keys=_LFM2.keys | EXPERT_KEYS | {"num_dense_layers": "leading_dense_block_count"},
    layer=_LFM2.layer | {"exp_probs_b.bias": "feed_forward.expert_bias"},
    fixed={},
    unread=(*_LFM2.unread, *_SIZES),
    flags={**_LFM2.flags, "use_expert_bias": ("exp_probs_b",)},
    sizes=MOE_SIZE,
)


_GROUPS = {"n_group": "expert_group_count", "topk_group": "expert_group_used_count"}
MINISTRAL3 = replace(
    LLAMA,
    hugging_face="Ministral3ForCausalLM",
    unread=("attention.temperature_scale", "rope.scaling.yarn_log_multiplier"),
)
_BIASED_EXPERTS = {
    "num_experts_per_tok": "expert_used_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "norm_topk_prob": "expert_weights_norm",
    "routed_scaling_factor": "expert_weights_scale",
}
_DOTS1 = Architecture(
    "Dots1ForCausalLM",
    KEYS | _GROUPS | _BIASED_EXPERTS | {"n_routed_experts": "expert_count", "n_shared_experts": "expert_shared_count"},
    unread=_SIZES,
    flags=QKV_BIASES,
    sizes=MOE_SIZE,
)
_GEMMA_KEYS = WINDOW | {
    "final_logit_softcapping": "final_logit_softcapping",
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "rope_local_base_freq": "rope.freq_base_swa",
}
_PER_LAYER_TABLES = {
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
}
_PER_LAYER = {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_GEMMA3N = Architecture(
    "Gemma3nForCausalLM",
    without(KEYS, "intermediate_size")
    | _GEMMA_KEYS
    | {"altup_active_idx": "altup.active_idx", "altup_num_inputs": "altup.num_inputs"},
    outer=_PER_LAYER_TABLES
    | {
        "altup_proj": "model.altup_projections.{expert}",
        "altup_unembd_proj": "model.altup_unembed_projections.{expert}",
    },
    layer=_PER_LAYER
    | {
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
_GEMMA4 = Architecture(
    "Gemma4ForCausalLM",
    without(KEYS, "head_dim", "intermediate_size", "num_key_value_heads", "rope_theta")
    | _GEMMA_KEYS
    | {
        "global_head_dim": "attention.key_length",
        "head_dim": "attention.key_length_swa",
        "num_experts": "expert_count",
        "top_k_experts": "expert_used_count",
    },
    outer=_PER_LAYER_TABLES,
    layer=_PER_LAYER
    | {
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
    unread=(
        "attention.head_count_kv",
        "attention.value_length_swa",
        "expert_feed_forward_length",
        "feed_forward_length",
        "rope.dimension_count_swa",
        "rope.freq_base",
    ),
)
_JAIS2 = Architecture(
    "Jais2ForCausalLM", LAYER_NORM_KEYS | {"layer_norm_eps": "attention.layer_norm_epsilon"}, flags=BIASES
)

NEWER: dict[str, Architecture] = {
    "afmoe": Architecture(
        "AfmoeForCausalLM",
        KEYS
        | WINDOW
        | EXPERT_KEYS
        | _GROUPS
        | {
            "num_shared_experts": "expert_shared_count",
            "num_dense_layers": "leading_dense_block_count",
            "route_norm": "expert_weights_norm",
            "route_scale": "expert_weights_scale",
        },
        layer={"attn_gate": "self_attn.gate_proj"},
        fixed={"mup_enabled": True},  # of all published models; the converter leaves it out
        unread=_SIZES,
        sizes=MOE_SIZE,
    ),
    "arcee": replace(LLAMA, hugging_face="ArceeForCausalLM", flags=BIASES),
    "dots1": _DOTS1,
    "exaone-moe": replace(
        _DOTS1,
        hugging_face="ExaoneMoeForCausalLM",
        keys=KEYS
        | WINDOW
        | _GROUPS
        | _BIASED_EXPERTS
        | {"num_experts": "expert_count", "num_shared_experts": "expert_shared_count"},
        unread=(*_SIZES, "nextn_predict_layers"),
        flags={},
    ),
    "falcon-h1": _FALCON_H1,
    "gemma3n": _GEMMA3N,
    "gemma4": _GEMMA4,
    "granitehybrid": _GRANITE_HYBRID,
    "hunyuan-moe": Architecture(
        "HunYuanMoEV1ForCausalLM",
        KEYS | EXPERT_KEYS | {"num_shared_expert": "expert_shared_count"},
        unread=_SIZES,
        flags=BIASES,
        sizes=EXPERT_SIZE,
    ),
    "jais2": _JAIS2,
    "jamba": _JAMBA,
    "lfm2": _LFM2,
    "lfm2moe": _LFM2_EXPERTS,
    "mamba": _MAMBA,
    "mamba2": _MAMBA2,
    "minimax-m2": Architecture(
        "MiniMaxM2ForCausalLM",
        KEYS | LOCAL_EXPERT_KEYS,
        unread=(*_SIZES, "expert_weights_norm"),
        sizes=EXPERT_SIZE,
    ),
    "nemotron": replace(
        _JAIS2,
        hugging_face="NemotronForCausalLM",
        keys=LAYER_NORM_KEYS | {"norm_eps": "attention.layer_norm_epsilon"},
        has_raised_norms=True,
        unread=("attention.layer_norm_rms_epsilon",),  # the converter writes both
    ),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H_EXPERTS,
}
