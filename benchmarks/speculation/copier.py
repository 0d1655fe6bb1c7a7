"""Writes a model that copies: a real shape whose first two layers are built by hand, the rest random and nearly mute.

Does: a Hugging Face directory whose model continues any passage of distinct tokens that it has seen before, exactly, and
changes what its mind says is to be changed (see `mind`); on request the same weights as GGUF. Does not: know language,
or write a tokenizer. Used by `speculation`, which needs a model of real size that repeats its prompt.

How: token t has a code of 64 signs. Layer 0 has one head that looks one position back (its query is its key's rotation
turned by one position, in the quickly turning pairs) and notes the code it finds there. Layer 1 has one head that looks for
the positions whose note is the code of the current token (in the pairs that hardly turn), the one whose token has the
highest level first, and reads there what is to be said; if there is none it finds the prompt's first token, which says
nothing. Then the current token's own follower, which the residual stream carries more softly, is what remains. The output
matrix compares with all codes.
Source of the mechanism: Olsson et al. 2022, "In-context learning and induction heads", arXiv:2209.11895.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from benchmarks.serving.model import VOCAB_SIZE, BenchShape, model_config, random_weights, write_gguf
from benchmarks.speculation.mind import BEGIN, NUM_LEVELS, Mind

Array = np.ndarray[Any, Any]

ROPE_THETA = 1e8  # pair i of 32 turns by 10^(-i/4) per position
NUM_SIGNS = 64
NUM_MATCHED = 30  # signs that layer 1 compares: two for each of the pairs that hardly turn, but for the last
# channels of the residual stream; the weights' scales hold for groups of them
CODE, NOTE, ONE, LEVEL, FIRST, PAD, FOUND, SAID, FOLLOWER = 0, 128, 200, 201, 202, 203, 256, 320, 384
SOFTLY = 0.3  # the follower beside what was found
MATCH = 8.0  # what an equal sign adds to a score, and another one takes away
PER_LEVEL = 2.5  # what a level adds
MUTE = 1e-3  # what is left of the random layers' outputs


def write_copier(directory: Path, shape: BenchShape, mind: Mind) -> None:
    """Write config.json and model.safetensors. Raises: ValueError if the shape has no room for the mechanism."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = copier_weights(shape, mind)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config = {**model_config(shape), "rope_theta": ROPE_THETA, "head_dim": shape.head_size}
    (directory / "config.json").write_text(json.dumps(config, indent=2))


def copier_weights(shape: BenchShape, mind: Mind) -> dict[str, Array]:
    """Every tensor by its name, in bfloat16. Raises: ValueError if the shape has no room for the mechanism."""
    least = FOLLOWER + NUM_SIGNS
    if shape.hidden_size < least or shape.head_size != 64 or shape.num_layers < 2 or shape.vocab_size != VOCAB_SIZE:
        raise ValueError(
            f"{shape}: hidden_size must be at least {least}, head_size 64, num_layers at least 2, vocab_size {VOCAB_SIZE}"
        )
    weights = random_weights(shape)
    for name, values in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = (values.astype(np.float32) * MUTE).astype(ml_dtypes.bfloat16)
    built = _heads(shape) | _tokens(shape, mind)
    return weights | {name: values.astype(ml_dtypes.bfloat16) for name, values in built.items()}


def write_copier_gguf(directory: Path, shape: BenchShape, mind: Mind) -> Path:
    """Write the same weights as GGUF in Q8_0; returns the file. Needs the `gguf` package."""
    weights = copier_weights(shape, mind)
    for name, values in weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # its rotary pairs stand side by side
            heads = values.reshape(-1, 2, shape.head_size // 2, shape.hidden_size)
            weights[name] = heads.swapaxes(1, 2).reshape(values.shape)
    return write_gguf(directory, shape, "Q8_0", weights, ROPE_THETA)


def token_codes() -> Array:
    """The codes, [V, 64]: any two differ in 6 of the first 30 signs and in 16 of all.

    Twice a word of the Reed-Muller code of order 2 and length 32, whose words differ in 8 places.
    """
    points = (np.arange(32)[:, None] >> np.arange(5)) & 1
    products = [points[:, i] * points[:, j] for i in range(5) for j in range(i)]
    basis = np.stack([*products, *points.T])  # [15, 32]

    def words(numbers: Array) -> Array:
        found: Array = ((numbers[:, None] >> np.arange(15)) & 1) @ basis % 2
        return found

    numbers = np.arange(VOCAB_SIZE)
    return 1.0 - 2.0 * np.concatenate([words(numbers), words(numbers * 12_345 % 2**15)], axis=1)


def _tokens(shape: BenchShape, mind: Mind) -> dict[str, Array]:
    """The embedding and the output matrix. Shapes: [V, hidden]."""
    codes = token_codes()
    embedding, output = np.zeros((2, VOCAB_SIZE, shape.hidden_size))
    embedding[:, CODE : CODE + NUM_SIGNS] = codes
    embedding[:, SAID : SAID + NUM_SIGNS] = codes[mind.said]
    embedding[:, FOLLOWER : FOLLOWER + NUM_SIGNS] = SOFTLY * codes[mind.follower]
    embedding[:, ONE] = 1.0
    embedding[:, LEVEL] = mind.level / NUM_LEVELS
    # The first token has neither code nor anything to say; it is as long as the others.
    for channel in (CODE, SAID):
        embedding[BEGIN, channel : channel + NUM_SIGNS] = 0.0
    embedding[BEGIN, FIRST] = 1.0
    embedding[BEGIN, PAD] = (2 * NUM_SIGNS) ** 0.5
    output[:, FOUND : FOUND + NUM_SIGNS] = codes / 4
    output[:, FOLLOWER : FOLLOWER + NUM_SIGNS] = codes / 4
    return {"model.embed_tokens.weight": embedding, "lm_head.weight": output}


def _heads(shape: BenchShape) -> dict[str, Array]:
    """The attention of layers 0 and 1; only head 0 does anything."""
    hidden, half = shape.hidden_size, shape.head_size // 2
    wide, narrow = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    sizes = {"q": (wide, hidden), "k": (narrow, hidden), "v": (narrow, hidden), "o": (hidden, wide)}
    back = {name: np.zeros(size) for name, size in sizes.items()}
    find = {name: np.zeros(size) for name, size in sizes.items()}
    # Layer 0. The norm divides by the root of the mean square: code, one, what is said, follower.
    square = NUM_SIGNS * (2 + SOFTLY**2) + 1
    scale = np.sqrt(square / hidden)
    strength = 17.0 * scale  # one position beside the right one scores 25 less
    for pair in range(8):
        angle = ROPE_THETA ** (-pair / half)
        back["q"][[pair, pair + half], ONE] = strength * np.cos(angle), -strength * np.sin(angle)
        back["k"][pair, ONE] = strength
    signs = np.arange(NUM_MATCHED)
    back["v"][signs, CODE + signs] = scale
    back["o"][NOTE + signs, signs] = 1.0
    # Layer 1. The note has joined. A score is divided by the root of the head's size.
    scale = np.sqrt((square + NUM_MATCHED) / hidden)
    root = shape.head_size**0.5
    slow = np.concatenate([np.arange(half // 2, half - 1), np.arange(half // 2, half - 1) + half])
    find["q"][slow, CODE + signs] = np.sqrt(MATCH * root) * scale
    find["k"][slow, NOTE + signs] = np.sqrt(MATCH * root) * scale
    # In the slowest pair: the levels, and a score for the first token between a match and the next best: 12 signs less.
    begin = (NUM_MATCHED - 6) * MATCH + PER_LEVEL * NUM_LEVELS / 2
    first_scale = np.sqrt(square / hidden)  # it has noted nothing
    find["q"][half - 1, ONE] = NUM_SIGNS * scale
    find["k"][half - 1, LEVEL] = PER_LEVEL * NUM_LEVELS * root / NUM_SIGNS * scale
    find["k"][half - 1, FIRST] = begin * root / NUM_SIGNS * first_scale
    every = np.arange(NUM_SIGNS)
    find["v"][every, SAID + every] = scale
    find["o"][FOUND + every, every] = 1.0
    return {
        f"model.layers.{layer}.self_attn.{name}_proj.weight": values
        for layer, matrices in enumerate((back, find))
        for name, values in matrices.items()
    }
