"""Writes config.json for a GGUF model, from its metadata and the shapes of its tensors. Called on any thread.

A key of the metadata that is not read might change what the model computes: it is named in the refusal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

from dragoman.errors import ModelError
from dragoman.gguf.architecture_row import Architecture
from dragoman.gguf.architectures import ARCHITECTURES, VARIANTS
from dragoman.gguf.files import (
    Config,
    GgufModel,
    has_part,
    head_counts,
    head_size,
    layer_counts,
    layer_shape,
    read_value,
    tensor_shape,
    value_heads,
)

_MOST_FACTORS = 4096  # more than a head has

_YARN = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def rope_keys() -> tuple[str, ...]:
    names = {*_YARN.values(), "type", "attn_factor", "finetuned"}
    return tuple(f"rope.scaling.{name}" for name in sorted(names))


def rope_rule(model: GgufModel) -> dict[str, Any]:
    """The values of rope_scaling, empty if positions are not scaled. Raises: ModelError."""
    prefix, values = f"{model.architecture}.rope.scaling", model.metadata
    kind = values.text(f"{prefix}.type", "none")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise values.error(f"{prefix}.type", "none, linear, yarn or longrope")
    if "rope_factors_long.weight" in model.tensors:
        factors_of = {f"{name}_factor": _factors(model, f"rope_factors_{name}.weight") for name in ("short", "long")}
        grown = values.number(f"{prefix}.attn_factor")
        return {"rope_type": "longrope", **factors_of} | ({"attention_factor": grown} if grown else {})
    if "rope_freqs.weight" in model.tensors:
        factors = _factors(model, "rope_freqs.weight")
        return {"rope_type": "factors", "factors": factors} if any(factor != 1.0 for factor in factors) else {}
    if kind == "linear":
        return {"rope_type": "linear", "factor": values.number(f"{prefix}.factor")}
    if kind == "yarn":
        rule = {key: values.number(f"{prefix}.{name}") for key, name in _YARN.items()}
        return {"rope_type": "yarn"} | {key: value for key, value in rule.items() if value is not None}
    return {}


def _factors(model: GgufModel, name: str) -> list[float]:
    tensor = model.tensors.get(name)
    if tensor is None:
        raise ModelError(f"{model.path} has no tensor {name!r}")
    if tensor.type_name != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > _MOST_FACTORS:
        raise ModelError(
            f"{model.path} tensor {name!r} is {tensor.type_name} {list(tensor.shape)}, allowed: up to {_MOST_FACTORS} of F32"
        )
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.begin)
            values: list[float] = np.frombuffer(file.read(tensor.size), dtype="<f4").tolist()
    except (OSError, ValueError) as error:
        raise ModelError(f"{tensor.path} cannot be read: {error}") from error
    return values


ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that config.json tells of."""

# Keys, behind the architecture's name, that repeat tensors or other keys, or change nothing.
_HARMLESS = ("vocab_size", "attention.value_length", "rope.dimension_count", "expert_count", "expert_used_count")


def find_architecture(model: GgufModel) -> Architecture:
    """Raises: ModelError naming the architecture, and those that are known."""
    name = model.architecture
    if name == "clip" or model.metadata.text("general.type") == "mmproj":
        raise ModelError(f"{model.path} is the vision part of a model (mmproj), allowed: the model's own file")
    if model.metadata.text("general.type") == "adapter":
        raise ModelError(
            f"{model.path} is an adapter (LoRA), allowed: the model's own file; load the adapter with --lora NAME=FILE"
        )
    for (base, key), variant in VARIANTS.items():
        if name == base and (model.metadata.get(f"{name}.{key}") or has_part(model, key)):
            return variant
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{model.path} general.architecture is {name!r:.80}, allowed: {known}")
    return ARCHITECTURES[name]


def make_config(model: GgufModel) -> Config:
    architecture = find_architecture(model)
    config: Config = {"architectures": [architecture.hugging_face], **architecture.fixed}
    for key, name in architecture.keys.items():
        value = read_value(model, name)
        if value is not None:
            config[key] = value
    config |= {key: any(has_part(model, part) for part in parts) for key, parts in architecture.flags.items()}
    found = {key: name for key, name in architecture.sizes.items() if has_part(model, name)}
    config |= {key: layer_shape(model, name)[-1] for key, name in found.items()}
    if "num_hidden_layers" in config:
        config["num_hidden_layers"] = layer_counts(model)[0]
    if "sliding_window" in config:
        _slides(model, config)
    config["vocab_size"] = tensor_shape(model, "token_embd.weight")[0]
    config["tie_word_embeddings"] = "output.weight" not in model.tensors
    if "rope_theta" in architecture.keys:
        _read_rope(model, config)
    extra = _EXTRAS.get(architecture.hugging_face)
    if extra is not None:
        extra(model, config)
    _refuse_unread(model, architecture)
    return config


def _read_rope(model: GgufModel, config: Config) -> None:
    rule = rope_rule(model)
    if rule:
        config["rope_scaling"] = rule
    size = head_size(model)
    turned = read_value(model, "rope.dimension_count")
    if not isinstance(turned, int):
        turned = size
    if turned != size or config["architectures"][0] in _TURNING_PARTS:
        part = turned / size
        config["partial_rotary_factor"] = part if int(size * part) == turned else math.nextafter(part, 2.0)


# Families that rotate only a part of a head if config.json does not say how much.
_TURNING_PARTS = (
    *("GPTNeoXForCausalLM", "Glm4ForCausalLM", "Glm4MoeForCausalLM", "GlmForCausalLM"),
    *("MiniMaxM2ForCausalLM", "NemotronForCausalLM", "Phi3ForCausalLM", "PhiForCausalLM"),
    *("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "StableLmForCausalLM"),
)


def _refuse_unread(model: GgufModel, architecture: Architecture) -> None:
    prefix = f"{model.architecture}."
    known = {*architecture.keys.values(), *architecture.unread, *_HARMLESS, *rope_keys(), *_READ_BY_EXTRAS}
    if architecture.hugging_face not in ("Gemma3nForCausalLM", "Gemma4ForCausalLM", "Olmo3ForCausalLM"):
        known -= {_SLIDING_BASE} - {*architecture.keys.values()}
    unknown = sorted(key for key in model.metadata if key.startswith(prefix) and key.removeprefix(prefix) not in known)
    unknown = [key for key in unknown if not (key == f"{prefix}attention.causal" and model.metadata[key] is True)]
    if unknown:
        raise ModelError(f"{model.path} has unknown metadata for this architecture: {', '.join(unknown[:5])}")


# --- what single architectures have -----------------------------------------------------------------------------------

_SLIDING_BASE = "rope.freq_base_swa"
_READ_BY_EXTRAS = ("attention.sliding_window_pattern", _SLIDING_BASE)


def _experts(model: GgufModel, config: Config) -> None:
    config.setdefault("intermediate_size", config.get("moe_intermediate_size", 1))
    layers = range(min(layer_counts(model)[0], len(model.tensors)))
    config["mlp_only_layers"] = [index for index in layers if f"blk.{index}.ffn_gate_inp.weight" not in model.tensors]


def _qwen35(model: GgufModel, config: Config) -> None:
    """Newer files name each layer's kind; older ones give the distance between layers that attend."""
    config["linear_value_head_dim"] = value_heads(model)[2]
    key = f"{model.architecture}.attention.recurrent_layers"
    if model.metadata.is_list(key):
        kinds = ["linear_attention" if recurs else "full_attention" for recurs in model.metadata[key]]
        config["layer_types"] = kinds[: layer_counts(model)[0]]
    if "num_experts" in config:
        _experts(model, config)


def _slides(model: GgufModel, config: Config) -> None:
    key = f"{model.architecture}.attention.sliding_window_pattern"
    if not config.get("sliding_window"):
        config.pop("sliding_window", None)
    elif model.metadata.is_list(key):
        slides = model.metadata[key]
        config["layer_types"] = ["sliding_attention" if slide else "full_attention" for slide in slides]
    elif key in model.metadata:
        config["sliding_window_pattern"] = model.metadata.count(key)


def _gemma2(model: GgufModel, config: Config) -> None:
    """The largest models scale scores by the hidden size divided by the heads, the others by a head's size."""
    largest = {"Gemma2ForCausalLM": 46, "Gemma3ForCausalLM": 62}[config["architectures"][0]]
    heads, _ = head_counts(model)
    is_largest = config.get("num_hidden_layers") == largest
    config["query_pre_attn_scalar"] = config.get("hidden_size", 0) // heads if is_largest else head_size(model)


def _falcon(model: GgufModel, config: Config) -> None:
    heads, kv_heads = head_counts(model)
    config["num_key_value_heads"] = kv_heads
    config["new_decoder_architecture"] = 1 < kv_heads < heads or has_part(model, "attn_norm_2")
    config["multi_query"] = kv_heads == 1
    config["intermediate_size"] = layer_shape(model, "ffn_up.weight")[0]  # Falcon 2 has more than the key says
    if config["new_decoder_architecture"]:
        config["num_ln_in_parallel_attn"] = 2 if has_part(model, "attn_norm_2") else 1


def _mpt(model: GgufModel, config: Config) -> None:
    name = model.architecture
    values = model.metadata
    config["expansion_ratio"] = values.count(f"{name}.feed_forward_length") // max(config.get("d_model", 1), 1)
    bias = values.number(f"{name}.attention.max_alibi_bias")
    config["attn_config"] = {
        "alibi": (bias or 0) > 0,
        "alibi_bias_max": bias,
        "clip_qkv": values.number(f"{name}.attention.clamp_kqv") or None,
    }


def _big_code(model: GgufModel, config: Config) -> None:
    config["multi_query"] = head_counts(model)[1] == 1


def _stablelm(model: GgufModel, config: Config) -> None:
    config["use_parallel_residual"] = not has_part(model, "ffn_norm")


def _granite(model: GgufModel, config: Config) -> None:
    key = f"{model.architecture}.rope.scaling.finetuned"
    if not model.metadata.flag(key, True):
        raise model.metadata.error(key, "true, since otherwise no dimension would be rotated by position")
    config.setdefault("attention_multiplier", head_size(model) ** -0.5)


def _gpt_oss(model: GgufModel, config: Config) -> None:
    if "rope_scaling" in config:
        config["rope_scaling"]["truncate"] = False  # as in all published checkpoints; no key tells it


def _deepseek2(model: GgufModel, config: Config) -> None:
    """V3 and its kin score experts by a sigmoid; older files tell sizes of heads otherwise."""
    name, values = model.architecture, model.metadata
    _latent_sizes(model, config)
    config.pop("partial_rotary_factor", None)
    config["norm_topk_prob"] = values.flag(f"{name}.expert_weights_norm", False)
    if values.number(f"{name}.expert_gating_func") == 2 or has_part(model, "exp_probs_b"):
        config["architectures"] = ["DeepseekV3ForCausalLM"]
    else:
        in_groups = config.get("n_group", 1) > 1
        config["topk_method"] = "group_limited_greedy" if in_groups else "greedy"
    _read_yarn_growth(model, config, 10)  # written as a tenth of it


def _read_yarn_growth(model: GgufModel, config: Config, factor: float) -> None:
    growth = model.metadata.number(f"{model.architecture}.rope.scaling.yarn_log_multiplier")
    if growth and "rope_scaling" in config:
        weight = round(growth * factor, 6)
        config["rope_scaling"] |= {"mscale": weight, "mscale_all_dim": weight}


def _latent_sizes(model: GgufModel, config: Config) -> None:
    name, values = model.architecture, model.metadata
    size, width = (
        values.count(f"{name}.attention.{kind}_length_mla", 0) or values.count(f"{name}.attention.{kind}_length")
        for kind in ("key", "value")
    )
    config["v_head_dim"] = width
    config["qk_nope_head_dim"] = size - config.get("qk_rope_head_dim", 0)


def _ernie_experts(model: GgufModel, config: Config) -> None:
    if has_part(model, "ffn_down_shexp") and "moe_intermediate_size" in config:
        shared = layer_shape(model, "ffn_down_shexp.weight")[-1]
        config["moe_num_shared_experts"] = shared // config["moe_intermediate_size"]


def _olmo3(model: GgufModel, config: Config) -> None:
    """Layers that see a window rotate by a base of their own, and without the others' scaling."""
    base = read_value(model, _SLIDING_BASE)
    if base is not None:
        full = {
            "rope_type": "default",
            **config.pop("rope_scaling", {}),
            "rope_theta": config.pop("rope_theta", 10_000.0),
        }
        sliding = {"rope_type": "default", "rope_theta": base}
        config["rope_parameters"] = {"full_attention": full, "sliding_attention": sliding}


def _ministral3(model: GgufModel, config: Config) -> None:
    _read_yarn_growth(model, config, 1)
    if "rope_scaling" in config:
        scale = model.metadata.number(f"{model.architecture}.attention.temperature_scale")
        config["rope_scaling"]["llama_4_scaling_beta"] = scale


def _gemma3n(model: GgufModel, config: Config) -> None:
    """Gates pass by their distance from the mean in deviations: as many as pass of a normal distribution."""
    config["vocab_size_per_layer_input"] = tensor_shape(model, "per_layer_token_embd.weight")[0]
    config["laurel_rank"] = layer_shape(model, "laurel_l.weight")[0]
    name, num_layers = model.architecture, layer_counts(model)[0]
    config["intermediate_size"] = _each_layer(model, f"{name}.feed_forward_length", num_layers)
    scales = model.metadata.listed(f"{name}.activation_sparsity_scale", float)
    if scales:
        config["activation_sparsity_pattern"] = [max(NormalDist().cdf(scale), 0.0) for scale in scales]


def _gemma4(model: GgufModel, config: Config) -> None:
    """Layers that see everything have other heads, which rotate otherwise; those that share keys may have a wider MLP."""
    name, values = model.architecture, model.metadata
    num_layers = layer_counts(model)[0]
    kinds = config.get("layer_types") or []
    full = next((index for index, kind in enumerate(kinds) if kind == "full_attention"), 0)
    kv_heads = _each_layer(model, f"{name}.attention.head_count_kv", num_layers)
    sizes = _each_layer(model, f"{name}.feed_forward_length", num_layers)
    sliding = next((index for index, kind in enumerate(kinds) if kind == "sliding_attention"), full)
    if max(full, sliding) >= num_layers:
        raise values.error(f"{name}.attention.sliding_window_pattern", f"one for each of {num_layers} layers")
    config["num_key_value_heads"], config["num_global_key_value_heads"] = kv_heads[sliding], kv_heads[full]
    config["attention_k_eq_v"] = f"blk.{full}.attn_v.weight" not in model.tensors
    if not config["attention_k_eq_v"] and kv_heads[full] != kv_heads[sliding]:
        raise values.error(
            f"{name}.attention.head_count_kv", "the same for every layer, because keys and values differ"
        )
    config["intermediate_size"], config["use_double_wide_mlp"] = sizes[0], sizes[-1] != sizes[0]
    if has_part(model, "ffn_gate_inp"):
        config["enable_moe_block"] = True
        config["moe_intermediate_size"] = layer_shape(model, "ffn_down_exps.weight")[-1]
    if "per_layer_token_embd.weight" in model.tensors:
        config["vocab_size_per_layer_input"] = tensor_shape(model, "per_layer_token_embd.weight")[0]
    factors = rope_rule(model).get("factors", [1.0])
    turned = [factor for factor in factors if factor < _NEVER_TURNS]
    if factors[: len(turned)] != [1.0] * len(turned):
        raise ModelError(
            f"{model.path} tensor 'rope_freqs.weight' holds {turned}, allowed: ones, then {_NEVER_TURNS:g}"
        )
    bases = (values.number(f"{name}.rope.freq_base") or 1_000_000.0, config.pop("rope_local_base_freq", 10_000.0))
    config["rope_parameters"] = {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": len(turned) / len(factors),
            "rope_theta": bases[0],
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": bases[1]},
    }


_NEVER_TURNS = 1e29  # pairs with a larger divisor do not rotate; files have 1e30


def _each_layer(model: GgufModel, key: str, num_layers: int) -> list[int]:
    if not model.metadata.is_list(key):
        return [model.metadata.count(key)] * num_layers
    counts: list[int] = model.metadata.listed(key, int)
    if len(counts) < num_layers or min(counts, default=0) < 1:
        raise model.metadata.error(key, f"an integer of at least 1 for each of {num_layers} layers")
    return counts[:num_layers]


def _mamba(model: GgufModel, config: Config) -> None:
    config["expand"] = _inner_size(model) / max(config.get("hidden_size", 1), 1)


def _mamba2(model: GgufModel, config: Config) -> None:
    _mamba(model, config)
    config["head_dim"] = _head_size(model)


def _nemotron_h(model: GgufModel, config: Config) -> None:
    num_layers, config["num_nextn_predict_layers"] = layer_counts(model)
    kinds = {"ssm_in": "mamba", "attn_q": "attention", "ffn_gate_inp": "moe", "ffn_up": "mlp"}
    layers = range(min(num_layers, len(model.tensors)))
    found = (
        next((kind for part, kind in kinds.items() if f"blk.{index}.{part}.weight" in model.tensors), "no")
        for index in layers
    )
    config["layers_block_type"] = list(found)
    config["mamba_head_dim"] = _head_size(model)
    config["intermediate_size"] = layer_shape(model, "ffn_up.weight")[0] if has_part(model, "ffn_up.") else 1


def _jamba(model: GgufModel, config: Config) -> None:
    name = model.architecture
    config["num_key_value_heads"] = head_counts(model)[1]
    attends = _attending(model)
    num_layers = len(attends)
    routes = [f"blk.{index}.ffn_gate_inp.weight" in model.tensors for index in range(num_layers)]
    for kind, flags in (("attn", attends), ("expert", routes)):
        places = [index for index, flag in enumerate(flags) if flag]
        first = places[0] if places else num_layers  # past the last layer: none
        period = places[1] - first if len(places) > 1 else num_layers + 1
        if [index % period == first for index in range(num_layers)] != flags:
            key = f"{name}.attention.head_count_kv" if kind == "attn" else f"{name}.expert_count"
            raise model.metadata.error(key, "layers that come again after the same number of others")
        config[f"{kind}_layer_period"], config[f"{kind}_layer_offset"] = period, first
    if not any(routes):
        config["num_experts"] = 1
    config["mamba_expand"] = _inner_size(model) / max(config.get("hidden_size", 1), 1)


def _falcon_h1(model: GgufModel, config: Config) -> None:
    config["mamba_d_head"] = _head_size(model)


def _attending_hybrid(model: GgufModel, config: Config) -> list[bool]:
    """Adds what Granite 4 and Bamba have in common; returns for each layer True if it attends."""
    config["mamba_d_head"] = _head_size(model)
    config["mamba_expand"] = _inner_size(model) / max(config.get("hidden_size", 1), 1)
    config["num_key_value_heads"] = head_counts(model)[1]
    return _attending(model)


def _granite_hybrid(model: GgufModel, config: Config) -> None:
    attends = _attending_hybrid(model, config)
    config["layer_types"] = ["attention" if attending else "mamba" for attending in attends]


def _bamba(model: GgufModel, config: Config) -> None:
    attends = _attending_hybrid(model, config)
    config["attn_layer_indices"] = [index for index, attending in enumerate(attends) if attending]


def _lfm2(model: GgufModel, config: Config) -> None:
    counts = model.metadata.listed(f"{model.architecture}.attention.head_count_kv", int)
    config["full_attn_idxs"] = [index for index, count in enumerate(counts) if count]
    config["num_key_value_heads"] = head_counts(model)[1]


def _inner_size(model: GgufModel) -> int:
    return model.metadata.count(f"{model.architecture}.ssm.inner_size")


def _head_size(model: GgufModel) -> int:
    name, values, width = model.architecture, model.metadata, _inner_size(model)
    heads = values.count(f"{name}.ssm.time_step_rank")
    if not heads or not width or width % heads:
        raise values.error(f"{name}.ssm.time_step_rank", f"what divides {name}.ssm.inner_size, {width}")
    return width // heads


def _attending(model: GgufModel) -> list[bool]:
    """For each layer: True if it attends. Raises: ModelError if that is not said of all."""
    key, num_layers = f"{model.architecture}.attention.head_count_kv", layer_counts(model)[0]
    counts = model.metadata.listed(key, int)
    if len(counts) < num_layers:
        raise model.metadata.error(key, f"an integer for each of {num_layers} layers")
    return [count > 0 for count in counts[:num_layers]]


_EXTRAS: Mapping[str, Callable[[GgufModel, Config], None]] = {
    "BambaForCausalLM": _bamba,
    "DeepseekV2ForCausalLM": _deepseek2,
    "Ernie4_5_MoeForCausalLM": _ernie_experts,
    "FalconForCausalLM": _falcon,
    "FalconH1ForCausalLM": _falcon_h1,
    "FalconMambaForCausalLM": _mamba,
    "GPTBigCodeForCausalLM": _big_code,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma2,
    "Gemma3nForCausalLM": _gemma3n,
    "Gemma4ForCausalLM": _gemma4,
    "GptOssForCausalLM": _gpt_oss,
    "GraniteForCausalLM": _granite,
    "GraniteMoeForCausalLM": _granite,
    "GraniteMoeHybridForCausalLM": _granite_hybrid,
    "GraniteMoeSharedForCausalLM": _granite,
    "JambaForCausalLM": _jamba,
    "Lfm2ForCausalLM": _lfm2,
    "Lfm2MoeForCausalLM": _lfm2,
    "MPTForCausalLM": _mpt,
    "Mamba2ForCausalLM": _mamba2,
    "MambaForCausalLM": _mamba,
    "Ministral3ForCausalLM": _ministral3,
    "NemotronHForCausalLM": _nemotron_h,
    "Olmo3ForCausalLM": _olmo3,
    "Qwen2MoeForCausalLM": _experts,
    "Qwen3MoeForCausalLM": _experts,
    "Qwen3NextForCausalLM": _qwen35,
    "Qwen3_5ForCausalLM": _qwen35,
    "Qwen3_5MoeForCausalLM": _qwen35,
    "StableLmForCausalLM": _stablelm,
}
