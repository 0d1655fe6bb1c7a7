"""The protocol of tokenizers for the server, and the table of token pieces that the hot path reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The tokens around the parts of a fill-in-the-middle prompt; None = the model has none.

    `suffix_first`: as in Codestral. `repository`, `file`: before the names of a project and of its files. Sources:
    Bavarian et al. 2022 (arXiv:2207.14255), section 3; Hui et al. 2024 (arXiv:2409.12186).
    """

    prefix: int
    suffix: int
    middle: int | None
    suffix_first: bool = False
    repository: int | None = None
    file: int | None = None

    def arrange(self, text_ids: Sequence[int], suffix_ids: Sequence[int]) -> list[int]:
        before, after = [self.prefix, *text_ids], [self.suffix, *suffix_ids]
        parts = after + before if self.suffix_first else before + after
        return parts if self.middle is None else [*parts, self.middle]


class Tokenizer(Protocol):
    """Translates between text and token ids. Immutable after loading, so every thread may use it."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id. Models may have more rows (padding); those tokens have no bytes."""
        ...

    @property
    def max_token_chars(self) -> int:
        """An upper bound of the characters that one token stands for."""
        ...

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_id(self) -> int | None: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def fim_tokens(self) -> FimTokens | None:
        """None if the model was not trained to fill in the middle."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def encode_continuation(self, text: str) -> list[int]:
        """The tokens of `text` where it continues other text: without specials and without an implied space."""
        ...

    def encode_plain(self, text: str, *, is_first: bool) -> list[int]:
        """The tokens of `text`, none of them special. `is_first`: as at the beginning of a prompt."""
        ...

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The whole text of these tokens, as the beginning of a text."""
        ...

    def token_bytes(self, token_id: int, *, at_start: bool = False) -> bytes:
        """The exact bytes that this token adds to a text (or begins it with); b"" for ids without a token."""
        ...

    def is_special(self, token_id: int) -> bool:
        """True for control tokens, which are not part of the text."""
        ...


class TokenPiece(NamedTuple):
    bytes: bytes
    text: str
    is_special: bool


class TokenPieces(dict[int, TokenPiece]):
    """The pieces of a vocabulary by token id, each made on first use: the hot path pays one dictionary look-up."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def __missing__(self, token_id: int) -> TokenPiece:
        token_bytes = self.tokenizer.token_bytes(token_id)
        piece = TokenPiece(token_bytes, token_bytes.decode("utf-8", "replace"), self.tokenizer.is_special(token_id))
        self[token_id] = piece
        return piece
