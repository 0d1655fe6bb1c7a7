"""The embedded pictures of one prompt: their placeholders, and their effect on positions, chunks and prefixes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dragoman.errors import InvalidRequest
from dragoman.models.facts import PictureFacts
from dragoman.types import EngineRequest, PictureSpan

Embeddings = npt.NDArray[np.float32]


class EmbeddedPicture(NamedTuple):
    """A picture's embeddings f32 [N, width], and its grid: rows and columns, (0, 0) if unused."""

    embeddings: Embeddings
    grid: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PlacedPicture:
    """A picture in a prompt. `rows`: the position of a placeholder for each embedding. `key` names its content."""

    rows: npt.NDArray[np.int64]
    embeddings: Embeddings
    key: bytes

    def between(self, begin: int, end: int) -> tuple[npt.NDArray[np.int64], Embeddings]:
        first, last = np.searchsorted(self.rows, (begin, end))
        return self.rows[first:last], self.embeddings[first:last]


class PromptPictures:
    """A prompt's pictures in the order of their places. Made on an event loop, read on the engine thread; immutable.

    `positions` i64 [3, prompt tokens]: time, row and column; None = one position. Later tokens have three equal ones,
    their index plus `offset`. Source: Qwen2-VL (arXiv:2409.12191), section 2.1.
    """

    def __init__(self, request: EngineRequest, pictures: Sequence[EmbeddedPicture], facts: PictureFacts) -> None:
        """Raises: InvalidRequest if placeholders and embeddings do not match."""
        ids = np.array(request.prompt_ids, dtype=np.int64)
        self.placed = [
            _place(span, picture, ids, facts.placeholder_id)
            for span, picture in zip(request.pictures, pictures, strict=True)
        ]
        self.positions: npt.NDArray[np.int64] | None = None
        self.offset = 0
        if any(picture.grid != (0, 0) for picture in pictures):
            self.positions, self.offset = _positions(len(ids), request.pictures, [each.grid for each in pictures])
        whole = request.pictures if facts.is_bidirectional else ()
        self._begins = [span.begin for span in whole]
        self._ends = [span.begin + span.length for span in whole]

    def between(self, begin: int, end: int) -> list[tuple[npt.NDArray[np.int64], Embeddings]]:
        """The positions in [begin, end) of placeholders, and their embeddings, for each picture there."""
        parts = [picture.between(begin, end) for picture in self.placed]
        return [part for part in parts if len(part[0])]

    def positions_between(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The three positions of tokens in [begin, end); i64 [3, end - begin]."""
        plain = np.broadcast_to(np.arange(begin, end, dtype=np.int64) + self.offset, (3, end - begin))
        if self.positions is None or begin >= self.positions.shape[1]:
            return plain
        known = self.positions[:, begin:end]
        return np.concatenate([known, plain[:, known.shape[1] :]], axis=1)

    def cut_before(self, end: int) -> int:
        """The last place, at most `end`, that is not inside a picture whose tokens see each other."""
        index = bisect_left(self._begins, end) - 1
        return self._begins[index] if index >= 0 and end < self._ends[index] else end

    def cut_from(self, begin: int) -> int:
        index = bisect_left(self._begins, begin) - 1
        return max(begin, self._ends[index]) if index >= 0 else begin

    @property
    def longest_span(self) -> int:
        """Tokens of the longest picture that must be computed in one step."""
        return max((end - begin for begin, end in zip(self._begins, self._ends, strict=True)), default=0)

    def block_keys(self, block_size: int) -> dict[int, bytes]:
        """For each block with placeholders: a key of the pictures there."""
        keys: dict[int, bytes] = {}
        for picture in self.placed:
            for block in np.unique(picture.rows // block_size).tolist():
                keys[block] = keys.get(block, b"") + picture.key
        return keys


def _place(
    span: PictureSpan, picture: EmbeddedPicture, ids: npt.NDArray[np.int64], placeholder_id: int
) -> PlacedPicture:
    rows = span.begin + np.flatnonzero(ids[span.begin : span.begin + span.length] == placeholder_id)
    num_cells = picture.grid[0] * picture.grid[1]
    if len(rows) != len(picture.embeddings) or num_cells not in (0, span.length):
        raise InvalidRequest(
            f"a picture of {span.picture.width} x {span.picture.height} pixels has {len(rows)} placeholders in the prompt, "
            f"must have {len(picture.embeddings)} beside each other",
            param="messages",
        )
    return PlacedPicture(rows, picture.embeddings, f"{span.picture.digest} {span.detail};".encode())


def _positions(
    num_tokens: int, spans: Sequence[PictureSpan], grids: Sequence[tuple[int, int]]
) -> tuple[npt.NDArray[np.int64], int]:
    """The positions of all tokens of a prompt, and the offset for later ones. A picture's tokens share one time."""
    positions = np.empty((3, num_tokens), dtype=np.int64)
    token, following = 0, 0  # the next token, and its position as text
    for span, (num_rows, num_columns) in zip(spans, grids, strict=True):
        positions[:, token : span.begin] = following + np.arange(span.begin - token)
        following += span.begin - token
        token = span.begin + span.length
        rows, columns = np.divmod(np.arange(num_rows * num_columns), num_columns)
        positions[:, span.begin : token] = following + np.stack([np.zeros_like(rows), rows, columns])
        following += max(num_rows, num_columns)
    positions[:, token:] = following + np.arange(num_tokens - token)
    return positions, following - token
