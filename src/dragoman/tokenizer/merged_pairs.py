"""Makes byte-level tokenizers from a vocabulary and a list of merges: vocab.json and merges.txt.

Never runs a checkpoint's own code: the class in tokenizer_config.json, which defines how text is cut, must be known
here. Source: the classes of those names in transformers, and the tokenizer.json files that their fast forms write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from dragoman.tokenizer.ranked_bytes import PATTERNS

VOCABULARY, MERGES = "vocab.json", "merges.txt"

_QWEN, _GPT2 = "Qwen2Tokenizer", "GPT2Tokenizer"
_CLASSES = (_QWEN, f"{_QWEN}Fast", _GPT2, f"{_GPT2}Fast")


def read_merged_pairs(vocabulary: Path, tokenizer_config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of that file and of the merges in its directory. Raises: ValueError."""
    kind = str(tokenizer_config.get("tokenizer_class") or "")
    if kind not in _CLASSES:
        raise ValueError(
            f"the file does not define how text is split, and no rule is known for tokenizer_class {kind!r}; "
            f"known: {', '.join(_CLASSES)}"
        )
    if not vocabulary.with_name(MERGES).is_file():
        raise ValueError(f"there is no {MERGES} beside it, which lists the merges of its tokens")
    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary(vocabulary), merges=_merges(vocabulary.with_name(MERGES))))
    blank_first = bool(tokenizer_config.get("add_prefix_space"))
    if kind.startswith(_QWEN):
        tokenizer.normalizer = normalizers.NFC()
        cut = pre_tokenizers.Split(Regex(PATTERNS["QWenTokenizer"]), "isolated")
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=blank_first, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, as_bytes])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=blank_first)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _vocabulary(path: Path) -> dict[str, int]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not all(isinstance(token_id, int) for token_id in content.values()):
        raise ValueError("it is not an object of tokens and their ids")
    return content


def _merges(path: Path) -> list[tuple[str, str]]:
    lines = path.read_text(encoding="utf-8").split("\n")
    if lines[0].startswith("#version"):
        lines = lines[1:]
    pairs = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        first, _, second = line.strip("\r").partition(" ")
        if not second or " " in second:
            raise ValueError(f"{path.name}: merge {number} is not two tokens with a blank between them")
        pairs.append((first, second))
    return pairs
