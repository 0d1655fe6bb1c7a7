"""The architectures of GGUF files that are read: what each is on the Hugging Face side, in keys, values and names.

Source of the facts: llama.cpp's converter of Hugging Face checkpoints (conversion/), inverted here.
"""

from __future__ import annotations

from dataclasses import replace

from dragoman.gguf.architecture import (
    ATTENTION,
    BIASES,
    CUTS,
    EXPERT_KEYS,
    EXPERT_SIZE,
    EXPERTS,
    FACTOR_KEYS,
    HEAD_NORMS,
    KEYS,
    LAYER_NORM_KEYS,
    LLAMA,
    LOCAL_EXPERT_KEYS,
    MLP,
    MOE_SIZE,
    NORM_BEFORE_MLP,
    NORMS_AFTER,
    OLD_KEYS,
    OUTER,
    PLAIN,
    QKV_BIASES,
    SHARED,
    SHARED_GATED,
    WINDOW,
    Architecture,
    without,
)
from dragoman.gguf.newer_architectures import BAMBA, FALCON_MAMBA, GRANITE_HYBRID_EXPERTS, MINISTRAL3, NEWER

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


_GPT2 = Architecture(
    "GPT2LMHeadModel",
    OLD_KEYS,
    layers="transformer.h",
    outer={
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
    },
    layer={
        "attn_norm": "ln_1",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
    turned=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
)
_BLOOM = Architecture(
    "BloomForCausalLM",
    without(OLD_KEYS, "max_position_embeddings", "num_key_value_heads") | {"seq_length": "context_length"},
    layers="transformer.h",
    outer={
        "token_embd": "transformer.word_embeddings",
        "token_embd_norm": "transformer.word_embeddings_layernorm",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
    },
    layer={
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attention.query_key_value",
        "attn_output": "self_attention.dense",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
    orders={"attn_qkv": "by_group"},
    unread=("attention.head_count_kv",),
)
_FALCON = replace(
    _BLOOM,
    hugging_face="FalconForCausalLM",
    keys=OLD_KEYS | {"rope_theta": "rope.freq_base"},
    outer=without(_BLOOM.outer, "token_embd_norm"),
    layer=without(_BLOOM.layer, "ffn_norm"),
    fixed={"bias": False, "alibi": False, "parallel_attn": True},
    unread=("tensor_data_layout",),
)
_NEOX = Architecture(
    "GPTNeoXForCausalLM",
    OLD_KEYS | {"use_parallel_residual": "use_parallel_residual", "rope_theta": "rope.freq_base"},
    layers="gpt_neox.layers",
    outer={"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"},
    layer={target: name.replace("self_attention", "attention") for target, name in _BLOOM.layer.items()},
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
    layers="transformer.blocks",
    outer={"token_embd": "transformer.wte", "output_norm": "transformer.norm_f", "output": "lm_head"},
    layer={
        "attn_norm": "norm_1",
        "attn_qkv": "attn.Wqkv",
        "attn_output": "attn.out_proj",
        "ffn_norm": "norm_2",
        "ffn_up": "ffn.up_proj",
        "ffn_down": "ffn.down_proj",
    },
    fixed={"no_bias": True},
    unread=("feed_forward_length", "attention.clamp_kqv", "attention.max_alibi_bias"),
)
_PHI2 = Architecture(
    "PhiForCausalLM",
    {**OLD_KEYS, "rope_theta": "rope.freq_base"},
    outer=OUTER | {"output_norm": "model.final_layernorm"},
    layer={
        **ATTENTION,
        "attn_output": "self_attn.dense",
        "ffn_up": "mlp.fc1",
        "ffn_down": "mlp.fc2",
    },
    cuts=CUTS,
)
_PHI3 = replace(
    PLAIN,
    hugging_face="Phi3ForCausalLM",
    keys=KEYS | WINDOW | {"original_max_position_embeddings": "rope.scaling.original_context_length"},
    layer={
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        **NORM_BEFORE_MLP,
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
    cuts={},
)
_GEMMA = replace(
    PLAIN, hugging_face="GemmaForCausalLM", has_raised_norms=True, fixed={"hidden_act": "gelu_pytorch_tanh"}
)
_GEMMA2 = replace(
    _GEMMA,
    hugging_face="Gemma2ForCausalLM",
    keys=KEYS
    | WINDOW
    | {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"},
    layer=ATTENTION | MLP | NORMS_AFTER | {"ffn_norm": "pre_feedforward_layernorm"},
)
_GEMMA3 = replace(
    _GEMMA2,
    hugging_face="Gemma3ForCausalLM",
    keys=KEYS
    | WINDOW
    | {"final_logit_softcapping": "final_logit_softcapping", "rope_local_base_freq": "rope.freq_base_swa"},
    layer=_GEMMA2.layer | HEAD_NORMS,
    fixed=_GEMMA.fixed | {"rope_local_base_freq": 10_000.0, "rope_theta": 1_000_000.0},
)
_MIXTRAL = replace(
    LLAMA,
    hugging_face="MixtralForCausalLM",
    keys=KEYS | LOCAL_EXPERT_KEYS,
    layer=ATTENTION
    | NORM_BEFORE_MLP
    | {
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
    },
    sizes=EXPERT_SIZE,
)
_STARCODER2 = replace(
    PLAIN,
    hugging_face="Starcoder2ForCausalLM",
    keys=LAYER_NORM_KEYS | WINDOW | {"norm_epsilon": "attention.layer_norm_epsilon"},
    layer=ATTENTION | NORM_BEFORE_MLP | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    # the window is that of all published models; the converter leaves it out
    fixed={"hidden_act": "gelu_pytorch_tanh", "sliding_window": 4096},
    flags={"use_bias": ("attn_q.bias",)},
)
_STABLELM = replace(
    PLAIN,
    hugging_face="StableLmForCausalLM",
    keys=LAYER_NORM_KEYS | {"layer_norm_eps": "attention.layer_norm_epsilon"},
    flags={"use_qkv_bias": ("attn_q.bias",), "qk_layernorm": ("attn_q_norm",)},
    layer=PLAIN.layer
    | {
        "attn_q_norm": "self_attn.q_layernorm.norms.{expert}",
        "attn_k_norm": "self_attn.k_layernorm.norms.{expert}",
    },
    unread=("use_parallel_residual",),
)
_OLMO = replace(
    LLAMA,
    hugging_face="OlmoForCausalLM",
    keys=LAYER_NORM_KEYS | {"layer_norm_eps": "attention.layer_norm_epsilon", "clip_qkv": "attention.clamp_kqv"},
    layer=ATTENTION | MLP,
)
_OLMO2 = replace(
    PLAIN,
    hugging_face="Olmo2ForCausalLM",
    layer={**ATTENTION, **MLP, **HEAD_NORMS, **NORMS_AFTER},
    flags=BIASES,
)
_OLMOE = replace(
    PLAIN,
    hugging_face="OlmoeForCausalLM",
    keys=KEYS | EXPERT_KEYS,
    layer=ATTENTION | NORM_BEFORE_MLP | HEAD_NORMS | EXPERTS,
    fixed={"norm_topk_prob": False},
)
_COHERE = replace(
    PLAIN,
    hugging_face="CohereForCausalLM",
    keys=LAYER_NORM_KEYS | {"layer_norm_eps": "attention.layer_norm_epsilon", "logit_scale": "logit_scale"},
    layer=ATTENTION | MLP | HEAD_NORMS,
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
    layer=ATTENTION
    | NORM_BEFORE_MLP
    | {
        "ffn_gate_inp": "block_sparse_moe.router.layer",
        "ffn_down_exps": "block_sparse_moe.output_linear",
        "ffn_down_shexp": "shared_mlp.output_linear",
    },
    joined={
        "block_sparse_moe.input_linear": ("ffn_gate_exps", "ffn_up_exps"),
        "shared_mlp.input_linear": ("ffn_gate_shexp", "ffn_up_shexp"),
    },
    unread=("expert_shared_feed_forward_length",),
)
_GPT_OSS = replace(
    PLAIN,
    hugging_face="GptOssForCausalLM",
    keys=KEYS | WINDOW | LOCAL_EXPERT_KEYS,
    layer=ATTENTION
    | {
        "post_attention_norm": "post_attention_layernorm",
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
_DEEPSEEK2 = replace(
    PLAIN,
    hugging_face="DeepseekV2ForCausalLM",
    keys=without(KEYS, "head_dim", "num_key_value_heads")
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
    layer=PLAIN.layer
    | EXPERTS
    | SHARED
    | {
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    },
    joined={"self_attn.kv_b_proj": ("latent", "attn_k_b", "attn_v_b")},
    cuts={},
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
_GLM = replace(
    PLAIN,
    hugging_face="GlmForCausalLM",
    layer=ATTENTION | NORM_BEFORE_MLP | {"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"},
    flags=QKV_BIASES,
)
_GLM4 = replace(
    _GLM,
    hugging_face="Glm4ForCausalLM",
    layer=_GLM.layer | {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"},
)
_GLM4_EXPERTS = replace(
    PLAIN,
    hugging_face="Glm4MoeForCausalLM",
    keys=KEYS
    | {key: name for key, name in _DEEPSEEK2.keys.items() if name.startswith(("expert", "leading"))}
    | {"norm_topk_prob": "expert_weights_norm", "num_nextn_predict_layers": "nextn_predict_layers"},
    fixed={"norm_topk_prob": True},
    flags=QKV_BIASES | {"use_qk_norm": ("attn_q_norm",)},
    sizes=MOE_SIZE,
    layer=ATTENTION
    | MLP
    | HEAD_NORMS
    | EXPERTS
    | SHARED
    | {
        "post_attention_norm": "post_attention_layernorm",
        "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    },
    unread=("expert_feed_forward_length", "expert_gating_func"),
)
_ERNIE = replace(PLAIN, hugging_face="Ernie4_5ForCausalLM", flags={"use_bias": ("attn_q.bias",)})

ARCHITECTURES: dict[str, Architecture] = {
    "bloom": _BLOOM,
    "chatglm": _GLM,
    "cohere2": replace(
        _COHERE,
        hugging_face="Cohere2ForCausalLM",
        keys=_COHERE.keys | WINDOW,
        layer=ATTENTION | MLP,
        flags={},
    ),
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
        layer=PLAIN.layer | EXPERTS | SHARED | {"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
        unread=("expert_feed_forward_length", "expert_shared_feed_forward_length"),
        sizes=MOE_SIZE,
    ),
    "exaone4": replace(
        PLAIN,
        hugging_face="Exaone4ForCausalLM",
        keys=KEYS | WINDOW,
        layer={**ATTENTION, **MLP, **HEAD_NORMS, **NORMS_AFTER},
    ),
    "falcon": _FALCON,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "glm4": _GLM4,
    "glm4moe": _GLM4_EXPERTS,
    "gpt-oss": _GPT_OSS,
    "gpt2": _GPT2,
    "gptneox": _NEOX,
    "granite": _GRANITE,
    "granitemoe": _GRANITE_EXPERTS,
    "hunyuan-dense": replace(
        PLAIN,
        hugging_face="HunYuanDenseV1ForCausalLM",
        layer=PLAIN.layer | {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
        flags=BIASES,
    ),
    "llama": replace(LLAMA, flags=BIASES),
    "mistral3": replace(LLAMA, flags=BIASES, unread=MINISTRAL3.unread),
    "mpt": _MPT,
    "olmo": _OLMO,
    "olmo2": _OLMO2,
    "olmoe": _OLMOE,
    "phi2": _PHI2,
    "phi3": _PHI3,
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
    **NEWER,
    "seed_oss": replace(
        PLAIN,
        hugging_face="SeedOssForCausalLM",
        layer=ATTENTION | MLP | {"post_attention_norm": "post_attention_layernorm"},
        flags=BIASES | {"attention_out_bias": ("attn_output.bias",)},
    ),
    "smollm3": replace(LLAMA, hugging_face="SmolLM3ForCausalLM", flags=BIASES),
    "stablelm": _STABLELM,
    "starcoder": replace(_GPT2, hugging_face="GPTBigCodeForCausalLM", turned=(), fixed={"hidden_act": "gelu"}),
    "starcoder2": _STARCODER2,
}
"""By the name in general.architecture."""

VARIANTS: dict[tuple[str, str], Architecture] = {
    ("llama", "expert_count"): _MIXTRAL,
    ("mistral3", "attention.temperature_scale"): MINISTRAL3,
    ("olmo2", "attention.sliding_window"): replace(
        _OLMO2, hugging_face="Olmo3ForCausalLM", keys=KEYS | WINDOW, flags={}
    ),
    ("granitemoe", "expert_shared_feed_forward_length"): replace(
        _GRANITE_EXPERTS,
        hugging_face="GraniteMoeSharedForCausalLM",
        sizes=EXPERT_SIZE | {"shared_intermediate_size": "ffn_down_shexp.weight"},
    ),
    ("granitehybrid", "expert_count"): GRANITE_HYBRID_EXPERTS,
    ("granitehybrid", "rope.scaling.finetuned"): BAMBA,
    ("mamba", "ssm.dt_b_c_rms"): FALCON_MAMBA,
    ("falcon", "attn_norm_2"): replace(
        _FALCON,
        layer=_FALCON.layer | {"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"},
    ),
}
"""Architectures whose metadata has a key that is not 0, or whose first layer has a tensor."""
