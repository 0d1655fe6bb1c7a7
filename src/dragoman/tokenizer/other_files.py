"""Finds and reads the tokenizers of models without a tokenizer.json, and adds the tokens that other files name.

Makes BERT's from a vocab.txt, and byte-level ones from vocab.json and merges.txt, as transformers does. Never runs a
checkpoint's own code: the class in tokenizer_config.json, which defines how text is cut, must be known here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from dragoman.tokenizer.ranked_bytes import PATTERNS, looks_like_tiktoken, read_tekken, read_tiktoken
from dragoman.tokenizer.sentencepiece import SentencePieceModel, read_model, tokenizer_of
from dragoman.tokenizer.soundness import check_parts

_TIKTOKEN_NAMES = ("tiktoken.model", "tokenizer.tiktoken", "qwen.tiktoken")
_SENTENCEPIECE_NAME = "tokenizer.model"
_TEKKEN_NAME = "tekken.json"
_WORDPIECE_NAME = "vocab.txt"
_NAMES = (_SENTENCEPIECE_NAME, *_TIKTOKEN_NAMES, _TEKKEN_NAME, _WORDPIECE_NAME)
_VOCABULARY, _MERGES = "vocab.json", "merges.txt"

_QWEN, _GPT2 = "Qwen2Tokenizer", "GPT2Tokenizer"
_MERGING_CLASSES = (_QWEN, f"{_QWEN}Fast", _GPT2, f"{_GPT2}Fast")

_WORDPIECE_TOKENS = {
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}


def tokenizer_file(model_dir: Path) -> Path:
    """The file of the model's tokenizer if there is no tokenizer.json. Raises: ValueError if there is none."""
    for name in _NAMES:
        if (model_dir / name).is_file():
            return model_dir / name
    others = [*sorted(model_dir.glob("*.tiktoken")), model_dir / _VOCABULARY]
    if others[0].is_file():
        return others[0]
    exported = model_dir / "openvino_tokenizer.xml"
    hint = f" ({exported.name} is not read: bring it from the model of the export)" if exported.is_file() else ""
    raise ValueError(
        f"{model_dir / 'tokenizer.json'} is missing: a model directory must hold its tokenizer in this file, or in one of "
        f"{', '.join((*_NAMES, _VOCABULARY))}; fetch it from the model's source "
        f"(`dragoman pull ORG/NAME` brings it with a model of the hub){hint}"
    )


def read_tokenizer(path: Path, tokenizer_config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer in a file that `tokenizer_file` found. Raises: ValueError for unusable content."""
    added = _added_tokens(path.parent, tokenizer_config)
    if path.name == _TEKKEN_NAME:
        tokenizer = read_tekken(path)
        _begin_with_bos(tokenizer, tokenizer_config)
    elif path.name == _VOCABULARY:
        tokenizer = _merged_pairs(path, tokenizer_config)
    elif path.name == _WORDPIECE_NAME:
        tokenizer = _wordpiece(path, tokenizer_config)
    elif path.name != _SENTENCEPIECE_NAME or looks_like_tiktoken(path.read_bytes()[:4096]):
        names = {token_id: token.content for token_id, token in added.items()}
        tokenizer = read_tiktoken(path, str(tokenizer_config.get("tokenizer_class") or ""), names)
    else:
        model = _renamed(read_model(path.read_bytes()), added)
        tokenizer = tokenizer_of(model, blank_everywhere=tokenizer_config.get("legacy") is not False)
        _begin_with_bos(tokenizer, tokenizer_config)
    _add(tokenizer, added)
    parts = {name: getattr(tokenizer, name) for name in ("normalizer", "pre_tokenizer", "post_processor")}
    check_parts({name: None if part is None else json.loads(part.__getstate__()) for name, part in parts.items()})
    return tokenizer


def _added_tokens(model_dir: Path, tokenizer_config: Mapping[str, Any]) -> dict[int, AddedToken]:
    found: dict[int, AddedToken] = {}
    path = model_dir / "added_tokens.json"
    if path.is_file():
        for text, token_id in json.loads(path.read_text(encoding="utf-8")).items():
            found[int(token_id)] = AddedToken(text, special=False, normalized=False)
    for token_id, entry in (tokenizer_config.get("added_tokens_decoder") or {}).items():
        flags = {name: bool(entry.get(name)) for name in ("special", "normalized", "lstrip", "rstrip", "single_word")}
        found[int(token_id)] = AddedToken(str(entry["content"]), **flags)
    return found


def _renamed(model: SentencePieceModel, added: Mapping[int, AddedToken]) -> SentencePieceModel:
    """The model with pieces renamed as in the other files: InternLM2 put its chat tokens in unused places."""
    texts = {piece.text for piece in model.pieces}
    pieces = [
        replace(piece, text=added[token_id].content)
        if token_id in added and added[token_id].content not in texts
        else piece
        for token_id, piece in enumerate(model.pieces)
    ]
    return replace(model, pieces=tuple(pieces))


def _add(tokenizer: Tokenizer, added: Mapping[int, AddedToken]) -> None:
    for token_id, token in sorted(added.items()):
        if token.special:
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != token_id:
            raise ValueError(
                f"token {token.content!r} has the id {token_id} in the files beside it, and "
                f"{tokenizer.token_to_id(token.content)} by this one"
            )


def _begin_with_bos(tokenizer: Tokenizer, tokenizer_config: Mapping[str, Any]) -> None:
    """Prompts begin with the bos token, as in Hugging Face's classes for such files, unless a file says no."""
    text = _content(tokenizer_config.get("bos_token") or None, "<s>")
    token_id = tokenizer.token_to_id(text)
    if token_id is not None and tokenizer_config.get("add_bos_token") is not False:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{text} $A", pair=f"{text} $A $B", special_tokens=[(text, token_id)]
        )


def _merged_pairs(vocabulary: Path, tokenizer_config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of that file and of the merges in its directory. Raises: ValueError."""
    kind = str(tokenizer_config.get("tokenizer_class") or "")
    if kind not in _MERGING_CLASSES:
        raise ValueError(
            f"the file does not define how text is split, and no rule is known for tokenizer_class {kind!r}; "
            f"known: {', '.join(_MERGING_CLASSES)}"
        )
    if not vocabulary.with_name(_MERGES).is_file():
        raise ValueError(f"there is no {_MERGES} beside it, which lists the merges of its tokens")
    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary(vocabulary), merges=_pairs(vocabulary.with_name(_MERGES))))
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


def _pairs(path: Path) -> list[tuple[str, str]]:
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


def _wordpiece(path: Path, tokenizer_config: Mapping[str, Any]) -> Tokenizer:
    """BERT's tokenizer over the words of that file, one per line. Raises: ValueError without its special tokens."""
    lines = path.read_text(encoding="utf-8").split("\n")
    vocabulary = {word.rstrip("\r"): index for index, word in enumerate(lines) if word or index < len(lines) - 1}
    names = {key: _content(tokenizer_config.get(key), usual) for key, usual in _WORDPIECE_TOKENS.items()}
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
