"""Shared by towers that look at a picture tile by tile. Used by processors on any thread, and by towers."""

from __future__ import annotations

import numpy as np
from PIL import Image

from dragoman.models.blocks.nodes import reshape, width
from dragoman.models.config import Config
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node
from dragoman.models.vision.blocks import transpose
from dragoman.models.vision.pixels import normalized

PIXELS = "pixel_values"
_MOST_TILES = 1000


def folded(x: Node, side: int, factor: int) -> Node:
    """Squares of neighbours as rows, [tiles * (side / factor)**2, size * factor**2]. Source: arXiv:2408.12637."""
    size, parts = width(x), side // factor
    squares = reshape(x, -1, parts, factor, parts, factor, size)
    return reshape(transpose(squares, 0, 1, 3, 2, 4, 5), -1, size * factor**2)


def cut(image: Image.Image, rows: int, columns: int, size: int) -> list[Image.Image]:
    corners = [(column * size, row * size) for row in range(rows) for column in range(columns)]
    return [image.crop((left, top, left + size, top + size)) for left, top in corners]


def stacked(tiles: list[Image.Image], values: Array) -> Array:
    """Shape: f32 [tiles, 3, height, width]; `values` as in `pixels.normalized`."""
    return np.stack([normalized(np.asarray(tile), values) for tile in tiles])


def read_grids(described: Config, least_key: str, most_key: str) -> tuple[tuple[int, int], ...]:
    """Columns and rows of all grids that these keys allow, those of few tiles first. Raises: ModelError."""
    least, most = described.count(least_key, 1), described.count(most_key, 12)
    if most > _MOST_TILES:
        raise described.error(most_key, f"at most {_MOST_TILES}")
    if least > most:
        raise described.error(least_key, f"at most {most_key}, {most}")
    grids = [(columns, rows) for columns in range(1, most + 1) for rows in range(1, most // columns + 1)]
    return tuple(sorted((grid for grid in grids if grid[0] * grid[1] >= least), key=lambda grid: grid[0] * grid[1]))


def nearest_grid(grids: tuple[tuple[int, int], ...], width: int, height: int, tile_size: int) -> tuple[int, int]:
    """Columns and rows of the nearest shape; of equally near ones, the last that has not twice the picture's pixels."""
    shape = width / height
    best, least = (1, 1), float("inf")
    for columns, rows in grids:
        difference = abs(shape - columns / rows)
        is_filled = width * height > 0.5 * tile_size**2 * columns * rows
        if difference < least or (difference == least and is_filled):
            best, least = (columns, rows), difference
    return best
