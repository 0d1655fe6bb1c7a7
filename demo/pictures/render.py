"""Draws a scene with Pillow, and says for each patch of the picture what covers it.

``draw`` gives the picture; ``classes`` gives the same scene as two small maps, which shape (or bar, or digit) and which
color lies where, for training the tower. Fonts that the machine lacks are replaced by Pillow's own. Called by the
trainer, the evaluation and tests; uses nothing random but the scene's own noise, whose seed follows from the scene.
"""

import math
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from demo.pictures.scene import COLORS, RGB, SHAPES, Chart, Item, Number, Scene

FINE = 3  # shapes are drawn this much larger and scaled down, so that their edges are smooth
FONT_FILES = {
    "serif": "/usr/share/fonts/truetype/dejavu/DejaVuSerif.ttf",
    "mono": "/usr/share/fonts/truetype/dejavu/DejaVuSansMono-Bold.ttf",
}
# Segments of a digit on a display: top, upper right, lower right, bottom, lower left, upper left, middle.
SEGMENTS = {
    "0": "abcdef", "1": "bc", "2": "abdeg", "3": "abcdg", "4": "bcfg",
    "5": "acdfg", "6": "acdefg", "7": "abc", "8": "abcdefg", "9": "abcdfg",
}  # fmt: skip
BAR_CLASS = len(SHAPES) + 1
FIRST_DIGIT_CLASS = BAR_CLASS + 1
NUM_CLASSES = FIRST_DIGIT_CLASS + 10
COLOR_CLASS = {color: index for index, color in enumerate(COLORS, 1)}
Point = tuple[float, float]


def draw(scene: Scene) -> Image.Image:
    """The scene as an RGB picture of its width and height."""
    picture = Image.new("RGB", (scene.width * FINE, scene.height * FINE), scene.background)
    pen = ImageDraw.Draw(picture)
    for item in scene.items:
        draw_item(pen, item, picture.size, item.rgb)
    if scene.chart:
        draw_chart(pen, scene.chart, picture.size, is_dark=sum(scene.background) < 300)
    if scene.number:
        draw_number(pen, scene.number, picture.size, [scene.number.rgb] * len(scene.number.text))
    picture = picture.resize((scene.width, scene.height), Image.Resampling.BOX)
    return with_noise(picture, scene.noise) if scene.noise else picture


def with_noise(picture: Image.Image, noise: float) -> Image.Image:
    """The picture with pixels that stray, always in the same way for the same picture."""
    pixels = np.asarray(picture)
    rng = np.random.default_rng(zlib.crc32(pixels.tobytes()))
    strayed = pixels + rng.standard_normal(pixels.shape, dtype=np.float32) * noise
    return Image.fromarray(np.clip(strayed, 0, 255).astype(np.uint8))


def classes(scene: Scene, side: int) -> tuple[np.ndarray, np.ndarray]:
    """What lies in each of ``side`` x ``side`` patches, 0 = nothing: classes of shape, bar or digit; and of color."""
    size = (side * 5, side * 5)
    maps = []
    for of_color in (False, True):
        plane = Image.new("L", size)
        pen = ImageDraw.Draw(plane)
        for item in scene.items:
            draw_item(pen, item, size, class_of(item.shape, item.color, of_color), (scene.width, scene.height))
        if scene.chart:
            for bar, box in zip(scene.chart.bars, bar_boxes(scene.chart, size), strict=True):
                pen.rectangle(box, fill=class_of("bar", bar.color, of_color))
        if scene.number:
            for digit, box in zip(
                scene.number.text, digit_boxes(scene.number, scene.width / scene.height), strict=True
            ):
                pixels = tuple(part * side * 5 for part in box)
                pen.rectangle(pixels, fill=class_of(digit, scene.number.color, of_color))
        maps.append(most_of(np.asarray(plane), side))
    return maps[0], maps[1]


def class_of(thing: str, color: str, of_color: bool) -> int:
    """The class of a shape, "bar" or digit, or of a color."""
    if of_color:
        return COLOR_CLASS[color]
    if thing.isdigit():
        return FIRST_DIGIT_CLASS + int(thing)
    return BAR_CLASS if thing == "bar" else SHAPES.index(thing) + 1


def most_of(plane: np.ndarray, side: int) -> np.ndarray:
    """For each patch what covers most of it, if that is a fifth or more; else 0."""
    patches = plane.reshape(side, 5, side, 5).transpose(0, 2, 1, 3).reshape(side * side, 25)
    counts = np.stack([(patches == value).sum(1) for value in range(1, NUM_CLASSES)], axis=1)
    best = counts.argmax(1)
    return np.where(counts.max(1) >= 5, best + 1, 0).astype(np.uint8)


def draw_item(
    pen: ImageDraw.ImageDraw, item: Item, size: tuple[int, int], fill: int | RGB, shown: tuple[int, int] | None = None
) -> None:
    """One shape on a canvas of ``size``; ``shown`` is the picture's own size where the canvas has other proportions."""
    width, height = shown or size
    reach = item.radius * min(width, height)
    across, down = reach / width * size[0], reach / height * size[1]
    x, y = item.x * size[0], item.y * size[1]
    if item.shape == "circle":
        pen.ellipse((x - across, y - down, x + across, y + down), fill=fill)
        return
    pen.polygon([(x + dx * across, y + dy * down) for dx, dy in outline(item.shape)], fill=fill)


@lru_cache
def outline(shape: str) -> tuple[Point, ...]:
    """The corners of a shape of radius 1 around the origin."""
    if shape == "square":
        return ((-0.87, -0.87), (0.87, -0.87), (0.87, 0.87), (-0.87, 0.87))
    if shape == "triangle":
        return ((0.0, -0.95), (1.0, 0.85), (-1.0, 0.85))
    if shape == "diamond":
        return ((0.0, -1.0), (0.8, 0.0), (0.0, 1.0), (-0.8, 0.0))
    if shape == "star":
        turns = [(math.pi * (index / 5 - 0.5), 1.05 if index % 2 == 0 else 0.42) for index in range(10)]
        return tuple((math.cos(angle) * far, math.sin(angle) * far) for angle, far in turns)
    near, far = 0.3, 0.97
    right = [(near, -far), (near, -near), (far, -near), (far, near), (near, near), (near, far)]
    return (*right, *((-x, -y) for x, y in right))


def draw_chart(pen: ImageDraw.ImageDraw, chart: Chart, size: tuple[int, int], is_dark: bool) -> None:
    """Grid, bars and axes."""
    left, top, right, bottom = (share * size[index % 2] for index, share in enumerate(chart.box))
    ink = (200, 200, 200) if is_dark else (60, 60, 60)
    if chart.has_grid:
        for step in range(4):
            y = top + (bottom - top) * step / 4
            pen.line((left, y, right, y), fill=(100, 100, 100) if is_dark else (200, 200, 200), width=FINE)
    for bar, box in zip(chart.bars, bar_boxes(chart, size), strict=True):
        pen.rectangle(box, fill=bar.rgb)
    if chart.has_axes:
        pen.line((left, bottom, right, bottom), fill=ink, width=FINE * 2)
        pen.line((left, top, left, bottom), fill=ink, width=FINE * 2)


def bar_boxes(chart: Chart, size: tuple[int, int]) -> list[tuple[float, float, float, float]]:
    """Where the bars stand, in pixels."""
    left, top, right, bottom = chart.box
    slot = (right - left) / len(chart.bars)
    boxes = []
    for index, bar in enumerate(chart.bars):
        begin = left + slot * (index + (1 - chart.fill) / 2)
        high = bottom - (bottom - top) * bar.height
        boxes.append((begin * size[0], high * size[1], (begin + slot * chart.fill) * size[0], bottom * size[1]))
    return boxes


def digit_boxes(number: Number, ratio: float) -> list[tuple[float, float, float, float]]:
    """About where each digit lies, as shares of the canvas whose width is ``ratio`` times its height."""
    half, down = 0.29 * number.size / ratio, 0.36 * number.size
    begin = number.x - half * len(number.text)
    return [
        (begin + 2 * half * index, number.y - down, begin + 2 * half * (index + 1), number.y + down)
        for index in range(len(number.text))
    ]


def draw_number(
    pen: ImageDraw.ImageDraw, number: Number, size: tuple[int, int], fills: list[tuple[int, int, int]]
) -> None:
    """The digits around their middle, in the number's font."""
    if number.font == "segments":
        for digit, box, fill in zip(number.text, digit_boxes(number, size[0] / size[1]), fills, strict=True):
            draw_segments(pen, digit, tuple(share * size[index % 2] for index, share in enumerate(box)), fill)
        return
    points = number.size * size[1]
    pen.text(
        (number.x * size[0], number.y * size[1]),
        number.text,
        font=font(number.font, max(8, round(points))),
        fill=fills[0],
        anchor="mm",
        stroke_width=round(points * 0.03) if number.font == "bold" else 0,
    )


@lru_cache(maxsize=4096)
def font(name: str, points: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """A font of this size: the machine's, or Pillow's own."""
    path = FONT_FILES.get(name)
    if path and Path(path).is_file():
        return ImageFont.truetype(path, points)
    return ImageFont.load_default(points)


def draw_segments(pen: ImageDraw.ImageDraw, digit: str, box: tuple[float, ...], fill: tuple[int, int, int]) -> None:
    """One digit as a display of seven segments shows it."""
    left, top, right, bottom = box
    thick = (bottom - top) * 0.13
    left, right = left + thick * 0.7, right - thick * 0.7
    middle = (top + bottom) / 2
    lines = {
        "a": (left, top, right, top + thick),
        "b": (right - thick, top, right, middle),
        "c": (right - thick, middle, right, bottom),
        "d": (left, bottom - thick, right, bottom),
        "e": (left, middle, left + thick, bottom),
        "f": (left, top, left + thick, middle),
        "g": (left, middle - thick / 2, right, middle + thick / 2),
    }
    for name in SEGMENTS[digit]:
        pen.rectangle(lines[name], fill=fill)
