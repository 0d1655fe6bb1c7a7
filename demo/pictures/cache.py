"""Draws the training pictures ahead of time, since drawing takes longer than the tower's step.

Usage: ``python -m demo.pictures.cache DIR FIRST LAST``: one file for each shard from FIRST to LAST - 1 with ``SHARD``
pictures and their classes. The scenes themselves follow from the shard's number. Several processes may draw different
shards at once.
"""

import sys
from pathlib import Path
from random import Random

import numpy as np

from demo.pictures.prepare import GRID, prepare
from demo.pictures.render import classes, draw
from demo.pictures.scene import Scene, draw_scene

SHARD = 2000


def scenes_of(shard: int) -> list[Scene]:
    """The scenes of one training shard."""
    rng = Random(f"pictures {shard}")
    return [draw_scene(rng) for _ in range(SHARD)]


def save(folder: Path, shard: int) -> None:
    """Draw one shard into ``folder``: pictures ``[SHARD, SIDE, SIDE, 3]``, things and colors ``[SHARD, GRID * GRID]``."""
    scenes = scenes_of(shard)
    pictures = np.stack([prepare(draw(scene)) for scene in scenes])
    pairs = [classes(scene, GRID) for scene in scenes]
    path = folder / f"{shard}.npz"
    with (folder / f"{shard}.part").open("wb") as file:
        np.savez(file, pictures=pictures, things=[pair[0] for pair in pairs], colors=[pair[1] for pair in pairs])
    (folder / f"{shard}.part").rename(path)


def main() -> None:
    """Draw the shards named on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(int(sys.argv[2]), int(sys.argv[3])):
        save(folder, shard)


if __name__ == "__main__":
    main()
