"""A tokenizer whose tokens are the 256 bytes, and a few control tokens: no files, and every text has exactly one form."""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.tokenizer.base import FimTokens, TokenPieces
from dragoman.tokenizer.detokenizer import decode_tokens

BOS_ID = 256
EOS_ID = 257
END_OF_TURN_ID = 258
FIM_IDS = FimTokens(prefix=259, suffix=260, middle=261)
VOCAB_SIZE = 262

_CONTROL_TOKENS = {
    BOS_ID: b"<s>",
    EOS_ID: b"</s>",
    END_OF_TURN_ID: b"<|end|>",
    FIM_IDS.prefix: b"<|pre|>",
    FIM_IDS.suffix: b"<|suf|>",
    261: b"<|mid|>",
}


class ByteTokenizer:
    """A `Tokenizer`. `adds_bos`: prompts begin with the bos token. Control tokens in a text are not recognised."""

    def __init__(self, *, adds_bos: bool = False, has_bos: bool = True, has_fim: bool = True) -> None:
        self._adds_bos = adds_bos
        self.vocab_size = VOCAB_SIZE
        self.max_token_chars = 1
        self.bos_token_id: int | None = BOS_ID if has_bos else None
        self.eos_token_id: int | None = EOS_ID if has_bos else None
        self.eos_token_ids = frozenset((EOS_ID, END_OF_TURN_ID)) if has_bos else frozenset[int]()
        self.fim_tokens: FimTokens | None = FIM_IDS if has_fim else None
        self._pieces = TokenPieces(self)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """One token per UTF-8 byte."""
        own = list(text.encode("utf-8", "replace"))
        return [BOS_ID, *own] if self._adds_bos and add_special_tokens else own

    def encode_continuation(self, text: str) -> list[int]:
        """One token per UTF-8 byte."""
        return self.encode(text, add_special_tokens=False)

    def encode_plain(self, text: str, *, is_first: bool) -> list[int]:
        """One token per UTF-8 byte."""
        return self.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The bytes as text."""
        return decode_tokens(self._pieces, token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int, *, at_start: bool = False) -> bytes:
        """The byte itself, or a control token's name."""
        return bytes([token_id]) if token_id < 256 else _CONTROL_TOKENS.get(token_id, b"")

    def is_special(self, token_id: int) -> bool:
        """True for the control tokens."""
        return token_id in _CONTROL_TOKENS
