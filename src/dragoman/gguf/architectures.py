"""The architectures of GGUF files that are read: what each is on the Hugging Face side, in keys and values.

Names of tensors are those that the family's class tells; rows have others. Source of the facts: llama.cpp's converter of
Hugging Face checkpoints (conversion/), inverted here.
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
    NORM_AFTER_ATTENTION,
    OLD_KEYS,
    QKV_BIASES,
    WINDOW,
    Architecture,
    without,
)
from dragoman.gguf.newer_architectures import BAMBA, FALCON_MAMBA, GRANITE_HYBRID_EXPERTS, MINISTRAL3, NEWER

_QWEN2 = Architecture("Qwen2ForCausalLM", fixed={"use_sliding_window": False})
_QWEN3 = replace(_QWEN2, hugging_face="Qwen3ForCausalLM", flags=QKV_BIASES)
_SHARED_SIZE = {"shared_expert_intermediate_size": "ffn_down_shexp.weight"}
_SHARED_GATE = {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
_QWEN3_EXPERTS = Architecture(
    "Qwen3MoeForCausalLM",
    KEYS | EXPERT_KEYS,
    fixed=_QWEN2.fixed | {"norm_topk_prob": True},
    unread=EXPERT_SIZES,
    sizes=MOE_SIZE,
)
_QWEN2_EXPERTS = replace(
    _QWEN3_EXPERTS,
    hugging_face="Qwen2MoeForCausalLM",
    layer=_SHARED_GATE,
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
    **NORM_AFTER_ATTENTION,
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
    layer=_STATES | {"ssm_alpha": "linear_attn.in_proj_a", "ssm_beta": "linear_attn.in_proj_b"},
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
    layer=_QWEN35.layer | _SHARED_GATE,
    unread=(*_QWEN35.unread, *EXPERT_SIZES),
    sizes=MOE_SIZE | _SHARED_SIZE,
)
_QWEN3_NEXT = replace(
    _QWEN35_EXPERTS,
    hugging_face="Qwen3NextForCausalLM",
    layer=_STATES
    | _SHARED_GATE
    | {
        "ssm_in": "linear_attn.in_proj_qkvz",  # older files have it as one tensor
        "ssm_ba": "linear_attn.in_proj_ba",
    },
    orders={},
)


_GPT2 = Architecture(
    "GPT2LMHeadModel",
    OLD_KEYS,
    outer={"position_embd": "transformer.wpe"},
    turned=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
)
_BLOOM = Architecture(
    "BloomForCausalLM",
    without(OLD_KEYS, "max_position_embeddings", "num_key_value_heads") | {"seq_length": "context_length"},
    outer={"token_embd_norm": "transformer.word_embeddings_layernorm"},
    orders={"attn_qkv": "by_group"},
    unread=("attention.head_count_kv",),
)
_FALCON = Architecture(
    "FalconForCausalLM",
    OLD_KEYS | {"rope_theta": "rope.freq_base"},
    fixed={"bias": False, "alibi": False, "parallel_attn": True},
    orders={"attn_qkv": "by_group"},
    unread=("tensor_data_layout",),
)
_NEOX = Architecture(
    "GPTNeoXForCausalLM",
    OLD_KEYS | {"use_parallel_residual": "use_parallel_residual", "rope_theta": "rope.freq_base"},
    flags={"attention_bias": ("attn_qkv.bias",)},
    orders={"attn_qkv": "by_group"},
)
_MPT = Architecture(
    "MPTForCausalLM",
    {
        "d_model": "embedding_length",
        "n_heads": "attention.head_count",
        "n_layers": "block_count",
        "max_seq_len": "context_length",
        "layer_norm_epsilon": "attention.layer_norm_epsilon",
    },
    fixed={"no_bias": True},
    unread=("feed_forward_length", "attention.clamp_kqv", "attention.max_alibi_bias"),
)
_GEMMA = Architecture("GemmaForCausalLM", has_raised_norms=True, fixed={"hidden_act": "gelu_pytorch_tanh"})
_GEMMA2 = replace(
    _GEMMA,
    hugging_face="Gemma2ForCausalLM",
    keys=KEYS
    | WINDOW
    | {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"},
)
_GEMMA3 = replace(
    _GEMMA,
    hugging_face="Gemma3ForCausalLM",
    keys=KEYS
    | WINDOW
    | {"final_logit_softcapping": "final_logit_softcapping", "rope_local_base_freq": "rope.freq_base_swa"},
    fixed=_GEMMA.fixed | {"rope_local_base_freq": 10_000.0, "rope_theta": 1_000_000.0},
)
_STABLELM = Architecture(
    "StableLmForCausalLM",
    LAYER_NORM_KEYS | {"layer_norm_eps": "attention.layer_norm_epsilon"},
    flags={"use_qkv_bias": ("attn_q.bias",), "qk_layernorm": ("attn_q_norm",)},
    layer={
        "attn_q_norm": "self_attn.q_layernorm.norms.{expert}",
        "attn_k_norm": "self_attn.k_layernorm.norms.{expert}",
    },
    unread=("use_parallel_residual",),
)
_COHERE = Architecture(
    "CohereForCausalLM",
    LAYER_NORM_KEYS | {"layer_norm_eps": "attention.layer_norm_epsilon", "logit_scale": "logit_scale"},
    flags={"use_qk_norm": ("attn_q_norm",)},
)
_GRANITE = replace(
    LLAMA,
    hugging_face="GraniteForCausalLM",
    keys=KEYS | FACTOR_KEYS,
    flags=BIASES,
    # Granite 4 has these keys of layers with states even without such layers
    unread=(
        *(f"ssm.{key}" for key in ("conv_kernel", "state_size", "group_count", "inner_size", "time_step_rank")),
        "expert_shared_feed_forward_length",
    ),
)
_GRANITE_EXPERTS = replace(
    LLAMA,
    hugging_face="GraniteMoeForCausalLM",
    keys=KEYS | FACTOR_KEYS | LOCAL_EXPERT_KEYS,
    flags=BIASES,
    sizes=EXPERT_SIZE,
    layer={"ffn_down_exps": "block_sparse_moe.output_linear"},
    joined={
        "block_sparse_moe.input_linear": ("ffn_gate_exps", "ffn_up_exps"),
        "shared_mlp.input_linear": ("ffn_gate_shexp", "ffn_up_shexp"),
    },
    unread=("expert_shared_feed_forward_length",),
)
_GPT_OSS = Architecture(
    "GptOssForCausalLM",
    KEYS | WINDOW | LOCAL_EXPERT_KEYS,
    layer={
        **NORM_AFTER_ATTENTION,
        "attn_sinks.weight": "self_attn.sinks",
        "ffn_gate_inp": "mlp.router",
        "ffn_down_exps.weight": "mlp.experts.down_proj",
        "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
    },
    joined={
        "mlp.experts.gate_up_proj": ("turns", "ffn_gate_exps.weight", "ffn_up_exps.weight"),
        "mlp.experts.gate_up_proj_bias": ("turns", "ffn_gate_exps.bias", "ffn_up_exps.bias"),
    },
    turned=("mlp.experts.gate_up_proj", "ffn_down_exps.weight"),
    fixed={"attention_bias": True},
    sizes=EXPERT_SIZE,
    unread=("expert_feed_forward_length",),
)
_DEEPSEEK2 = Architecture(
    "DeepseekV2ForCausalLM",
    without(KEYS, "head_dim", "num_key_value_heads")
    | {
        "n_routed_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "n_shared_experts": "expert_shared_count",
        "first_k_dense_replace": "leading_dense_block_count",
        "routed_scaling_factor": "expert_weights_scale",
        "kv_lora_rank": "attention.kv_lora_rank",
        "q_lora_rank": "attention.q_lora_rank",
        "qk_rope_head_dim": "rope.dimension_count",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
    },
    layer={
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    },
    joined={"self_attn.kv_b_proj": ("latent", "attn_k_b", "attn_v_b")},
    fixed={"attention_bias": False, "first_k_dense_replace": 0},
    sizes=MOE_SIZE,
    unread=(
        "attention.head_count_kv",
        "expert_feed_forward_length",
        "expert_weights_norm",
        "expert_gating_func",
        "attention.key_length",
        "attention.key_length_mla",
        "attention.value_length_mla",
        "rope.scaling.yarn_log_multiplier",
        "nextn_predict_layers",
    ),
)
_GLM = Architecture("GlmForCausalLM", flags=QKV_BIASES)
_ERNIE = Architecture("Ernie4_5ForCausalLM", flags={"use_bias": ("attn_q.bias",)})

ARCHITECTURES: dict[str, Architecture] = {
    "bloom": _BLOOM,
    "chatglm": _GLM,
    "cohere2": replace(_COHERE, hugging_face="Cohere2ForCausalLM", keys=_COHERE.keys | WINDOW, flags={}),
    "command-r": _COHERE,
    "deepseek2": _DEEPSEEK2,
    "ernie4_5": _ERNIE,
    "ernie4_5-moe": replace(
        _ERNIE,
        hugging_face="Ernie4_5_MoeForCausalLM",
        keys=KEYS
        | {
            "moe_num_experts": "expert_count",
            "moe_k": "expert_used_count",
            "moe_num_shared_experts": "expert_shared_count",
            "moe_layer_start_index": "leading_dense_block_count",
            "moe_layer_interval": "interleave_moe_layer_step",
        },
        layer={"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
        unread=EXPERT_SIZES,
        sizes=MOE_SIZE,
    ),
    "exaone4": Architecture("Exaone4ForCausalLM", KEYS | WINDOW),
    "falcon": _FALCON,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "glm4": replace(_GLM, hugging_face="Glm4ForCausalLM"),
    "glm4moe": Architecture(
        "Glm4MoeForCausalLM",
        KEYS
        | {key: name for key, name in _DEEPSEEK2.keys.items() if name.startswith(("expert", "leading"))}
        | {"norm_topk_prob": "expert_weights_norm", "num_nextn_predict_layers": "nextn_predict_layers"},
        fixed={"norm_topk_prob": True},
        flags=QKV_BIASES | {"use_qk_norm": ("attn_q_norm",)},
        sizes=MOE_SIZE,
        layer=NORM_AFTER_ATTENTION,
        unread=("expert_feed_forward_length", "expert_gating_func"),
    ),
    "gpt-oss": _GPT_OSS,
    "gpt2": _GPT2,
    "gptneox": _NEOX,
    "granite": _GRANITE,
    "granitemoe": _GRANITE_EXPERTS,
    "hunyuan-dense": Architecture("HunYuanDenseV1ForCausalLM", flags=BIASES),
    "llama": replace(LLAMA, flags=BIASES),
    "mistral3": replace(LLAMA, flags=BIASES, unread=MINISTRAL3.unread),
    "mpt": _MPT,
    "olmo": replace(
        LLAMA,
        hugging_face="OlmoForCausalLM",
        keys=LAYER_NORM_KEYS | {"layer_norm_eps": "attention.layer_norm_epsilon", "clip_qkv": "attention.clamp_kqv"},
    ),
    "olmo2": Architecture("Olmo2ForCausalLM", flags=BIASES),
    "olmoe": Architecture("OlmoeForCausalLM", KEYS | EXPERT_KEYS, fixed={"norm_topk_prob": False}),
    "phi2": Architecture("PhiForCausalLM", OLD_KEYS | {"rope_theta": "rope.freq_base"}),
    "phi3": Architecture(
        "Phi3ForCausalLM",
        KEYS | WINDOW | {"original_max_position_embeddings": "rope.scaling.original_context_length"},
    ),
    "qwen2": _QWEN2,
    "qwen2moe": _QWEN2_EXPERTS,
    "qwen2vl": replace(_QWEN2, unread=_SEES),
    "qwen3": _QWEN3,
    "qwen35": _QWEN35,
    "qwen35moe": _QWEN35_EXPERTS,
    "qwen3moe": _QWEN3_EXPERTS,
    "qwen3next": _QWEN3_NEXT,
    "qwen3vl": replace(_QWEN3, unread=_SEES),
    "qwen3vlmoe": replace(_QWEN3_EXPERTS, unread=(*EXPERT_SIZES, *_SEES)),
    **NEWER,
    "seed_oss": Architecture(
        "SeedOssForCausalLM",
        layer=NORM_AFTER_ATTENTION,
        flags=BIASES | {"attention_out_bias": ("attn_output.bias",)},
    ),
    "smollm3": replace(LLAMA, hugging_face="SmolLM3ForCausalLM", flags=BIASES),
    "stablelm": _STABLELM,
    "starcoder": replace(_GPT2, hugging_face="GPTBigCodeForCausalLM", turned=(), fixed={"hidden_act": "gelu"}),
    "starcoder2": Architecture(
        "Starcoder2ForCausalLM",
        LAYER_NORM_KEYS | WINDOW | {"norm_epsilon": "attention.layer_norm_epsilon"},
        # the window is that of all published models; the converter leaves it out
        fixed={"hidden_act": "gelu_pytorch_tanh", "sliding_window": 4096},
        flags={"use_bias": ("attn_q.bias",)},
    ),
}
"""By the name in general.architecture."""

VARIANTS: dict[tuple[str, str], Architecture] = {
    ("llama", "expert_count"): replace(
        LLAMA, hugging_face="MixtralForCausalLM", keys=KEYS | LOCAL_EXPERT_KEYS, sizes=EXPERT_SIZE
    ),
    ("mistral3", "attention.temperature_scale"): MINISTRAL3,
    ("olmo2", "attention.sliding_window"): Architecture("Olmo3ForCausalLM", KEYS | WINDOW),
    ("granitemoe", "expert_shared_feed_forward_length"): replace(
        _GRANITE_EXPERTS,
        hugging_face="GraniteMoeSharedForCausalLM",
        sizes=EXPERT_SIZE | {"shared_intermediate_size": "ffn_down_shexp.weight"},
    ),
    ("granitehybrid", "expert_count"): GRANITE_HYBRID_EXPERTS,
    ("granitehybrid", "rope.scaling.finetuned"): BAMBA,
    ("mamba", "ssm.dt_b_c_rms"): FALCON_MAMBA,
    ("falcon", "attn_norm_2"): replace(_FALCON, layer={"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"}),
}
"""Architectures whose metadata has a key that is not 0, or whose first layer has a tensor."""
