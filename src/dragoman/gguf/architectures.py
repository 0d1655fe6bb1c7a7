"""The architectures of GGUF files that are read: what each is on the Hugging Face side, in keys, values and names.

Does: hold values. Does not: read files. Used by `config` for config.json, and by the source of weights for tensors.
Source of the facts: llama.cpp's converter of Hugging Face checkpoints, which is turned round here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Names = dict[str, str]
Order = Literal["pairs", "by_group"]
"""How rows lie in a file: each head's two halves taking turns; or queries, keys and values apart that belong in groups."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture. `hugging_face`: its name in config.json.

    `keys`: of config.json, with the keys of the metadata (behind the architecture's name) that hold their values. `fixed`:
    keys and values that all its models have. `unread`: keys of the metadata that change nothing here.
    `outer`: tensors outside the layers; `layer`: those of a layer, below `layers`; an `{expert}` in a name counts along a
    tensor's first axis. `cuts`: tensors that are several here, below each other. `joined`: tensors that are one here, by its
    name: below each other, or "turns" for rows that take turns.
    `orders`: how rows of tensors lie otherwise than here. `turned`: matrices that are [in, out] here. `has_raised_norms`:
    the file's norms have one added.
    """

    hugging_face: str
    keys: Names
    layers: str = "model.layers"
    outer: Names = field(default_factory=dict)
    layer: Names = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    cuts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    orders: Mapping[str, Order] = field(default_factory=dict)
    turned: tuple[str, ...] = ()
    has_raised_norms: bool = False


_KEYS = {
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
_OLD_KEYS = {key: name for key, name in _KEYS.items() if key not in ("rms_norm_eps", "rope_theta", "head_dim")} | {
    "layer_norm_epsilon": "attention.layer_norm_epsilon"
}
_WINDOW = {"sliding_window": "attention.sliding_window"}
_EXPERT_KEYS = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
_LOCAL_EXPERT_KEYS = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_CUTS = {
    "attn_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "ffn_gate_up_exps": ("mlp.experts.{expert}.gate_proj", "mlp.experts.{expert}.up_proj"),
}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_NORM_BEFORE_MLP = {"ffn_norm": "post_attention_layernorm"}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_NORMS_AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
}
_SHARED = {
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_SHARED_GATED = {name: target.replace("shared_experts", "shared_expert") for name, target in _SHARED.items()} | {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate"
}
_PAIRS: Mapping[str, Order] = {"attn_q": "pairs", "attn_k": "pairs"}

_LLAMA = Architecture(
    "LlamaForCausalLM", _KEYS, outer=_OUTER, layer=_ATTENTION | _NORM_BEFORE_MLP | _MLP, cuts=_CUTS, orders=_PAIRS
)
_PLAIN = replace(_LLAMA, orders={})  # whose rows lie as in the checkpoint

_GPT2 = Architecture(
    "GPT2LMHeadModel",
    _OLD_KEYS,
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
    {**_OLD_KEYS, "seq_length": "context_length"},
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
)
_FALCON = replace(
    _BLOOM,
    hugging_face="FalconForCausalLM",
    keys=_OLD_KEYS | {"rope_theta": "rope.freq_base"},
    outer={name: target for name, target in _BLOOM.outer.items() if name != "token_embd_norm"},
    layer={name: target for name, target in _BLOOM.layer.items() if name != "ffn_norm"},
    fixed={"bias": False, "alibi": False, "parallel_attn": True},
    unread=("tensor_data_layout",),
)
_NEOX = Architecture(
    "GPTNeoXForCausalLM",
    _OLD_KEYS | {"use_parallel_residual": "use_parallel_residual", "rope_theta": "rope.freq_base"},
    layers="gpt_neox.layers",
    outer={"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"},
    layer={target: name.replace("self_attention", "attention") for target, name in _BLOOM.layer.items()},
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
    unread=("feed_forward_length",),
)
_PHI2 = Architecture(
    "PhiForCausalLM",
    {**_OLD_KEYS, "rope_theta": "rope.freq_base"},
    outer=_OUTER | {"output_norm": "model.final_layernorm"},
    layer={
        **_ATTENTION,
        "attn_output": "self_attn.dense",
        "ffn_up": "mlp.fc1",
        "ffn_down": "mlp.fc2",
    },
    cuts=_CUTS,
)
_PHI3 = replace(
    _PLAIN,
    hugging_face="Phi3ForCausalLM",
    keys=_KEYS | _WINDOW | {"original_max_position_embeddings": "rope.scaling.original_context_length"},
    layer={
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        **_NORM_BEFORE_MLP,
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
    cuts={},
)
_GEMMA = replace(
    _PLAIN, hugging_face="GemmaForCausalLM", has_raised_norms=True, fixed={"hidden_act": "gelu_pytorch_tanh"}
)
_GEMMA2 = replace(
    _GEMMA,
    hugging_face="Gemma2ForCausalLM",
    keys=_KEYS
    | _WINDOW
    | {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"},
    layer=_ATTENTION | _MLP | _NORMS_AFTER | {"ffn_norm": "pre_feedforward_layernorm"},
)
_GEMMA3 = replace(
    _GEMMA2,
    hugging_face="Gemma3ForCausalLM",
    keys=_KEYS
    | _WINDOW
    | {"final_logit_softcapping": "final_logit_softcapping", "rope_local_base_freq": "rope.freq_base_swa"},
    layer=_GEMMA2.layer | _HEAD_NORMS,
)
_QWEN2 = replace(_PLAIN, hugging_face="Qwen2ForCausalLM", fixed={"use_sliding_window": False})
_QWEN3 = replace(_QWEN2, hugging_face="Qwen3ForCausalLM", layer=_PLAIN.layer | _HEAD_NORMS)
_QWEN3_EXPERTS = replace(
    _QWEN3,
    hugging_face="Qwen3MoeForCausalLM",
    keys=_KEYS | _EXPERT_KEYS,
    layer=_QWEN3.layer | _EXPERTS,
    fixed=_QWEN2.fixed | {"norm_topk_prob": True},
    unread=("expert_feed_forward_length", "expert_shared_feed_forward_length"),
)
_QWEN2_EXPERTS = replace(
    _QWEN3_EXPERTS,
    hugging_face="Qwen2MoeForCausalLM",
    layer=_PLAIN.layer | _EXPERTS | _SHARED_GATED,
    fixed=_QWEN2.fixed | {"norm_topk_prob": False},
)
_MIXTRAL = replace(
    _LLAMA,
    hugging_face="MixtralForCausalLM",
    keys=_KEYS | _LOCAL_EXPERT_KEYS,
    layer=_ATTENTION
    | _NORM_BEFORE_MLP
    | {
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
    },
)
_STARCODER2 = replace(
    _PLAIN,
    hugging_face="Starcoder2ForCausalLM",
    keys={key: name for key, name in _KEYS.items() if key != "rms_norm_eps"}
    | _WINDOW
    | {"norm_epsilon": "attention.layer_norm_epsilon"},
    layer=_ATTENTION | _NORM_BEFORE_MLP | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    fixed={"hidden_act": "gelu_pytorch_tanh"},
)
_STABLELM = replace(
    _PLAIN,
    hugging_face="StableLmForCausalLM",
    keys={key: name for key, name in _KEYS.items() if key != "rms_norm_eps"}
    | {"layer_norm_eps": "attention.layer_norm_epsilon"},
    layer=_PLAIN.layer
    | {
        "attn_q_norm": "self_attn.q_layernorm.norms.{expert}",
        "attn_k_norm": "self_attn.k_layernorm.norms.{expert}",
    },
    unread=("use_parallel_residual",),
)
_OLMO2 = replace(_PLAIN, hugging_face="Olmo2ForCausalLM", layer={**_ATTENTION, **_MLP, **_HEAD_NORMS, **_NORMS_AFTER})
_OLMOE = replace(
    _PLAIN,
    hugging_face="OlmoeForCausalLM",
    keys=_KEYS | _EXPERT_KEYS,
    layer=_ATTENTION | _NORM_BEFORE_MLP | _HEAD_NORMS | _EXPERTS,
    fixed={"norm_topk_prob": False},
)
_COHERE = replace(
    _PLAIN,
    hugging_face="CohereForCausalLM",
    keys={key: name for key, name in _KEYS.items() if key != "rms_norm_eps"}
    | {"layer_norm_eps": "attention.layer_norm_epsilon", "logit_scale": "logit_scale"},
    layer=_ATTENTION | _MLP | _HEAD_NORMS,
)
_GRANITE_KEYS = _KEYS | {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
_GRANITE = replace(_LLAMA, hugging_face="GraniteForCausalLM", keys=_GRANITE_KEYS)
_GRANITE_EXPERTS = replace(
    _LLAMA,
    hugging_face="GraniteMoeForCausalLM",
    keys=_GRANITE_KEYS | _LOCAL_EXPERT_KEYS,
    layer=_ATTENTION
    | _NORM_BEFORE_MLP
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
    _PLAIN,
    hugging_face="GptOssForCausalLM",
    keys=_KEYS | _WINDOW | _LOCAL_EXPERT_KEYS,
    layer=_ATTENTION
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
    unread=("expert_feed_forward_length",),
)
_DEEPSEEK2 = replace(
    _PLAIN,
    hugging_face="DeepseekV2ForCausalLM",
    keys={key: name for key, name in _KEYS.items() if key not in ("head_dim", "num_key_value_heads")}
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
    layer=_PLAIN.layer
    | _EXPERTS
    | _SHARED
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
    unread=(
        "attention.head_count_kv",
        "expert_feed_forward_length",
        "expert_weights_norm",
        "expert_gating_func",
        "attention.key_length",
        "attention.key_length_mla",
        "attention.value_length_mla",
        "rope.scaling.yarn_log_multiplier",
    ),
)
_GLM4 = replace(
    _PLAIN,
    hugging_face="Glm4ForCausalLM",
    layer=_ATTENTION
    | _NORM_BEFORE_MLP
    | {
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
)
_GLM4_EXPERTS = replace(
    _PLAIN,
    hugging_face="Glm4MoeForCausalLM",
    keys=_KEYS
    | {
        key: name
        for key, name in _DEEPSEEK2.keys.items()
        if name.startswith("expert") or key == "first_k_dense_replace"
    },
    layer=_ATTENTION
    | _MLP
    | _HEAD_NORMS
    | _EXPERTS
    | _SHARED
    | {
        "post_attention_norm": "post_attention_layernorm",
        "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    },
    unread=("expert_feed_forward_length", "expert_weights_norm", "expert_gating_func", "nextn_predict_layers"),
)
_LFM2 = replace(
    _PLAIN,
    hugging_face="Lfm2ForCausalLM",
    keys={key: name for key, name in _KEYS.items() if key not in ("rms_norm_eps", "num_key_value_heads")}
    | {"norm_eps": "attention.layer_norm_rms_epsilon", "conv_L_cache": "shortconv.l_cache"},
    outer=_OUTER | {"output_norm": "model.embedding_norm", "token_embd_norm": "model.embedding_norm"},
    layer={
        "attn_norm": "operator_norm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "shortconv.conv": "conv.conv",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.out_proj": "conv.out_proj",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
    },
    fixed={"block_auto_adjust_ff_dim": False},
    unread=("attention.head_count_kv",),
)
_ERNIE = replace(_PLAIN, hugging_face="Ernie4_5ForCausalLM")

ARCHITECTURES: dict[str, Architecture] = {
    "bloom": _BLOOM,
    "cohere2": replace(
        _COHERE,
        hugging_face="Cohere2ForCausalLM",
        keys=_COHERE.keys | _WINDOW,
        layer=_ATTENTION | _MLP,
    ),
    "command-r": _COHERE,
    "deepseek2": _DEEPSEEK2,
    "ernie4_5": _ERNIE,
    "ernie4_5-moe": replace(
        _ERNIE,
        hugging_face="Ernie4_5_MoeForCausalLM",
        keys=_KEYS
        | {
            "moe_num_experts": "expert_count",
            "moe_k": "expert_used_count",
            "moe_num_shared_experts": "expert_shared_count",
            "moe_layer_start_index": "leading_dense_block_count",
            "moe_layer_interval": "interleave_moe_layer_step",
        },
        layer=_PLAIN.layer | _EXPERTS | _SHARED | {"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
        unread=("expert_feed_forward_length", "expert_shared_feed_forward_length"),
    ),
    "exaone4": replace(
        _PLAIN,
        hugging_face="Exaone4ForCausalLM",
        keys=_KEYS | _WINDOW,
        layer={**_ATTENTION, **_MLP, **_HEAD_NORMS, **_NORMS_AFTER},
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
        _PLAIN,
        hugging_face="HunYuanDenseV1ForCausalLM",
        layer=_PLAIN.layer | {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
    ),
    "lfm2": _LFM2,
    "llama": _LLAMA,
    "mpt": _MPT,
    "olmo2": _OLMO2,
    "olmoe": _OLMOE,
    "phi2": _PHI2,
    "phi3": _PHI3,
    "qwen2": _QWEN2,
    "qwen2moe": _QWEN2_EXPERTS,
    "qwen3": _QWEN3,
    "qwen3moe": _QWEN3_EXPERTS,
    "seed_oss": replace(
        _PLAIN,
        hugging_face="SeedOssForCausalLM",
        layer=_ATTENTION | _MLP | {"post_attention_norm": "post_attention_layernorm"},
    ),
    "smollm3": replace(_LLAMA, hugging_face="SmolLM3ForCausalLM"),
    "stablelm": _STABLELM,
    "starcoder": replace(_GPT2, hugging_face="GPTBigCodeForCausalLM", turned=(), fixed={"hidden_act": "gelu"}),
    "starcoder2": _STARCODER2,
}
"""By the name in general.architecture."""

VARIANTS: dict[tuple[str, str], Architecture] = {
    ("llama", "expert_count"): _MIXTRAL,
    ("olmo2", "attention.sliding_window"): replace(_OLMO2, hugging_face="Olmo3ForCausalLM", keys=_KEYS | _WINDOW),
    ("granitemoe", "expert_shared_feed_forward_length"): replace(
        _GRANITE_EXPERTS, hugging_face="GraniteMoeSharedForCausalLM"
    ),
    ("falcon", "attn_norm_2"): replace(
        _FALCON,
        layer=_FALCON.layer | {"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"},
    ),
}
"""What an architecture is where its metadata has a key that is not 0, or its first layer a tensor."""
