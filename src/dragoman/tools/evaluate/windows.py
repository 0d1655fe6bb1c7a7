"""Cuts a text's tokens into windows that fit a model's context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


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
    """The windows of a whole text; `stride` None = all tokens of a window. Raises: EvaluationError for fewer than two
    tokens.
    """
    windows = list(cut_windows(token_ids, size, stride or size - len(start), start))
    if not windows:
        raise EvaluationError("the text is too short: it needs at least two tokens")
    return windows
