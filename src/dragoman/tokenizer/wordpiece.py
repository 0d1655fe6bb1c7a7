"""Makes BERT's tokenizer from a vocab.txt, as transformers does. Source: BERT's release."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

_NAMES = {
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}


def read_wordpiece(path: Path, tokenizer_config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer over the words of that file, one per line. Raises: ValueError without its special tokens."""
    lines = path.read_text(encoding="utf-8").split("\n")
    vocabulary = {word.rstrip("\r"): index for index, word in enumerate(lines) if word or index < len(lines) - 1}
    names = {key: _content(tokenizer_config.get(key), usual) for key, usual in _NAMES.items()}
    missing = [names[key] for key in ("unk_token", "cls_token", "sep_token") if names[key] not in vocabulary]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}, as a WordPiece vocabulary has")
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=names["unk_token"], max_input_chars_per_word=100))
    accents = tokenizer_config.get("strip_accents")
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=tokenizer_config.get("tokenize_chinese_chars") is not False,
        strip_accents=accents if isinstance(accents, bool) else None,
        lowercase=tokenizer_config.get("do_lower_case") is not False,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([name for name in names.values() if name in vocabulary])
    cls, sep = names["cls_token"], names["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    return tokenizer


def _content(token: object, usual: str) -> str:
    """A special token's text: files write a string, or an object."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else usual
