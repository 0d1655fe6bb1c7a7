"""Finds and reads the tokenizers of models without a tokenizer.json, and adds the tokens that other files name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from dragoman.tokenizer.merged_pairs import VOCABULARY, read_merged_pairs
from dragoman.tokenizer.ranked_bytes import looks_like_tiktoken, read_tekken, read_tiktoken
from dragoman.tokenizer.sentencepiece import tokenizer_of
from dragoman.tokenizer.sentencepiece_model import SentencePieceModel, read_model
from dragoman.tokenizer.soundness import check_parts
from dragoman.tokenizer.wordpiece import read_wordpiece

_TIKTOKEN_NAMES = ("tiktoken.model", "tokenizer.tiktoken", "qwen.tiktoken")
_SENTENCEPIECE_NAME = "tokenizer.model"
_TEKKEN_NAME = "tekken.json"
_WORDPIECE_NAME = "vocab.txt"
_NAMES = (_SENTENCEPIECE_NAME, *_TIKTOKEN_NAMES, _TEKKEN_NAME, _WORDPIECE_NAME)


def tokenizer_file(model_dir: Path) -> Path:
    """The file of the model's tokenizer if there is no tokenizer.json. Raises: ValueError if there is none."""
    for name in _NAMES:
        if (model_dir / name).is_file():
            return model_dir / name
    others = [*sorted(model_dir.glob("*.tiktoken")), model_dir / VOCABULARY]
    if others[0].is_file():
        return others[0]
    exported = model_dir / "openvino_tokenizer.xml"
    hint = f" ({exported.name} is not read: bring it from the model of the export)" if exported.is_file() else ""
    raise ValueError(
        f"{model_dir / 'tokenizer.json'} is missing: a model directory must hold its tokenizer in this file, or in one of "
        f"{', '.join((*_NAMES, VOCABULARY))}; fetch it from the model's source "
        f"(`dragoman pull ORG/NAME` brings it with a model of the hub){hint}"
    )


def read_tokenizer(path: Path, tokenizer_config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer in a file that `tokenizer_file` found. Raises: ValueError for unusable content."""
    added = _added_tokens(path.parent, tokenizer_config)
    if path.name == _TEKKEN_NAME:
        tokenizer = read_tekken(path)
        _begin_with_bos(tokenizer, tokenizer_config)
    elif path.name == VOCABULARY:
        tokenizer = read_merged_pairs(path, tokenizer_config)
    elif path.name == _WORDPIECE_NAME:
        tokenizer = read_wordpiece(path, tokenizer_config)
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
    bos = tokenizer_config.get("bos_token") or "<s>"
    text = str(bos.get("content") if isinstance(bos, dict) else bos)
    token_id = tokenizer.token_to_id(text)
    if token_id is not None and tokenizer_config.get("add_bos_token") is not False:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{text} $A", pair=f"{text} $A $B", special_tokens=[(text, token_id)]
        )
