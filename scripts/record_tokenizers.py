"""Records how SentencePiece and tiktoken themselves cut odd texts, with small tokenizers that this trains.

Run: `python scripts/record_tokenizers.py` in an environment with the packages sentencepiece and tiktoken, from the
repository's root. Writes tests/tokenizer/other_files/: the tokenizers' files, and encodings.json.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from dragoman.tokenizer.ranked_bytes import PATTERNS  # noqa: E402
from tests.tokenizer.odd_texts import TEXTS  # noqa: E402

TARGET = ROOT / "tests" / "tokenizer" / "other_files"

RULES = {
    "Ａ": "A", "Ｂ": "B", "Ｃ": "C", "１": "1", "２": "2", "３": "3", "ﬁ": "fi", "ﬂ": "fl", "½": "1⁄2", "™": "TM",
    "…": "...", "\t": " ", "\u3000": " ", "\u00a0": " ", "\u200b": "", "e\u0301": "é", "²": "2",
}  # fmt: skip

LLAMA = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
SYMBOLS = "<|begin|>,<|end|>,<tool>,\u2581\u2581"
SENTENCEPIECES: dict[str, dict[str, Any]] = {
    "bpe": {"model_type": "bpe", **LLAMA},
    "bpe_rules": {"model_type": "bpe", "rules": True, "vocab_size": 230},
    "bpe_symbols": {"model_type": "bpe", **LLAMA, "user_defined_symbols": SYMBOLS, "control_symbols": "[INST],[/INST]"},
    "bpe_no_prefix": {"model_type": "bpe", **LLAMA, "add_dummy_prefix": False},
    "unigram": {"model_type": "unigram", "byte_fallback": True, "rules": True, "vocab_size": 480},
    "unigram_plain": {"model_type": "unigram", **LLAMA, "byte_fallback": False, "vocab_size": 250},
    "unigram_symbols": {"model_type": "unigram", **LLAMA, "user_defined_symbols": SYMBOLS, "vocab_size": 500},
}


def corpus() -> list[str]:
    """Lines to train on: the odd texts, and enough English that words become pieces."""
    words = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    return [line for text in TEXTS for line in text.splitlines() if line.strip()] + [
        line for line in words if line.strip()
    ]


def sentencepiece_model(options: dict[str, Any]) -> bytes:
    """A model trained on the corpus."""
    import sentencepiece

    writer = io.BytesIO()
    given = {"vocab_size": 440, "character_coverage": 0.98, "hard_vocab_limit": False, **options}
    with tempfile.TemporaryDirectory() as work:
        if given.pop("rules", False):
            path = Path(work, "rules.tsv")
            lines = [
                " ".join(f"{ord(c):X}" for c in old) + "\t" + " ".join(f"{ord(c):X}" for c in new)
                for old, new in RULES.items()
            ]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            given["normalization_rule_tsv"] = str(path)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus()), model_writer=writer, minloglevel=2, **given
        )
    return writer.getvalue()


def ranks(pattern: str, size: int = 400) -> dict[bytes, int]:
    """Byte strings by rank: all bytes, then the most frequent pairs in turn."""
    import regex

    found = {bytes([byte]): byte for byte in range(256)}
    pieces = Counter(piece.encode() for line in corpus() for piece in regex.findall(pattern, line))
    words = [([bytes([byte]) for byte in piece], count) for piece, count in pieces.items()]
    while len(found) < size:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for parts, count in words:
            for pair in itertools.pairwise(parts):
                pairs[pair] += count
        (left, right), _ = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        found[left + right] = len(found)
        words = [(_joined(parts, left, right), count) for parts, count in words]
    return found


def _joined(parts: list[bytes], left: bytes, right: bytes) -> list[bytes]:
    joined: list[bytes] = []
    for part in parts:
        if joined and joined[-1] == left and part == right:
            joined[-1] = left + right
        else:
            joined.append(part)
    return joined


def main() -> int:
    """Train, encode, write; the exit code."""
    import sentencepiece
    import tiktoken

    TARGET.mkdir(parents=True, exist_ok=True)
    encodings: dict[str, list[list[int]]] = {}
    for name, options in SENTENCEPIECES.items():
        data = sentencepiece_model(options)
        (TARGET / f"{name}.model").write_bytes(data)
        processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        encodings[name] = [processor.encode(text) for text in TEXTS]
    for name, pattern in PATTERNS.items():
        found = ranks(re.sub(r"&&\[\^\\p\{Han\}\]", "", pattern))
        lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in found.items()]
        (TARGET / f"{name}.tiktoken").write_text("".join(lines), encoding="ascii")
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=found, special_tokens={})
        encodings[name] = [encoding.encode_ordinary(text) for text in TEXTS]
    (TARGET / "encodings.json").write_text(
        "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(ids)}" for name, ids in encodings.items()) + "\n}\n",
        encoding="ascii",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
