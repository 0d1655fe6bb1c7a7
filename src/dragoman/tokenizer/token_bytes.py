"""Finds the bytes of a token by the `decoder` of a tokenizer.json: byte-level BPE, SentencePiece, WordPiece."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

TextStep = Callable[[str, bool], str]


def byte_level_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for: unprintable ones are moved up to U+0100 and
    on.

    Source: GPT-2 (Radford et al. 2019), bytes_to_unicode of its released encoder.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    moved = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(moved)}


class TokenDecoder:
    """Turns token strings into bytes. `spec` is the `decoder` object of a tokenizer.json, None = tokens are words."""

    def __init__(self, spec: Mapping[str, Any] | None) -> None:
        self._steps: list[TextStep] = []
        self._byte_level: dict[str, int] | None = None
        self._has_byte_fallback = False
        self._is_fused = False
        self._num_stripped = 0  # of the characters `_stripped`, at the beginning of a text
        self._stripped = ""
        if spec is None:
            self._steps.append(lambda token, at_start: token if at_start else f" {token}")
            return
        for part in spec["decoders"] if spec["type"] == "Sequence" else [spec]:
            self._add(part)

    def token_bytes(self, token: str, *, at_start: bool = False) -> bytes:
        if self._byte_level is not None:
            return self._byte_level_bytes(token, self._byte_level)
        if self._has_byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            raw = bytes([int(match[1], 16)])
        else:
            for step in self._steps:
                token = step(token, at_start)
            raw = token.encode("utf-8", "replace")
        for _ in range(self._num_stripped if at_start else 0):
            raw = raw.removeprefix(self._stripped.encode())
        return raw

    def longest(self, tokens: Iterable[str]) -> int:
        if self._byte_level is None:
            return max((len(self.token_bytes(token)) for token in tokens), default=1)
        alphabet = frozenset(self._byte_level)
        sizes = (len(token if alphabet.issuperset(token) else self.token_bytes(token)) for token in tokens)
        return max(sizes, default=1)

    @staticmethod
    def _byte_level_bytes(token: str, alphabet: Mapping[str, int]) -> bytes:
        try:
            return bytes([alphabet[character] for character in token])
        except KeyError:  # an added token outside the alphabet stands for itself
            return token.encode("utf-8", "replace")

    def _add(self, part: Mapping[str, Any]) -> None:
        match part["type"]:
            case "ByteLevel":
                self._byte_level = byte_level_alphabet()
            case "ByteFallback":
                self._has_byte_fallback = True
            case "Fuse":
                self._is_fused = True
            case "Replace":
                self._steps.append(_replace_step(part["pattern"], part["content"]))
            case "Metaspace":
                self._steps.append(_metaspace_step(part))
            case "WordPiece":
                self._steps.append(_word_piece_step(part["prefix"]))
            case "Strip" if part.get("stop", 0) == 0 and self._is_fused:
                self._stripped, self._num_stripped = part["content"], part["start"]
            case kind:
                raise ValueError(
                    f"decoder {kind} of tokenizer.json is not supported: it must be ByteLevel, Metaspace, WordPiece, or "
                    "a Sequence of Replace, ByteFallback, Fuse and a Strip of leading characters"
                )


def _replace_step(pattern: Mapping[str, str], content: str) -> TextStep:
    old = pattern.get("String")
    if old is None:  # Python's regular expressions have no bound on time
        raise ValueError(
            "decoder Replace of tokenizer.json with a regular expression is not supported: it must be a text"
        )
    return lambda token, at_start: token.replace(old, content)


def _word_piece_step(prefix: str) -> TextStep:
    """Pieces inside a word have a prefix. Blanks before punctuation stay: a token cannot see the next."""
    return lambda token, at_start: (
        token.removeprefix(prefix) if token.startswith(prefix) else token if at_start else f" {token}"
    )


def _metaspace_step(part: Mapping[str, Any]) -> TextStep:
    """Removes the blank that the tokenizer put before the text."""
    blank = part["replacement"]
    # Files from before tokenizers 0.15 say add_prefix_space instead of prepend_scheme.
    is_prepended = part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never") != "never"
    return lambda token, at_start: token.replace(blank, "" if at_start and is_prepended else " ")
