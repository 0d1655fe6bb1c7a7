"""Turns a file of text into tokens and windows that fit a model's context; checks that two models share their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dragoman.tokenizer.base import Tokenizer


class EvaluationError(ValueError):
    """A text or a model cannot be evaluated; one line."""


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that a model reads at once. `first_scored`: the first counted one, which has a token before it."""

    token_ids: tuple[int, ...]
    first_scored: int

    @property
    def num_scored(self) -> int:
        return len(self.token_ids) - self.first_scored


def cut_windows(token_ids: Sequence[int], size: int, stride: int, start: Sequence[int] = ()) -> Iterator[Window]:
    """Windows of at most `size` tokens; each scores `stride` new tokens, the first one all of its tokens.

    `start`: tokens at the beginning of each window, within its size. A token without a predecessor is not scored.
    Source: huggingface.co/docs/transformers/perplexity, "Calculating PPL with fixed-length models".
    """
    room = size - len(start)
    assert 0 < stride <= room, "the caller has checked it"
    end_scored = 0
    while end_scored < len(token_ids):
        end = min(end_scored + (stride if end_scored else room), len(token_ids))
        begin = max(0, end - room)
        window = Window((*start, *token_ids[begin:end]), max(1, len(start) + end_scored - begin))
        if window.num_scored:
            yield window
        end_scored = end


def cut_text(token_ids: Sequence[int], size: int, stride: int | None, start: Sequence[int] = ()) -> list[Window]:
    """The windows of a whole text; `stride` None = all of a window. Raises: EvaluationError for less than two tokens."""
    windows = list(cut_windows(token_ids, size, stride or size - len(start), start))
    if not windows:
        raise EvaluationError("the text is too short: it needs at least two tokens")
    return windows


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
