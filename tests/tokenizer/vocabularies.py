"""Small real tokenizers in every style whose decoding differs, built with the library that reads tokenizer.json files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL_TOKENS = ("<s>", "</s>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")

_CORPUS = (
    "Deep learning is fun, and learning deeply is more fun than anything.",
    "Straßen, Äpfel und Öl; naïve café; 深度学习很有趣; 🍊🍋 and 🍇.",
    "  indented text\n\nand new lines\tand tabs",
)


def byte_level() -> Tokenizer:
    """Byte-level BPE, as GPT-2, Llama 3 and Qwen have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        show_progress=False,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return tokenizer


def byte_fallback(*, strips: bool = True) -> Tokenizer:
    """SentencePiece-style BPE with byte fallback: as Llama 2 and Mistral (`strips`), or as Gemma have it."""
    pieces = ["<unk>", *SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ["▁", "D", "e", "p", "l", "a", "r", "n", "i", "g", "s", "f", "u", "é", "."]
    merges = [("▁", "D"), ("e", "e"), ("▁D", "ee"), ("▁Dee", "p"), ("▁", "l"), ("i", "s"), ("▁", "is")]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, *words, *("".join(merge) for merge in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([*_prepend(strips), normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if strips else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    tokenizer.add_special_tokens(["<unk>", *SPECIAL_TOKENS])
    return tokenizer


def metaspace(scheme: Literal["always", "never"] = "always") -> Tokenizer:
    """A Unigram model with the Metaspace decoder, as T5 and older conversions have it."""
    pieces = [
        "<unk>",
        *SPECIAL_TOKENS,
        "▁",
        "▁Deep",
        "▁learn",
        "ing",
        "▁is",
        "▁fun",
        ".",
        "é",
        "🍊",
        *"abcdefghijklmnop",
    ]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.add_special_tokens(["<unk>", *SPECIAL_TOKENS])
    return tokenizer


def words() -> Tokenizer:
    """Whole words without any decoder: the library puts spaces between tokens."""
    tokenizer = Tokenizer(
        models.WordLevel({"<unk>": 0, "deep": 1, "learning": 2, "is": 3, "fun": 4}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def with_bos(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with a post-processor that begins every prompt with <s>."""
    bos_id = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos_id)])
    return tokenizer


def write_model_dir(directory: Path, tokenizer: Tokenizer, **files: dict[str, Any]) -> Path:
    """A model directory with this tokenizer.json and other JSON files by their stems; the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    for stem, content in files.items():
        (directory / f"{stem}.json").write_text(json.dumps(content), encoding="utf-8")
    return directory


def _prepend(prepends: bool) -> list[normalizers.Normalizer]:
    return [normalizers.Prepend("▁")] if prepends else []
