"""Writes a tokenizer as the metadata of a GGUF file, as llama.cpp's converter does.

Does: list tokens, types, merges or scores. Does not: look at pre-tokenizers (the test names the kind). Used by tests.
Source of the facts: llama.cpp, conversion/base.py (`get_vocab_base`, `_create_vocab_sentencepiece`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def tokenizer_metadata(tokenizer: Tokenizer, kind: str, pre: str = "default", **ids: int) -> dict[str, Any]:
    """The keys behind `tokenizer.`. `kind`: gpt2, llama, gemma4 or t5; `ids`: of special tokens by the format's names."""
    spec = json.loads(tokenizer.to_str())
    added = {token["id"]: token for token in spec["added_tokens"]}
    vocabulary = {index: token for token, index in tokenizer.get_vocab(with_added_tokens=True).items()}
    tokens, types = [], []
    for index in range(max(vocabulary) + 1):
        token = vocabulary.get(index)
        tokens.append(f"[PAD{index}]" if token is None else token)
        types.append(_type(token, added.get(index), kind))
    model = spec["model"]
    if kind == "t5":
        unknown = model["unk_id"]
        types = [UNKNOWN if index == unknown else kind_ for index, kind_ in enumerate(types)]
    values = {
        "ggml.model": kind,
        "ggml.pre": pre,
        "ggml.tokens": tokens,
        "ggml.token_type": types,
        **{f"ggml.{name}_token_id": index for name, index in ids.items()},
    }
    if kind in ("gpt2", "gemma4"):
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        scores = {} if kind == "gpt2" else {"ggml.scores": [-1000.0] * len(tokens)}
        return values | {"ggml.merges": merges} | scores
    if kind == "t5":
        return values | {"ggml.scores": [float(score) for _, score in model["vocab"]]}
    return values | {"ggml.scores": _scores(tokens, model["merges"])}


def _type(token: str | None, added: dict[str, Any] | None, kind: str) -> int:
    if token is None:
        return UNUSED
    if added is not None:
        special = UNKNOWN if kind == "llama" and token == "<unk>" else CONTROL
        return special if added["special"] else USER_DEFINED
    return BYTE if kind != "gpt2" and len(token) == 6 and token.startswith("<0x") else NORMAL


def _scores(tokens: list[str], merges: list[Any]) -> list[float]:
    """SentencePiece's: the sooner a pair is joined, the higher."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        ranks.setdefault("".join(pair), rank)
    return [-float(ranks.get(token, len(merges))) for token in tokens]


def read_tokenizer(path: Path) -> Tokenizer:
    """tokenizer.json of a directory."""
    return Tokenizer.from_file(str(path / "tokenizer.json"))
