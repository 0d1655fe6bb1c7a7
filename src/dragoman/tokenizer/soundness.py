"""Checks that a tokenizer, apart from its vocabulary, takes bounded memory and time. Called at load time, on any
thread.

The library grows texts without bounds, and if memory runs out the whole process ends. So each step's growth is bounded,
and unknown steps are tried in a process that the kernel limits (`trial`).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

import msgspec

from dragoman.gguf.pre_tokenizers import KINDS
from dragoman.tokenizer.ranked_bytes import PATTERNS
from dragoman.tokenizer.trial import Refused, try_parts

MOST_GROWTH = 64
_MOST_STEPS = 64
_MOST_PIECES = 64  # around a text
_MOST_UNIGRAM_CHARS = 4 << 20  # of all tokens; each takes the library up to 330 bytes; mT5 has 2 million
_LISTS = ("normalizers", "pretokenizers", "processors")

# Steps that make texts at most a few times longer, however often they occur.
_PLAIN = frozenset((
    "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt", "BertNormalizer",
    "Metaspace", "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Punctuation", "Digits", "CharDelimiterSplit",
    "UnicodeScripts", "BertProcessing", "RobertaProcessing",
))  # fmt: skip
_PATTERNS = frozenset(
    (
        *PATTERNS.values(),
        *(
            part["pattern"]["Regex"]
            for kind in KINDS.values()
            for part in kind.parts
            if "Regex" in part.get("pattern", ())
        ),
        *(" {2,}", r"\A | \z"),  # for SentencePiece's blanks
        # Of the bundled models.
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)


class _File(msgspec.Struct):
    model: msgspec.Raw
    version: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    added_tokens: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None


class _Unigram(msgspec.Struct):
    vocab: list[tuple[str, float]]


def checked_file(text: str) -> str:
    """A tokenizer.json for the library: exactly the checked content, even if it has keys twice. Raises: ValueError."""
    try:
        file = msgspec.json.decode(text, type=_File)
        check_unigrams(piece for piece, _ in _unigrams(file.model))
        check_parts({name: getattr(file, name) for name in ("normalizer", "pre_tokenizer", "post_processor")})
        return msgspec.json.encode(file).decode()
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is not a valid tokenizer: {error}") from error


def _unigrams(model: msgspec.Raw) -> list[tuple[str, float]]:
    try:
        return msgspec.json.decode(model, type=_Unigram).vocab
    except msgspec.ValidationError:  # other models have an object
        return []


def check_unigrams(pieces: Iterable[str]) -> None:
    """Raises: ValueError if these tokens take more memory than any vocabulary."""
    count = sum(map(len, pieces))
    if count > _MOST_UNIGRAM_CHARS:
        raise ValueError(f"its tokens have {count} characters, allowed for Unigram: at most {_MOST_UNIGRAM_CHARS}")


def check_parts(parts: Mapping[str, Any]) -> None:
    """Raises: ValueError for unsafe parts. `parts`: by their names in a tokenizer.json."""
    try:
        steps = [step for part in parts.values() for step in _steps(part)]
        growth = prod(map(_growth, steps))
    except (AttributeError, LookupError, TypeError, binascii.Error) as error:
        raise ValueError(f"it is not a valid tokenizer: {type(error).__name__}: {error}") from error
    if len(steps) > _MOST_STEPS:
        raise ValueError(f"it applies {len(steps)} steps to a text, allowed: at most {_MOST_STEPS}")
    if growth > MOST_GROWTH:
        raise ValueError(f"it may make a text {growth:g} times as long, allowed: at most {MOST_GROWTH} times")
    if not all(map(_is_known, steps)):
        try:
            try_parts(parts)
        except Refused as error:
            raise ValueError(str(error)) from error


def check_charsmap(charsmap: bytes) -> None:
    """Raises: ValueError if the library would read beyond its end."""
    size = int.from_bytes(charsmap[:4], "little")
    if size % 4 or size > len(charsmap) - 4:
        raise ValueError(f"its table of characters has {len(charsmap)} bytes, but declares {size}")


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for name in _LISTS:
        for each in part.get(name) or ():
            yield from _steps(each)


def _growth(step: Mapping[str, Any]) -> float:
    """The factor by which a text may become longer, apart from a few characters."""
    match step:
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            return max(1.0, len(new.encode()) / len(old.encode()))
        case {"type": "Replace", "content": str(new)}:
            return 1.0 + len(new.encode())
        case {"type": "Prepend", "prepend": str(new)}:
            return 1.0 + len(new.encode()) // MOST_GROWTH
        case {"type": "Precompiled", "precompiled_charsmap": str(encoded)}:
            charsmap = base64.b64decode(encoded)
            check_charsmap(charsmap)
            return max(map(len, charsmap[4 + int.from_bytes(charsmap[:4], "little") :].split(b"\0")), default=1) or 1
        case {"type": "TemplateProcessing", "single": list(single), "pair": list(pair)}:
            texts = max(sum("Sequence" in piece for piece in pieces) for pieces in (single, pair))
            special = sum(len(token["ids"]) for token in step["special_tokens"].values()) * max(len(single), len(pair))
            return max(1, texts, special // _MOST_PIECES)
        case {"type": "ByteLevel"}:
            return 2.0
    return 1.0


def _is_known(step: Mapping[str, Any]) -> bool:
    match step:
        case {"type": "Replace" | "Split", "pattern": {"String": str(old)}}:
            return bool(old)
        case {"type": "Replace" | "Split", "pattern": {"Regex": str(pattern)}}:
            return pattern in _PATTERNS
        case {"type": "TemplateProcessing" | "Prepend" | "ByteLevel"}:
            return True
    return step["type"] in _PLAIN
