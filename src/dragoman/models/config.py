"""Reads a Hugging Face config.json into the facts a graph builder needs.

Does: parse and check config.json of the Llama family. Does not: touch weights or the runtime.
Called by models.loader, once per start.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ModelError(ValueError):
    """The model directory cannot be served; the message says which file and key, and what is supported."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: base `theta`, and the checkpoint's scaling rule, if any."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Shape of a Llama-family decoder. `max_position` is the context length in tokens."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    rms_norm_eps: float
    max_position: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    rope: RopeConfig


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises: ModelError if it is missing or is not an object."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist; a model directory needs {path.name}") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise ModelError(f"{path} holds a {type(loaded).__name__}, expected a JSON object")
    return loaded


def parse_llama_config(raw: dict[str, Any]) -> LlamaConfig:
    """The config of a Llama-family checkpoint.

    Raises: ModelError naming the key that is missing, inconsistent or not supported.
    """
    _refuse_unsupported(raw)
    hidden_size, num_heads = _positive(raw, "hidden_size"), _positive(raw, "num_attention_heads")
    num_kv_heads = int(raw.get("num_key_value_heads") or num_heads)
    if num_heads % num_kv_heads:
        raise ModelError(f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}")
    head_size = int(raw.get("head_dim") or hidden_size // num_heads)
    if head_size % 2:
        raise ModelError(f"head_dim {head_size} is odd; rotary embedding needs an even head size")
    max_position = _positive(raw, "max_position_embeddings")
    return LlamaConfig(
        architecture=str((raw.get("architectures") or ["LlamaForCausalLM"])[0]),
        vocab_size=_positive(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_positive(raw, "intermediate_size"),
        num_layers=_positive(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_position=max_position,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        rope=_parse_rope(raw, max_position),
    )


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(f"hidden_act {raw['hidden_act']!r} is not supported; the Llama family uses 'silu'")
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise ModelError(f"quantization_config quant_method {method!r} is not supported; use an unquantised checkpoint")


def _positive(raw: dict[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"config.json {key} is {value!r}, expected an integer of at least 1")
    return value


def _parse_rope(raw: dict[str, Any], max_position: int) -> RopeConfig:
    # transformers 5 moved rope_theta and rope_scaling into one object, rope_parameters
    rope = dict(raw.get("rope_scaling") or {}) | dict(raw.get("rope_parameters") or {})
    theta = float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    if kind not in ("default", "linear", "llama3"):
        raise ModelError(f"rope_scaling type {kind!r} is not supported; supported: default, linear, llama3")
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=float(rope.get("factor", 1.0)),
        low_freq_factor=float(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=float(rope.get("high_freq_factor", 4.0)),
        original_max_position=int(rope.get("original_max_position_embeddings") or max_position),
    )


def inverse_frequencies(config: LlamaConfig) -> list[float]:
    """Rotary inverse frequencies, one per pair of dimensions (head_size / 2 of them), scaling applied.

    Source: RoFormer (arXiv:2104.09864); `llama3`: the smooth interpolation of the Llama 3.1 release.
    """
    rope, head_size = config.rope, config.head_size
    plain = [rope.theta ** (-2.0 * i / head_size) for i in range(head_size // 2)]
    if rope.kind == "linear":
        return [frequency / rope.factor for frequency in plain]
    if rope.kind == "llama3":
        return [_llama3_frequency(frequency, rope) for frequency in plain]
    return plain


def _llama3_frequency(frequency: float, rope: RopeConfig) -> float:
    wavelength = 2.0 * math.pi / frequency
    # [0, original/high) kept · [original/high, original/low] blended · (original/low, inf) divided by factor
    if wavelength < rope.original_max_position / rope.high_freq_factor:
        return frequency
    if wavelength > rope.original_max_position / rope.low_freq_factor:
        return frequency / rope.factor
    ratio = rope.original_max_position / wavelength
    smooth = (ratio - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return (1.0 - smooth) * frequency / rope.factor + smooth * frequency
