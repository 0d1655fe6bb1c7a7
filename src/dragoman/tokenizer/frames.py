"""The special tokens that a tokenizer puts around a text, or around a pair of texts. Used for embedding and scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tokenizers import Tokenizer as TokenizerFile

Side = Literal["right", "left"]

_PROBE = "a"


class FramedPair(NamedTuple):
    token_ids: tuple[int, ...]
    second_from: int


@dataclass(frozen=True, slots=True)
class Frame:
    """The special tokens before, between and behind texts. `kind_changes_at`: those between of the first text's type."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    behind: tuple[int, ...]
    kind_changes_at: int | None = None

    @property
    def num_special(self) -> int:
        return len(self.before) + len(self.between) + len(self.behind)

    def around(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        return (*self.before, *token_ids, *self.behind)

    def pair(self, first: Sequence[int], second: Sequence[int]) -> FramedPair:
        token_ids = (*self.before, *first, *self.between, *second, *self.behind)
        if self.kind_changes_at is None:
            return FramedPair(token_ids, 0)
        return FramedPair(token_ids, len(self.before) + len(first) + self.kind_changes_at)


def single_frame(file: TokenizerFile) -> Frame:
    encoding = file.encode(_PROBE)
    places = [index for index, owner in enumerate(encoding.sequence_ids) if owner == 0]
    if not places:
        return Frame((), (), ())
    ids = encoding.ids
    return Frame(tuple(ids[: places[0]]), (), tuple(ids[places[-1] + 1 :]))


def pair_frame(file: TokenizerFile) -> Frame:
    encoding = file.encode(_PROBE, _PROBE)
    first, second = ([at for at, owner in enumerate(encoding.sequence_ids) if owner == which] for which in (0, 1))
    if not first or not second:
        return Frame((), (), ())
    ids, kinds = encoding.ids, encoding.type_ids
    change = next((at for at, kind in enumerate(kinds) if kind), None)
    return Frame(
        tuple(ids[: first[0]]),
        tuple(ids[first[-1] + 1 : second[0]]),
        tuple(ids[second[-1] + 1 :]),
        None if change is None else change - first[-1] - 1,
    )


def cut(token_ids: Sequence[int], room: int, side: Side) -> Sequence[int]:
    if len(token_ids) <= room:
        return token_ids
    return token_ids[:room] if side == "right" else token_ids[len(token_ids) - room :]


def cut_pair(first: Sequence[int], second: Sequence[int], room: int, side: Side) -> tuple[Sequence[int], Sequence[int]]:
    """At most `room` tokens of two texts: the longer one loses tokens first, as in transformers' "longest_first"."""
    shorter, longer = sorted((len(first), len(second)))
    if shorter + longer > room:
        longer = max(shorter, room - shorter)
        if shorter + longer > room:
            shorter = room // 2
            longer = shorter + room % 2
    of_first, of_second = (longer, shorter) if len(first) > len(second) else (shorter, longer)
    return cut(first, of_first, side), cut(second, of_second, side)
