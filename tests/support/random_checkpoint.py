"""Writes small Llama checkpoints with random weights, the same bytes for the same seed on every machine.

Used by the parity tests and by scripts/record_reference_logits.py, which must see identical weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class RandomShape:
    """A Llama shape to fill with random weights."""

    name: str
    seed: int
    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 32
    intermediate_size: int = 256
    vocab_size: int = 320
    tied: bool = False
    bias: bool = False
    bf16: bool = False
    num_shards: int = 1
    max_position: int = 512
    head_std: float = 0.08  # larger = a more decided model
    extra: dict[str, Any] = field(default_factory=dict)


UNTIED = RandomShape("untied", seed=1)
TIED = RandomShape(
    "tied",
    seed=2,
    hidden_size=192,
    num_layers=3,
    num_heads=6,
    num_kv_heads=3,
    head_size=64,
    intermediate_size=384,
    tied=True,
    bias=True,
    bf16=True,
    num_shards=2,
    extra={
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
)
SHAPES = (UNTIED, TIED)
BEAMS = RandomShape("beams", seed=3, head_std=0.3)


def write_checkpoint(shape: RandomShape, directory: Path) -> Path:
    """Write config.json and the weights of `shape`; returns the model directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(_config(shape), indent=2))
    weights = _weights(shape)
    if shape.num_shards == 1:
        save_file(weights, directory / "model.safetensors")
        return directory
    names = sorted(weights)
    weight_map: dict[str, str] = {}
    for shard in range(shape.num_shards):
        file_name = f"model-{shard + 1:05}-of-{shape.num_shards:05}.safetensors"
        part = names[shard :: shape.num_shards]
        save_file({name: weights[name] for name in part}, directory / file_name)
        weight_map.update(dict.fromkeys(part, file_name))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def _config(shape: RandomShape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": shape.max_position,
        "tie_word_embeddings": shape.tied,
        "attention_bias": shape.bias,
        "mlp_bias": shape.bias,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16" if shape.bf16 else "float32",
        **shape.extra,
    }


def _weights(shape: RandomShape) -> dict[str, Array]:
    stream = np.random.RandomState(shape.seed)  # the legacy stream is frozen for ever, unlike default_rng's
    dtype = ml_dtypes.bfloat16 if shape.bf16 else np.float32
    hidden, inner = shape.hidden_size, shape.intermediate_size
    wide, narrow = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    weights: dict[str, Array] = {}

    def normal(name: str, *dimensions: int, std: float = 0.08) -> None:
        weights[name] = (stream.standard_normal(dimensions) * std).astype(np.float32).astype(dtype)

    normal("model.embed_tokens.weight", shape.vocab_size, hidden, std=0.5)
    for layer in range(shape.num_layers):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        matrices = [
            (f"{attention}.q_proj", wide, hidden),
            (f"{attention}.k_proj", narrow, hidden),
            (f"{attention}.v_proj", narrow, hidden),
            (f"{attention}.o_proj", hidden, wide),
            (f"{mlp}.gate_proj", inner, hidden),
            (f"{mlp}.up_proj", inner, hidden),
            (f"{mlp}.down_proj", hidden, inner),
        ]
        for name, rows, columns in matrices:
            normal(f"{name}.weight", rows, columns)
            if shape.bias:
                normal(f"{name}.bias", rows)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            name = f"model.layers.{layer}.{norm}.weight"
            weights[name] = (1.0 + 0.1 * stream.standard_normal(hidden)).astype(np.float32).astype(dtype)
    weights["model.norm.weight"] = (1.0 + 0.1 * stream.standard_normal(hidden)).astype(np.float32).astype(dtype)
    if not shape.tied:
        normal("lm_head.weight", shape.vocab_size, hidden, std=shape.head_std)
    return weights
