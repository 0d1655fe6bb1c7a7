"""Writes the small checkpoints of tests/models/families as GGUF files, as llama.cpp's converter writes them.

Does: rename, turn and stack tensors, and write the metadata. Names are those of the `gguf` package's own table, so that they
do not depend on what is tested. Does not: quantise (the package does, and `gguf_blocks` what it cannot), or quantise well.
Source of the facts: llama.cpp, convert_hf_to_gguf.py and conversion/.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.support import gguf_newer, gguf_qwen, gguf_recurrent
from tests.support.family_checkpoint import Array, Case, write_case
from tests.support.gguf_blocks import quantise

Config = dict[str, Any]

ARCHITECTURES = {
    "BloomForCausalLM": "bloom",
    "Cohere2ForCausalLM": "cohere2",
    "CohereForCausalLM": "command-r",
    "DeepseekV2ForCausalLM": "deepseek2",
    "DeepseekV3ForCausalLM": "deepseek2",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5-moe",
    "Exaone4ForCausalLM": "exaone4",
    "FalconForCausalLM": "falcon",
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "starcoder",
    "GPTNeoXForCausalLM": "gptneox",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "GemmaForCausalLM": "gemma",
    "Glm4ForCausalLM": "glm4",
    "GlmForCausalLM": "chatglm",
    "Glm4MoeForCausalLM": "glm4moe",
    "GptOssForCausalLM": "gpt-oss",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeHybridForCausalLM": "granite",
    "GraniteMoeSharedForCausalLM": "granitemoe",
    "HunYuanDenseV1ForCausalLM": "hunyuan-dense",
    "Lfm2ForCausalLM": "lfm2",
    "LlamaForCausalLM": "llama",
    "Mistral3ForConditionalGeneration": "mistral3",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "MptForCausalLM": "mpt",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo2",
    "OlmoForCausalLM": "olmo",
    "OlmoeForCausalLM": "olmoe",
    "Phi3ForCausalLM": "phi3",
    "PhiForCausalLM": "phi2",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen2VLForConditionalGeneration": "qwen2vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2vl",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Qwen3NextForCausalLM": "qwen3next",
    "Qwen3VLForConditionalGeneration": "qwen3vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3vlmoe",
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5ForConditionalGeneration": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
    "Qwen3_5MoeForConditionalGeneration": "qwen35moe",
    "SeedOssForCausalLM": "seed_oss",
    "SmolLM3ForCausalLM": "smollm3",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
    **gguf_newer.ARCHITECTURES,
    **gguf_recurrent.ARCHITECTURES,
}
PERMUTED = ("arcee", "llama", "granite", "granitemoe", "mistral3", "olmo", "smollm3", *gguf_recurrent.PERMUTED)
QWENS = ("qwen2vl", "qwen3next", "qwen35", "qwen35moe", "qwen3vl", "qwen3vlmoe")
"""Of which `gguf_qwen` knows the rest."""
RAISED = ("gemma", "gemma2", "gemma3", "nemotron")
_ARCHES = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")
_UNUSED = re.compile(r"\.att(n|ention)\.(masked_)?bias$|rotary_emb\.inv_freq$|^model\.mtp_|^mtp\.")
_NORMS = re.compile(r"(.*\.[qk]_layernorm)\.norms\.(\d+)\.(.*)")


@dataclass(frozen=True, slots=True)
class Writing:
    """How a file is written. `changes`: metadata that is written otherwise, None = it is left out.

    `tokenizer`: keys behind `tokenizer.` and their values. `random_blocks`: matrices are made of random, but sane blocks of
    the type, instead of from their values. `values`: by their names in the file, in place of the checkpoint's. `legacy`: as
    the converter wrote Qwen3-Next at first. `expert_type`: that of experts' matrices, "" = as others. `joins_experts`:
    their gates and ups are one tensor.
    """

    split_max_tensors: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    random_blocks: bool = False
    values: Mapping[str, Array] | None = None
    legacy: bool = False
    expert_type: str = ""
    joins_experts: bool = False


def write_gguf(name: str, case: Case, directory: Path, type_name: str = "F32", **options: Any) -> Path:
    """The case as a GGUF file with its matrices as that type; returns its path. `options`: those of `Writing`."""
    write_case(name, case, directory / "checkpoint")
    stored = load_file(directory / "checkpoint" / "model.safetensors")
    tensors = {key: value.astype(np.float32) for key, value in stored.items()}
    path = directory / f"{name}-{type_name}.gguf"
    return write_tensors(case["config"], tensors, path, type_name, Writing(**options))


def write_tensors(
    config: Config, tensors: Mapping[str, Array], path: Path, type_name: str = "F32", writing: Writing | None = None
) -> Path:
    """A checkpoint as a GGUF file."""
    writing = writing or Writing()
    name = gguf_recurrent.architecture(config, ARCHITECTURES[config["architectures"][0]])
    if name == "gemma4":
        config, tensors = gguf_newer.text_part(config, tensors)
    elif name in QWENS or "text_config" in config:
        config, tensors = gguf_qwen.text_part(config, name, dict(tensors))
        config = config | {"legacy": writing.legacy}
    if name == "chatglm":
        tensors = dict(_fused(tensors))
    writer = gguf.GGUFWriter(path, name, split_max_tensors=writing.split_max_tensors)
    keys = {f"{name}.{key}": value for key, value in metadata(config, name).items() if value is not None}
    keys |= {f"tokenizer.{key}": value for key, value in writing.tokenizer.items()}
    for key, value in (keys | dict(writing.changes)).items():
        if value is not None:
            add_value(writer, key, value)
    found = converted(config, tensors, name)
    for tensor, value in _joined_experts(dict(found)) if writing.joins_experts else found:
        values = value if writing.values is None else writing.values[tensor]
        chosen = writing.expert_type if "_exps." in tensor and writing.expert_type else type_name
        data, kind = _stored(tensor, values, chosen, writing.random_blocks)
        writer.add_tensor(tensor, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Writes a value as the type that it has here."""
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _stored(name: str, value: Array, type_name: str, random_blocks: bool) -> tuple[Array, gguf.GGMLQuantizationType]:
    """Bytes and type: vectors, norms, routers and what no quantised row can hold stay F32, as the converter does it."""
    kind = gguf.GGMLQuantizationType[type_name]
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    is_small = value.ndim < 2 or "norm" in name or "ffn_gate_inp" in name or "position_embd" in name or "conv" in name
    if is_small or not name.endswith(".weight") or value.shape[-1] % block:
        return np.ascontiguousarray(value, dtype=np.float32), gguf.GGMLQuantizationType.F32
    if random_blocks:
        return blocks(value.shape, type_name, len(name)), kind
    if type_name == "F32":
        return np.ascontiguousarray(value, dtype=np.float32), kind
    return quantise(value, type_name), kind


def blocks(shape: tuple[int, ...], type_name: str, stream: int) -> Array:
    """Random bytes of a quantised matrix whose scales are small numbers. Shape: u8 [..., bytes of a row]."""
    kind = gguf.GGMLQuantizationType[type_name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.RandomState(stream)
    rows = random.randint(0, 256, (math.prod(shape) // block, size)).astype(np.uint8)
    if type_name == "MXFP4":  # whose scale is an exponent
        rows[:, 0] = 118 + rows[:, 0] % 4
    for offset in SCALES.get(type_name, ()):
        scales = (random.rand(len(rows)) * 0.004 + 0.001).astype(np.float16)
        rows[:, offset : offset + 2] = scales[:, None].view(np.uint8).reshape(-1, 2)
    return rows.reshape(*shape[:-1], -1)


SCALES = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "IQ4_NL": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where the f16 scales of a block lie. Source: ggml's ggml-common.h."""


# --- tensors ----------------------------------------------------------------------------------------------------------


def converted(config: Config, tensors: Mapping[str, Array], name: str) -> Iterator[tuple[str, Array]]:
    """The tensors as the file has them."""
    arch, num_layers = _ARCHES[name], _first(config, "num_hidden_layers", "n_layer", "n_layers")
    table = gguf.get_tensor_name_map(arch, num_layers + config.get("num_nextn_predict_layers", 0))
    for key, value in _prepared(config, tensors, name):
        found = key if key.startswith("blk.") else table.get_name(key, try_suffixes=(".weight", ".bias"))
        assert found is not None, key
        yield found, value
    yield from _rope_factors(config)
    yield from gguf_newer.rope_factors(config, name)


def _prepared(config: Config, tensors: Mapping[str, Array], name: str) -> Iterator[tuple[str, Array]]:
    stacks: dict[str, dict[int, Array]] = {}
    for key, value in gguf_newer.stacked(tensors):
        if (name.startswith("gemma") and key == "lm_head.weight") or _UNUSED.search(key) or _guesses(config, key):
            continue
        match = _EXPERT.fullmatch(key) or _NORMS.fullmatch(key)
        if match:
            merged = f"{match[1]}.{match[3]}"
            stacks.setdefault(merged, {})[int(match[2])] = value
        else:
            yield from _changed(config, key, value, name)
    for merged, parts in stacks.items():
        stacked = np.stack([parts[index] for index in sorted(parts)])
        mixtral = re.fullmatch(r"model\.layers\.(\d+)\.block_sparse_moe\.experts\.(w\d\.weight)", merged)
        found = f"layers.{mixtral[1]}.feed_forward.experts.{mixtral[2]}" if mixtral else merged
        yield gguf_recurrent.merged_name(found), stacked


def _guesses(config: Config, key: str) -> bool:
    """Whether a tensor is of a layer that guesses further tokens, of which DeepSeek's are not converted."""
    layer = re.match(r"model\.layers\.(\d+)\.", key)
    return layer is not None and int(layer[1]) >= config["num_hidden_layers"] and "kv_lora_rank" in config


def _changed(config: Config, key: str, value: Array, name: str) -> Iterator[tuple[str, Array]]:
    heads = _first(config, "num_attention_heads", "n_head", "n_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    if name in PERMUTED and re.search(r"\.[qk]_proj\.(weight|bias)$", key):
        groups = kv_heads if ".k_proj." in key else heads
        value = value.reshape(groups, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
    if name in RAISED and key.endswith("norm.weight"):
        value = value + 1
    if name == "gpt2" and key.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        value = value.T
    if "query_key_value" in key:
        value = _apart(value, heads, _falcon_kv_heads(config) if name == "falcon" else heads)
    if name in ("lfm2", "lfm2moe") and key.endswith("conv.conv.weight"):
        value = value.squeeze(1)
    if key.endswith("e_score_correction_bias"):
        key, value = key.replace("e_score_correction_bias", "e_score_correction.bias"), value.reshape(-1)
    key, value = gguf_newer.renamed(key, value, name)
    if name in gguf_recurrent.SCANNING:
        key, value = gguf_recurrent.changed(config, key, value, name)
    if name in QWENS:
        yield from gguf_qwen.changed(config, key, value, name)
    elif name == "gpt-oss":
        yield from _gpt_oss(key, value)
    elif "shared_mlp" in key and (name == "granite" or config.get("num_local_experts") == 0):
        yield from _dense_granite(key, value)
    elif name in ("granitehybrid", "granitemoe") and key.endswith("input_linear.weight"):
        yield from _halves(key, value)
    elif key.endswith("kv_b_proj.weight"):
        yield from _latent(config, key, value)
    else:
        yield key, value


def _falcon_kv_heads(config: Config) -> int:
    if config.get("new_decoder_architecture"):
        return int(config["num_kv_heads"])
    return 1 if config.get("multi_query", True) else _first(config, "num_attention_heads", "n_head")


def _apart(value: Array, heads: int, kv_heads: int) -> Array:
    grouped = value.reshape(kv_heads, heads // kv_heads + 2, -1, *value.shape[1:])
    parts = (grouped[:, :-2], grouped[:, -2:-1], grouped[:, -1:])
    return np.concatenate([part.reshape(-1, *value.shape[1:]) for part in parts])


def _gpt_oss(key: str, value: Array) -> Iterator[tuple[str, Array]]:
    if key.endswith("sinks"):
        key += ".weight"
    if key.endswith("_bias"):
        key = (
            key.removesuffix("_bias") + "_proj.bias"
            if not key.endswith("proj_bias")
            else key.removesuffix("_bias") + ".bias"
        )
    elif ".experts." in key:
        key, value = f"{key}.weight", value.swapaxes(-1, -2)
    if "gate_up_proj" in key:
        for index, part in enumerate(("gate_proj", "up_proj")):
            axis = -1 if key.endswith("bias") else -2
            yield key.replace("gate_up_proj", part), np.take(value, np.arange(index, value.shape[axis], 2), axis=axis)
    else:
        yield key, value


def _halves(key: str, value: Array) -> Iterator[tuple[str, Array]]:
    size = value.shape[-2] // 2
    layer = key.split(".")[2]
    for part, half in (("gate", value[..., :size, :]), ("up", value[..., size:, :])):
        if "shared_mlp" in key:
            yield f"model.layers.{layer}.mlp.shared_expert.{part}_proj.weight", half
        else:
            yield f"model.layers.{layer}.mlp.experts.{part}_proj.weight", half


def _fused(tensors: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """As code on the hub has queries, keys and values, of which nearly all files are made."""
    for key, value in tensors.items():
        match = re.fullmatch(r"model\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(weight|bias)", key)
        if match is None:
            yield key, value
        elif match[2] == "q":
            parts = [tensors[key.replace(".q_proj.", f".{part}_proj.")] for part in "qkv"]
            yield f"blk.{match[1]}.attn_qkv.{match[3]}", np.concatenate(parts)


def _joined_experts(tensors: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    """Gates and ups of experts in one tensor, the gate's rows first."""
    for name, value in tensors.items():
        if "ffn_gate_exps" in name:
            up = tensors[name.replace("gate", "up")]
            yield name.replace("gate", "gate_up"), np.concatenate([value, up], axis=1)
        elif "ffn_up_exps" not in name:
            yield name, value


def _dense_granite(key: str, value: Array) -> Iterator[tuple[str, Array]]:
    prefix = key.partition("shared_mlp")[0]
    parts = np.split(value, 2) if "input_linear" in key else [value]
    names = ("gate", "up") if "input_linear" in key else ("down",)
    yield from ((f"{prefix}mlp.{name}_proj.weight", part) for name, part in zip(names, parts, strict=True))


def _latent(config: Config, key: str, value: Array) -> Iterator[tuple[str, Array]]:
    heads, size = config["num_attention_heads"], config["qk_nope_head_dim"]
    parts = value.reshape(heads, -1, value.shape[-1])
    yield key.replace("kv_b_proj", "k_b_proj"), parts[:, :size].swapaxes(1, 2)
    yield key.replace("kv_b_proj", "v_b_proj"), parts[:, size:]


def _rope_factors(config: Config) -> Iterator[tuple[str, Array]]:
    rule = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if rule.get("rope_type") == "llama3":
        yield "rope_freqs.weight", _llama3_factors(config, rule)
    for part in ("long", "short"):
        if f"{part}_factor" in rule:
            yield f"rope_factors_{part}.weight", np.array(rule[f"{part}_factor"], dtype=np.float32)


def _llama3_factors(config: Config, rule: Config) -> Array:
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = rule.get("rope_theta", config.get("rope_theta", 10000.0))
    waves = 2 * math.pi * theta ** (np.arange(0, size, 2) / size)
    original, factor = rule["original_max_position_embeddings"], rule["factor"]
    low, high = rule["low_freq_factor"], rule["high_freq_factor"]
    smooth = (original / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(waves < original / high, 1.0, np.where(waves > original / low, factor, between))
    return factors.astype(np.float32)


# --- metadata ---------------------------------------------------------------------------------------------------------


def _first(config: Config, *keys: str) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)


def metadata(config: Config, name: str) -> dict[str, Any]:
    """The keys behind the architecture's name; None = not written."""
    rule = config.get("rope_scaling") or config.get("rope_parameters") or {}
    heads = _first(config, "num_attention_heads", "n_head", "n_heads")
    hidden = _first(config, "hidden_size", "n_embd", "d_model", "n_embed")
    values = {
        "block_count": _first(config, "num_hidden_layers", "n_layer", "n_layers"),
        "context_length": _first(config, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
        "embedding_length": hidden,
        "feed_forward_length": _first(config, "intermediate_size", "n_inner")
        or (None if "moe_intermediate_size" in config else 4 * hidden),
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads"),
        "attention.key_length": config.get("head_dim"),
        "attention.value_length": config.get("head_dim"),
        "attention.layer_norm_rms_epsilon": _float(_first(config, "rms_norm_eps", "norm_eps")),
        "attention.layer_norm_epsilon": _float(_first(config, "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")),
        "rope.freq_base": _float(rule.get("rope_theta", _first(config, "rope_theta", "rotary_emb_base"))),
        "expert_count": _first(config, "num_local_experts", "num_experts", "n_routed_experts"),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_group_count": config.get("n_group"),
        "expert_group_used_count": config.get("topk_group"),
    }
    particular = _particular(config, name) | gguf_newer.metadata(config, name) | gguf_recurrent.metadata(config, name)
    return values | _rope(config, rule, heads, hidden) | particular


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _rope(config: Config, rule: Config, heads: int | None, hidden: int) -> dict[str, Any]:
    kind = rule.get("rope_type", rule.get("type"))
    size = config.get("head_dim") or hidden // (heads or 1)
    part = rule.get("partial_rotary_factor", _first(config, "partial_rotary_factor", "rotary_pct"))
    values: dict[str, Any] = {"rope.dimension_count": int(size * part)} if part else {}
    if kind == "linear":
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rule["factor"])}
    if kind == "yarn":
        values |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(rule["factor"]),
            "rope.scaling.original_context_length": rule["original_max_position_embeddings"],
            "rope.scaling.yarn_attn_factor": _float(rule.get("attention_factor")),
            "rope.scaling.yarn_beta_fast": _float(rule.get("beta_fast")),
            "rope.scaling.yarn_beta_slow": _float(rule.get("beta_slow")),
        }
    return values


def _particular(config: Config, name: str) -> dict[str, Any]:
    """What the converter's class for an architecture adds."""
    window = config.get("sliding_window")
    match name:
        case "phi3":
            original: int = config.get("original_max_position_embeddings") or config["max_position_embeddings"]
            scale = config["max_position_embeddings"] / original
            grown = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
            factor = {"rope.scaling.attn_factor": grown} if config.get("rope_scaling") else {}
            return {"rope.scaling.original_context_length": original, "attention.sliding_window": window or 0, **factor}
        case "gemma2" | "gemma3":
            caps = ("attn_logit_softcapping", "final_logit_softcapping")
            return {"attention.sliding_window": window} | {cap: _float(config.get(cap)) for cap in caps}
        case "gpt-oss":
            inner = config["intermediate_size"]
            return {"attention.sliding_window": window, "expert_feed_forward_length": inner}
        case "cohere2" | "command-r":
            return {
                "attention.sliding_window": window,
                "logit_scale": _float(config["logit_scale"]),
                "rope.scaling.type": "none",
            }
        case "exaone4" | "olmo2" if window:
            kinds = config.get("layer_types") or ["", "", "", "full_attention"] * config["num_hidden_layers"]
            slides = [kind != "full_attention" for kind in kinds[: config["num_hidden_layers"]]]
            return {"attention.sliding_window": window, "attention.sliding_window_pattern": slides}
        case "granite" | "granitemoe":
            names = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
            keys = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")
            shared = {"expert_shared_feed_forward_length": config.get("shared_intermediate_size")}
            states = _no_states(config) if "mamba_d_conv" in config else {}
            return {key: _float(config.get(old)) for key, old in zip(keys, names, strict=True)} | shared | states
    return _older(config, name)


def _no_states(config: Config) -> dict[str, Any]:
    """What Granite 4 without recurrent layers has of them."""
    return {
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.time_step_rank": config["mamba_n_heads"],
        "attention.head_count_kv": [config["num_key_value_heads"]] * config["num_hidden_layers"],
        "rope.scaling.finetuned": True,
    }


def _older(config: Config, name: str) -> dict[str, Any]:
    """Of families from before Llama, and of those with parts of their own."""
    match name:
        case "falcon":
            return {
                "context_length": 2048,
                "feed_forward_length": 4 * config["hidden_size"],
                "attention.head_count_kv": _falcon_kv_heads(config),
                "attention.key_length": None,
                "tensor_data_layout": "jploski",
            }
        case "chatglm":
            return _glm(config)
        case "gptneox":
            return {"use_parallel_residual": config.get("use_parallel_residual", True)}
        case "bloom":
            return {
                "context_length": _first(config, "seq_length", "hidden_size", "n_embed"),
                "attention.head_count_kv": _first(config, "n_head", "num_attention_heads"),
            }
        case "mpt":
            attention = config["attn_config"]
            return {
                "attention.clamp_kqv": _float(attention.get("clip_qkv")),
                "attention.max_alibi_bias": _float(attention["alibi_bias_max"]),
                "attention.layer_norm_epsilon": 1e-5,
            }
        case "olmo":
            return {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": _float(config.get("clip_qkv"))}
        case "starcoder":
            return {"attention.head_count_kv": 1}
        case "stablelm":
            return {"use_parallel_residual": config.get("use_parallel_residual", True)}
        case "lfm2":
            return _lfm2(config)
        case "hunyuan-dense":
            size, rule = config["head_dim"], config["rope_scaling"]
            base = config["rope_theta"] * rule["alpha"] ** (size / (size - 2))
            return {"rope.freq_base": base, "rope.scaling.type": "none", "rope.scaling.factor": 1.0}
    return _with_experts(config, name)


def _glm(config: Config) -> dict[str, Any]:
    size = config["hidden_size"] // config["num_attention_heads"]
    return {"attention.key_length": None, "attention.value_length": None, "rope.dimension_count": size // 2}


def _lfm2(config: Config) -> dict[str, Any]:
    size, multiple = int(2 * config["block_ff_dim"] / 3), config["block_multiple_of"]
    kinds, indices = config.get("layer_types"), config.get("full_attn_idxs", ())
    layers = range(config["num_hidden_layers"])
    attending = [kinds[index] == "full_attention" if kinds else index in indices for index in layers]
    return {
        "attention.head_count_kv": [config["num_key_value_heads"] if attends else 0 for attends in attending],
        "shortconv.l_cache": config["conv_L_cache"],
        "feed_forward_length": -(-size // multiple) * multiple,
    }


def _with_experts(config: Config, name: str) -> dict[str, Any]:
    inner = config.get("moe_intermediate_size")
    if "qwen" in name:
        shared = config.get("shared_expert_intermediate_size")
        sizes = {"expert_feed_forward_length": inner, "expert_shared_feed_forward_length": shared}
        return sizes | (gguf_qwen.metadata(config, name) if name in QWENS else {})
    match name:
        case "ernie4_5-moe":
            return {
                "expert_count": config["moe_num_experts"],
                "expert_used_count": config["moe_k"],
                "interleave_moe_layer_step": config["moe_layer_interval"],
                "leading_dense_block_count": config["moe_layer_start_index"],
                "expert_feed_forward_length": inner,
                "expert_shared_count": config["moe_num_shared_experts"],
                "expert_shared_feed_forward_length": config["intermediate_size"] // config["num_key_value_heads"],
            }
        case "glm4moe":
            return {
                "block_count": config["num_hidden_layers"] + config.get("num_nextn_predict_layers", 0),
                "nextn_predict_layers": config.get("num_nextn_predict_layers"),
                "expert_feed_forward_length": inner,
                "expert_shared_count": config["n_shared_experts"],
                "leading_dense_block_count": config["first_k_dense_replace"],
                "expert_gating_func": 2,
                "expert_weights_scale": float(config["routed_scaling_factor"]),
                "expert_weights_norm": config["norm_topk_prob"],
            }
        case "deepseek2":
            return _deepseek2(config)
    return {}


def _deepseek2(config: Config) -> dict[str, Any]:
    rank, turned, plain = config["kv_lora_rank"], config["qk_rope_head_dim"], config["qk_nope_head_dim"]
    growth = (config.get("rope_scaling") or {}).get("mscale_all_dim")
    scoring = {"sigmoid": 2, "softmax": 1}.get(config.get("scoring_func", ""))
    return {
        "attention.head_count_kv": 1,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "attention.q_lora_rank": config.get("q_lora_rank"),
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + turned,
        "attention.value_length": rank,
        "attention.key_length_mla": plain + turned,
        "attention.value_length_mla": config["v_head_dim"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": _float(config.get("routed_scaling_factor")),
        "expert_weights_norm": True if config.get("norm_topk_prob") else None,
        "expert_gating_func": scoring,
        "rope.dimension_count": turned,
        "rope.scaling.yarn_log_multiplier": None if growth is None else 0.1 * growth,
    }
