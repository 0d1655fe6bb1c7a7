"""Writes the model that speed is measured on: a real shape with random weights, in the forms the peers load.

Does: a Hugging Face directory (config, safetensors, byte-level BPE tokenizer) and GGUF files of the same weights, but for
Q4_K_M, which is of a somewhat wider model. Does not: anything clever with the weights; speed does not depend on them. Run
once per machine:

    python -m benchmarks.serving.model DIRECTORY [--gguf]        (--gguf needs the `gguf` package)
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dragoman.models.storage.groups import INT4_GROUP_SIZE, INT8_GROUP_SIZE

Array = np.ndarray[Any, Any]

VOCAB_SIZE = 32_000
EOS = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class BenchShape:
    """A Llama shape; the default has 386 million parameters. Another `vocab_size` needs another tokenizer."""

    hidden_size: int = 896
    num_layers: int = 24
    num_heads: int = 14
    num_kv_heads: int = 2
    head_size: int = 64
    intermediate_size: int = 4864
    max_position: int = 16_384
    vocab_size: int = VOCAB_SIZE
    is_tied: bool = False


FILE_TYPES = {"Q8_0": 7, "Q4_0": 2, "Q4_K_M": 15}
"""The files that are written, and the numbers in them that say so."""

FLOAT_BYTES = {"bf16": 2, "f16": 2, "f32": 4}

WIDE = BenchShape(hidden_size=1024, num_heads=16, num_kv_heads=4, intermediate_size=4096)
"""What Q4_K_M has: its blocks of 256 values do not divide the other's columns. 431 million parameters."""


def byte_alphabet() -> list[str]:
    """The 256 characters that byte-level BPE writes bytes as."""
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def bpe_tables() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary of exactly VOCAB_SIZE: end-of-sequence, single bytes, merged pairs and triples of ASCII characters.

    Nearly every token is whole text by itself, so that a server that streams text sends one piece per token, whatever the
    random weights choose. Triples hold no small letters: a text of small letters is two letters to a token.
    """
    alphabet = byte_alphabet()
    printable = [chr(code) for code in range(ord("!"), ord("~") + 1)]
    others = [character for character in printable if not character.islower()]
    vocabulary = {EOS: 0} | {character: i + 1 for i, character in enumerate(alphabet)}
    pairs = itertools.product(printable, printable)
    triples = ((first + second, third) for first, second, third in itertools.product(others, repeat=3))
    merges = list(itertools.islice(itertools.chain(pairs, triples), VOCAB_SIZE - len(vocabulary)))
    for first, second in merges:
        vocabulary[first + second] = len(vocabulary)
    return vocabulary, merges


def write_model(directory: Path, shape: BenchShape) -> None:
    """Write the Hugging Face directory."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(directory)
    write_weights(directory, shape)


def write_weights(directory: Path, shape: BenchShape) -> None:
    """Write config.json and model.safetensors into a directory that is there."""
    (directory / "config.json").write_text(json.dumps(model_config(shape), indent=2))
    save_file(random_weights(shape), directory / "model.safetensors", metadata={"format": "pt"})


def model_config(shape: BenchShape) -> dict[str, Any]:
    """What config.json says."""
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
        "tie_word_embeddings": shape.is_tied,
        "bos_token_id": None,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
    }


def _write_tokenizer(directory: Path) -> None:
    vocabulary, merges = bpe_tables()
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    tokenizer.save(str(directory / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(facts, indent=2))


def weight_shapes(shape: BenchShape) -> dict[str, tuple[int, ...]]:
    """Every tensor's name and shape."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    wide, narrow = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not shape.is_tied:
        shapes["lm_head.weight"] = (shape.vocab_size, hidden)
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.self_attn.q_proj.weight": (wide, hidden),
            f"{prefix}.self_attn.k_proj.weight": (narrow, hidden),
            f"{prefix}.self_attn.v_proj.weight": (narrow, hidden),
            f"{prefix}.self_attn.o_proj.weight": (hidden, wide),
            f"{prefix}.mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}.mlp.up_proj.weight": (inner, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, inner),
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
        }
    return shapes


def stored_bytes(name: str, size: tuple[int, int], dtype: str) -> int:
    """What our kernels read of that matrix for a token, with scales and zero points.

    Source: the layouts of `dragoman.models.storage`. With int4 the head, tables that are one, and values have 8 bits.
    """
    rows, columns = size
    if dtype in FLOAT_BYTES:
        return rows * columns * FLOAT_BYTES[dtype]
    is_careful = "embed" in name or "lm_head" in name or name.endswith("v_proj.weight")
    if dtype == "int4" and not is_careful and columns % INT4_GROUP_SIZE == 0:
        return rows * columns // 2 + rows * columns // INT4_GROUP_SIZE * 3
    return rows * columns + rows * -(-columns // INT8_GROUP_SIZE) * 3


def random_weights(shape: BenchShape) -> dict[str, Array]:
    """Normally distributed matrices in bfloat16, norms of one."""
    stream = np.random.default_rng(0)
    weights: dict[str, Array] = {}
    for name, dimensions in weight_shapes(shape).items():
        if len(dimensions) == 1:
            weights[name] = np.ones(dimensions, dtype=ml_dtypes.bfloat16)
        else:
            values = stream.standard_normal(dimensions, dtype=np.float32) * (0.5 / dimensions[1] ** 0.5)
            weights[name] = values.astype(ml_dtypes.bfloat16)
    return weights


def write_gguf(
    directory: Path,
    shape: BenchShape,
    quantization: str,
    weights: Mapping[str, Array] | None = None,
    rope_theta: float = 10000.0,
) -> Path:
    """Write the same weights as GGUF, `quantization` of FILE_TYPES; returns the file. `weights`: others, in GGUF's order."""
    import gguf

    from tests.support.gguf_blocks import quantise

    target = directory / f"model-{quantization}.gguf"
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_context_length(shape.max_position)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(rope_theta)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_file_type(FILE_TYPES[quantization])
    vocabulary, merges = bpe_tables()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(vocabulary, key=lambda token: vocabulary[token]))
    writer.add_token_types([3] + [1] * (VOCAB_SIZE - 1))
    writer.add_token_merges([f"{first} {second}" for first, second in merges])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(False)
    for name, values in (weights or random_weights(shape)).items():
        full = values.astype(np.float32)
        if full.ndim == 1:
            writer.add_tensor(_gguf_name(name), full)
        else:
            kind = block_type(name, quantization, shape.num_layers)
            writer.add_tensor(_gguf_name(name), quantise(full, kind), raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def block_type(name: str, quantization: str, num_layers: int) -> str:
    """The type of that matrix in a file that is called so.

    In Q4_K_M the head has six bits, and in half of the layers so do values and what goes down: in the first and the last
    eighth, and in every third one between. Source: llama.cpp, src/llama-quant.cpp.
    """
    if quantization != "Q4_K_M":
        return quantization
    if name.startswith("lm_head"):
        return "Q6_K"
    if not name.endswith(("v_proj.weight", "down_proj.weight")):
        return "Q4_K"
    layer, eighth = int(name.split(".")[2]), num_layers // 8
    is_finer = layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2
    return "Q6_K" if is_finer else "Q4_K"


def _gguf_name(name: str) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "lm_head.weight": "output.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in fixed:
        return fixed[name]
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{parts[rest.removesuffix('.weight')]}.weight"


def main() -> None:
    """Write what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--gguf", action="store_true", help=f"also write GGUF files: {', '.join(FILE_TYPES)}")
    parser.add_argument("--layers", type=int, default=BenchShape().num_layers, help="fewer, where a front is measured")
    arguments = parser.parse_args()
    shape = BenchShape(num_layers=arguments.layers)
    if not (arguments.directory / "model.safetensors").exists():
        write_model(arguments.directory, shape)
    if arguments.gguf:
        for quantization in FILE_TYPES:
            fitting = replace(WIDE, num_layers=arguments.layers) if quantization == "Q4_K_M" else shape
            write_gguf(arguments.directory, fitting, quantization)


if __name__ == "__main__":
    main()
