"""Writes a model that copies: a real shape whose first two layers are built by hand, the rest random and nearly mute.

Does: a Hugging Face directory without a tokenizer, whose model continues any passage of distinct tokens that it has seen
before, exactly. Does not: know language. Used by `speculation`, which needs a model of real size that repeats its prompt.

How: token t has a code of 64 signs. Layer 0 has one head that looks one position back (its query is its key's rotation
turned by one position, in the quickly turning pairs) and notes the code it finds there. Layer 1 has one head that looks for
the position whose note is the code of the current token (in the pairs that hardly turn), and reads the code of the token
that stands there: the one that followed last time. The output matrix compares with all codes.
Source of the mechanism: Olsson et al. 2022, "In-context learning and induction heads", arXiv:2209.11895.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from benchmarks.serving.model import VOCAB_SIZE, BenchShape, random_weights

Array = np.ndarray[Any, Any]

ROPE_THETA = 1e8  # pair i of 32 turns by 10^(-i/4) per position
NUM_SIGNS = 64
NUM_MATCHED = 32  # signs that layer 1 can compare: two for each of the pairs that hardly turn
# channels of the residual stream, each part in a quantisation group of its own
CODE, NOTE, ONE, FOUND = 0, 128, 200, 256
MUTE = 1e-3  # what is left of the random layers' outputs


def write_copier(directory: Path, shape: BenchShape) -> None:
    """Write config.json and model.safetensors. Raises: ValueError if the shape has no room for the mechanism."""
    if shape.hidden_size < FOUND + NUM_SIGNS or shape.head_size != 64 or shape.num_layers < 2:
        raise ValueError(f"hidden_size must be at least {FOUND + NUM_SIGNS}, head_size 64, num_layers at least 2")
    directory.mkdir(parents=True, exist_ok=True)
    weights = random_weights(shape)
    for name, values in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = (values.astype(np.float32) * MUTE).astype(ml_dtypes.bfloat16)
    built = _heads(shape) | _codes(shape)
    weights |= {name: values.astype(ml_dtypes.bfloat16) for name, values in built.items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(_config(shape), indent=2))


def _config(shape: BenchShape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": ROPE_THETA,
        "max_position_embeddings": shape.max_position,
        "tie_word_embeddings": False,
        "eos_token_id": 0,
    }


def _codes(shape: BenchShape) -> dict[str, Array]:
    """The embedding (code and the constant one) and the output matrix (the codes again). Shapes: [V, hidden]."""
    signs = np.random.default_rng(1).choice([-1.0, 1.0], size=(VOCAB_SIZE, NUM_SIGNS))
    embedding, output = np.zeros((2, VOCAB_SIZE, shape.hidden_size))
    embedding[:, CODE : CODE + NUM_SIGNS] = signs
    embedding[:, ONE] = 1.0
    output[:, FOUND : FOUND + NUM_SIGNS] = signs / 4
    return {"model.embed_tokens.weight": embedding, "lm_head.weight": output}


def _heads(shape: BenchShape) -> dict[str, Array]:
    """The attention of layers 0 and 1; only head 0 does anything."""
    hidden, half = shape.hidden_size, shape.head_size // 2
    wide, narrow = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    sizes = {"q": (wide, hidden), "k": (narrow, hidden), "v": (narrow, hidden), "o": (hidden, wide)}
    back = {name: np.zeros(size) for name, size in sizes.items()}
    find = {name: np.zeros(size) for name, size in sizes.items()}
    # Layer 0. The norm divides by the root of the mean square: 64 signs and the one.
    scale = np.sqrt((NUM_SIGNS + 1) / hidden)
    strength = 17.0 * scale  # one position beside the right one scores 25 less
    for pair in range(8):
        angle = ROPE_THETA ** (-pair / half)
        back["q"][[pair, pair + half], ONE] = strength * np.cos(angle), -strength * np.sin(angle)
        back["k"][pair, ONE] = strength
    signs = np.arange(NUM_MATCHED)
    back["v"][signs, CODE + signs] = scale
    back["o"][NOTE + signs, signs] = 1.0
    # Layer 1. The note has joined.
    scale = np.sqrt((NUM_SIGNS + 1 + NUM_MATCHED) / hidden)
    slow = np.concatenate([np.arange(half // 2, half), np.arange(half // 2, half) + half])
    find["q"][slow, CODE + signs] = 3.5 * scale  # another token's code scores at least 20 less
    find["k"][slow, NOTE + signs] = 3.5 * scale
    every = np.arange(NUM_SIGNS)
    find["v"][every, CODE + every] = scale
    find["o"][FOUND + every, every] = 1.0
    return {
        f"model.layers.{layer}.self_attn.{name}_proj.weight": values
        for layer, matrices in enumerate((back, find))
        for name, values in matrices.items()
    }
