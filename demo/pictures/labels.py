"""What a scene's picture should teach the tower before it meets the text model: who is where, and how many.

``cells`` names the shape whose middle lies in each cell, ``facts_of`` counts and reads. Called by the trainer's first stage.
"""

import numpy as np

from demo.pictures.render import COLOR_CLASS
from demo.pictures.scene import COLORS, SHAPES, Scene

UNSURE = -100  # no loss there
EDGE = 0.03  # how near a cell's border a middle may lie and still count for one cell only
# Shapes; each shape; each color; tens; units; bars; tallest; shortest.
NUM_FACTS = 1 + len(SHAPES) + len(COLORS) + 5
NUM_VALUES = 11


def cells(scene: Scene, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes of shape and color by the cell of the middle, ``[side * side]``, 0 = none, ``UNSURE`` near a border."""
    shapes, colors = np.zeros((side, side), np.int64), np.zeros((side, side), np.int64)
    for item in scene.items:
        near = [{min(side - 1, max(0, int((at + step) * side))) for step in (-EDGE, EDGE)} for at in (item.x, item.y)]
        for row in near[1]:
            for column in near[0]:
                shapes[row, column] = colors[row, column] = UNSURE
    for item in scene.items:
        row, column = min(side - 1, int(item.y * side)), min(side - 1, int(item.x * side))
        shapes[row, column] = SHAPES.index(item.shape) + 1
        colors[row, column] = COLOR_CLASS[item.color]
    return shapes.flatten(), colors.flatten()


def facts_of(scene: Scene) -> list[int]:
    """``NUM_FACTS`` whole numbers below ``NUM_VALUES``; 10 = there is no such digit, 0 = there is no such thing."""
    out = [len(scene.items)]
    out += [sum(item.shape == shape for item in scene.items) for shape in SHAPES]
    out += [sum(item.color == color for item in scene.items) for color in COLORS]
    text = scene.number.text if scene.number else ""
    out += [int(text[0]) if len(text) == 2 else 10, int(text[-1]) if text else 10]
    if not scene.chart:
        return [*out, 0, 0, 0]
    bars = sorted(scene.chart.bars, key=lambda bar: bar.height)
    return [*out, len(bars), COLOR_CLASS[bars[-1].color], COLOR_CLASS[bars[0].color]]
