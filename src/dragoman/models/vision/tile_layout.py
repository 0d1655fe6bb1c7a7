"""Lays out the embeddings of a picture's tiles: chooses its grid, leaves out padding, makes a large layout smaller.

Pure; used on any thread. Sources: as `llava_tiles`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dragoman.models.sources.base import Array

CORNERS = 4
"""The embeddings that one between them is made of, where a layout is made smaller."""

_SMALLER = 1.1  # a layout is made smaller if its sides are this factor above the limit


class Grid(NamedTuple):
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class TileLayout:
    """The tiles of a picture, and the order of their embeddings. `grids`: sizes in pixels that it may be fitted into.

    `tile`: pixels of a tile's side; `side`: its patches; `most_tiles`: their embeddings are the limit, 0 = there is
    none.
    """

    grids: tuple[tuple[int, int], ...]
    tile: int
    side: int
    most_tiles: int

    def fitted(self, width: int, height: int) -> tuple[int, int]:
        """Height and width that the picture fills most pixels of, among equals those with the fewest left over."""
        best, most, least_left = self.grids[0], 0, math.inf
        for high, wide in self.grids:
            scale = min(wide / width, high / height)
            used = min(int(width * scale) * int(height * scale), width * height)
            left = high * wide - used
            if used > most or (used == most and left < least_left):
                best, most, least_left = (high, wide), used, left
        return best

    def grid(self, width: int, height: int) -> Grid:
        high, wide = self.fitted(width, height)
        return Grid(high // self.tile, wide // self.tile)

    def kept(self, width: int, height: int) -> tuple[range, range]:
        """The rows and columns of patches that are not only padding."""
        grid = self.grid(width, height)
        rows, columns = grid.rows * self.side, grid.columns * self.side
        if width / height > columns / rows:
            padding = (rows - int(round(height * (columns / width), 7))) // 2
            return range(padding, rows - padding), range(columns)
        padding = (columns - int(round(width * (rows / height), 7))) // 2
        return range(rows), range(padding, columns - padding)

    def reduced(self, width: int, height: int) -> tuple[int, int]:
        rows, columns = (len(places) for places in self.kept(width, height))
        if not self.most_tiles:
            return rows, columns
        ratio = math.sqrt(rows * columns / (self.most_tiles * self.side**2))
        return (int(rows // ratio), int(columns // ratio)) if ratio > _SMALLER else (rows, columns)

    def num_embeddings(self, width: int, height: int) -> int:
        rows, columns = self.reduced(width, height)
        return int(self.side**2 + rows * (columns + 1))

    def rows(self, width: int, height: int) -> tuple[Array, Array]:
        """The rows that each embedding is made of, and how much of each: i64 and f32, [corners, embeddings].

        Rows are those of the whole picture, then of each tile, then the newline.
        """
        grid, side = self.grid(width, height), self.side
        places: Array = np.arange(side**2, (1 + grid.rows * grid.columns) * side**2)
        places = places.reshape(grid.rows, grid.columns, side, side).transpose(0, 2, 1, 3)
        places = places.reshape(grid.rows * side, grid.columns * side)
        down, across = self.kept(width, height)
        places = places[down.start : down.stop, across.start : across.stop]
        newline = (1 + grid.rows * grid.columns) * side**2
        corners, shares = _between(places, self.reduced(width, height)) if self.most_tiles else _alone(places)
        ends = [(0, 0), (0, 0), (0, 1)]
        corners = np.pad(corners, ends, constant_values=newline)
        shares = np.pad(shares, ends)
        shares[0, :, -1] = 1.0
        base, whole = _alone(np.arange(side**2).reshape(side, side), len(corners))
        return (
            np.concatenate([part.reshape(len(corners), -1) for part in (base, corners)], axis=1),
            np.concatenate([part.reshape(len(corners), -1) for part in (whole, shares)], axis=1),
        )

    def base_rows(self) -> tuple[Array, Array]:
        corners, shares = _alone(np.arange(self.side**2 + 1).reshape(1, -1), CORNERS if self.most_tiles else 1)
        return corners.reshape(len(corners), -1), shares.reshape(len(corners), -1)


def _alone(places: Array, num_corners: int = 1) -> tuple[Array, Array]:
    """Embeddings that are one row each. Shapes: places [rows, columns] -> i64 and f32 [corners, rows, columns]."""
    shares = np.zeros((num_corners, *places.shape), dtype=np.float32)
    shares[0] = 1.0
    return np.repeat(places[None], num_corners, axis=0).astype(np.int64), shares


def _between(places: Array, size: tuple[int, int]) -> tuple[Array, Array]:
    """As `_alone`, of `size`, by bilinear interpolation; samples lie in the middle of what they stand for."""
    if places.shape == size:
        return _alone(places, CORNERS)
    (top, bottom, down), (left, right, across) = (_samples(*pair) for pair in zip(places.shape, size, strict=True))
    corners = [places[np.ix_(rows, columns)] for rows in (top, bottom) for columns in (left, right)]
    shares = [np.outer(high, wide) for high in (1 - down, down) for wide in (1 - across, across)]
    return np.stack(corners).astype(np.int64), np.stack(shares).astype(np.float32)


def _samples(count: int, num_samples: int) -> tuple[Array, Array, Array]:
    """For each sample the two places that it lies between, and its distance from the first."""
    scale = np.float32(count / num_samples)
    where = np.maximum((np.arange(num_samples, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5), 0)
    first = where.astype(np.int64)
    return first, np.minimum(first + 1, count - 1), where - first
