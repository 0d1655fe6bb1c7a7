"""Turns a growing list of token ids into text, token by token, without splitting a character. Constant work per token."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from dragoman.tokenizer.base import TokenPieces

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """The text of each token, the whole of a character with the token that completes it. `flush` ends the text.

    `at_start`: the first token begins a text, where SentencePiece's leading space is hidden; a completion continues its
    prompt, so the space is shown. `shown_ids`: special tokens that count as text.
    """

    __slots__ = (
        "_at_start",
        "_follows_special",
        "_pieces",
        "_shown_ids",
        "_skips_special",
        "_spaces_special",
        "_utf8",
    )

    def __init__(
        self,
        pieces: TokenPieces,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        at_start: bool = False,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._pieces = pieces
        self._shown_ids = shown_ids
        self._skips_special = skip_special_tokens
        self._spaces_special = spaces_between_special_tokens
        self._at_start = at_start
        self._follows_special = False
        self._utf8 = _Utf8Decoder("replace").decode

    def push(self, token_id: int) -> str:
        token_bytes, _, is_special = self._pieces[token_id]
        if is_special:
            if self._skips_special and token_id not in self._shown_ids:
                return ""
            if self._follows_special and self._spaces_special:
                token_bytes = b" " + token_bytes
        self._follows_special = is_special
        if self._at_start and token_bytes:
            self._at_start = False
            token_bytes = self._pieces.tokenizer.token_bytes(token_id, at_start=True)
        return self._utf8(token_bytes)

    def flush(self) -> str:
        """The text of bytes that never became a character: one U+FFFD, or ""."""
        return self._utf8(b"", True)


def decode_tokens(pieces: TokenPieces, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
    detokenizer = IncrementalDetokenizer(
        pieces, skip_special_tokens=skip_special_tokens, spaces_between_special_tokens=False, at_start=True
    )
    texts = [detokenizer.push(token_id) for token_id in token_ids]
    return "".join(texts) + detokenizer.flush()
