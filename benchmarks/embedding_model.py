"""Writes a model of BERT's kind with random weights in a real size, for benchmarks of embedding.

Does: a directory as sentence-transformers writes it (CLS, length 1), and GGUF files of the same weights. Does not: measure.
Weights are drawn once per shape and are the same in all files.

    python -m benchmarks.embedding_model DIRECTORY [--shape bge-base]
"""

from __future__ import annotations

import argparse
import json
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

Array = np.ndarray[Any, Any]

VOCAB_SIZE = 30_522
MAX_POSITION = 512
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
GGUF_KINDS = ("Q8_0", "F16")
MODULES = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """The sizes of an encoder."""

    hidden_size: int
    num_layers: int
    num_heads: int

    @property
    def inner_size(self) -> int:
        """Of the MLPs."""
        return 4 * self.hidden_size


SHAPES = {
    "tiny": EncoderShape(64, 2, 2),  # tests of the benchmark itself
    "bge-small": EncoderShape(384, 12, 12),
    "bge-base": EncoderShape(768, 12, 12),
}


def vocabulary() -> list[str]:
    """Special tokens, letters, and made-up words of four letters that texts are made of."""
    letters = string.ascii_lowercase
    pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *string.digits]
    stream = np.random.RandomState(0)
    words: dict[str, None] = {}
    while len(pieces) + len(words) < VOCAB_SIZE:
        words["".join(letters[index] for index in stream.randint(0, 26, size=4))] = None
    return [*pieces, *words]


def texts(lengths: list[int], seed: int = 0) -> list[str]:
    """A text of so many words, each of which is a token, for each of the lengths."""
    words = vocabulary()[len(SPECIAL) + 62 :]
    stream = np.random.RandomState(seed)
    return [" ".join(words[index] for index in stream.randint(0, len(words), size=length)) for length in lengths]


def write_model(directory: Path, shape: EncoderShape) -> Path:
    """Write the directory, and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(random_weights(shape), directory / "model.safetensors", metadata={"format": "pt"})
    files: dict[str, Any] = {
        "config.json": {
            "architectures": ["BertModel"], "model_type": "bert", "vocab_size": VOCAB_SIZE, "hidden_act": "gelu",
            "hidden_size": shape.hidden_size, "num_hidden_layers": shape.num_layers, "num_attention_heads": shape.num_heads,
            "intermediate_size": shape.inner_size, "max_position_embeddings": MAX_POSITION, "type_vocab_size": 2,
            "layer_norm_eps": 1e-12, "pad_token_id": 0,
        },
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(MODULES)
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": shape.hidden_size, "pooling_mode_cls_token": True},
        "sentence_bert_config.json": {"max_seq_length": MAX_POSITION, "do_lower_case": False},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_POSITION, "pad_token": "[PAD]",
            "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
        },
    }  # fmt: skip
    for name, content in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(json.dumps(content), encoding="utf-8")
    _tokenizer().save(str(directory / "tokenizer.json"))
    return directory


def random_weights(shape: EncoderShape) -> dict[str, Array]:
    """The weights by the names that BERT's checkpoints have for them."""
    stream = np.random.default_rng(0)
    size, inner = shape.hidden_size, shape.inner_size

    def matrix(*sizes: int) -> Array:
        return (0.03 * stream.standard_normal(sizes, dtype=np.float32)).astype(np.float32)

    def norm(prefix: str) -> dict[str, Array]:
        return {f"{prefix}.weight": 1 + matrix(size), f"{prefix}.bias": matrix(size)}

    found = {
        "embeddings.word_embeddings.weight": matrix(VOCAB_SIZE, size),
        "embeddings.position_embeddings.weight": matrix(MAX_POSITION, size),
        "embeddings.token_type_embeddings.weight": matrix(2, size),
        **norm("embeddings.LayerNorm"),
    }
    for layer in range(shape.num_layers):
        prefix = f"encoder.layer.{layer}"
        sizes = {
            "attention.self.query": (size, size), "attention.self.key": (size, size), "attention.self.value": (size, size),
            "attention.output.dense": (size, size), "intermediate.dense": (inner, size), "output.dense": (size, inner),
        }  # fmt: skip
        for name, (num_rows, num_columns) in sizes.items():
            found[f"{prefix}.{name}.weight"] = matrix(num_rows, num_columns)
            found[f"{prefix}.{name}.bias"] = matrix(num_rows)
        found |= norm(f"{prefix}.attention.output.LayerNorm") | norm(f"{prefix}.output.LayerNorm")
    return found


def write_gguf(directory: Path, shape: EncoderShape, kind: str) -> Path:
    """Write the same weights as GGUF, `kind` Q8_0 or F16; returns the file."""
    import gguf

    quantised = gguf.GGMLQuantizationType[kind]
    target = directory / f"model-{kind}.gguf"
    writer = gguf.GGUFWriter(target, "bert")
    writer.add_context_length(MAX_POSITION)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.inner_size)
    writer.add_head_count(shape.num_heads)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.CLS)
    writer.add_file_type({"Q8_0": 7, "F16": 1}[kind])
    words = vocabulary()
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([_phantom(word) for word in words])
    writer.add_token_types([3] * len(SPECIAL) + [1] * (VOCAB_SIZE - len(SPECIAL)))
    writer.add_token_type_count(2)
    ids = {"padding": 0, "unknown": 1, "cls": 2, "seperator": 3, "mask": 4, "bos": 2, "eos": 3}  # as GGUF spells them
    for name, token_id in ids.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token_id)
    for name, values in random_weights(shape).items():
        is_matrix = values.ndim == 2 and "position" not in name and "token_type" not in name
        if is_matrix:
            writer.add_tensor(_gguf_name(name), gguf.quants.quantize(values, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(_gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _phantom(word: str) -> str:
    """A piece as llama.cpp's vocabularies of this kind write it: words begin with a mark, pieces inside have none."""
    if word in SPECIAL:
        return word
    return word.removeprefix("##") if word.startswith("##") else f"\u2581{word}"


_GGUF_PARTS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_GGUF_TABLES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}


def _gguf_name(name: str) -> str:
    place, _, kind = name.rpartition(".")
    if place in _GGUF_TABLES:
        return f"{_GGUF_TABLES[place]}.{kind}"
    _, _, layer, part = place.split(".", 3)
    return f"blk.{layer}.{_GGUF_PARTS[part]}.{kind}"


def _tokenizer() -> Tokenizer:
    table = {word: index for index, word in enumerate(vocabulary())}
    file = Tokenizer(models.WordPiece(table, unk_token="[UNK]", max_input_chars_per_word=100))
    file.normalizer = normalizers.BertNormalizer(lowercase=True)
    file.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    file.decoder = decoders.WordPiece()
    file.add_special_tokens(list(SPECIAL))
    file.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", table["[CLS]"]), ("[SEP]", table["[SEP]"])],
    )
    return file


def main() -> None:
    """Write what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="bge-small")
    given = parser.parse_args()
    write_model(given.directory, SHAPES[given.shape])
    for kind in GGUF_KINDS:
        write_gguf(given.directory, SHAPES[given.shape], kind)


if __name__ == "__main__":
    main()
