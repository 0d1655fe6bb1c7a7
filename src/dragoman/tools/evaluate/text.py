"""Turns a file of text into tokens, and checks that two models share their tokens."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dragoman.tokenizer.base import Tokenizer
from dragoman.tools.evaluate.windows import EvaluationError


class TextTokens(NamedTuple):
    """A text's tokens. `start`: the first tokens of a prompt, before each window."""

    token_ids: list[int]
    start: list[int]


def read_text(path: Path) -> str:
    """The file's text. Raises: EvaluationError if it cannot be read, is not UTF-8, or is empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise EvaluationError(f"must be a file that can be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise EvaluationError(f"must be UTF-8 text: {error.reason} at byte {error.start}") from error
    if not text:
        raise EvaluationError("must be a file with text, but it is empty")
    return text


def tokens_of(text: str, tokenizer: Tokenizer) -> TextTokens:
    """The text's tokens without special ones, and the token that begins a prompt, if any."""
    bos = tokenizer.bos_token_id
    begins = bos is not None and tokenizer.encode("a")[:1] == [bos]
    return TextTokens(tokenizer.encode(text, add_special_tokens=False), [bos] if begins and bos is not None else [])


def refuse_other_tokens(tokenizer: Tokenizer, other: Tokenizer) -> None:
    """Raises: EvaluationError if the tokenizers differ in a token."""
    if tokenizer.vocab_size != other.vocab_size:
        sizes = f"{other.vocab_size} tokens instead of {tokenizer.vocab_size}"
        raise EvaluationError(f"must be a model with the same tokenizer, but its vocabulary has {sizes}")
    for token_id in range(tokenizer.vocab_size):
        mine, its = tokenizer.token_bytes(token_id), other.token_bytes(token_id)
        if mine != its:
            raise EvaluationError(
                f"must be a model with the same tokenizer, but its token {token_id} is {_shown(its)} instead of "
                f"{_shown(mine)}"
            )


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", errors="replace"))
