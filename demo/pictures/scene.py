"""What a drawn picture holds: coloured shapes, a number or a bar chart, and where; and how one is made up at random.

Places and sizes are shares of the canvas, so that a scene can be drawn in every size. Some pairs of shape and color and
some numbers are held out: ``draw_scene`` makes them up only where it is told to. Called by the trainer, the evaluation
and tests.
"""

from dataclasses import dataclass
from random import Random

RGB = tuple[int, int, int]

SHAPES = ("circle", "square", "triangle", "star", "diamond", "cross")
COLORS: dict[str, list[RGB]] = {
    "red": [(255, 0, 0), (220, 30, 30), (200, 0, 20), (230, 50, 50)],
    "green": [(0, 128, 0), (0, 255, 0), (30, 160, 50), (60, 190, 70)],
    "blue": [(0, 0, 255), (30, 60, 220), (20, 90, 230), (40, 110, 240)],
    "yellow": [(255, 255, 0), (250, 230, 20), (255, 225, 40), (240, 220, 0)],
    "orange": [(255, 165, 0), (255, 140, 0), (250, 130, 20), (245, 150, 30)],
    "purple": [(128, 0, 128), (140, 40, 170), (120, 20, 160), (150, 50, 180)],
    "black": [(0, 0, 0), (20, 20, 20), (10, 10, 15)],
    "white": [(255, 255, 255), (245, 245, 245), (250, 250, 245)],
}
LIGHT: list[RGB] = [
    (255, 255, 255),
    (255, 255, 255),
    (240, 240, 240),
    (225, 228, 235),
    (250, 240, 220),
    (215, 235, 245),
]
DARK: list[RGB] = [(0, 0, 0), (30, 30, 34), (20, 24, 50), (45, 40, 45)]
FONTS = ("plain", "bold", "serif", "mono", "segments")

# Held out: training never sees these together.
HELD_OUT_PAIRS = frozenset(
    [
        ("star", "green"),
        ("circle", "purple"),
        ("triangle", "orange"),
        ("square", "black"),
        ("diamond", "red"),
        ("cross", "blue"),
    ]
)
HELD_OUT_NUMBERS = frozenset(["13", "26", "38", "47", "51", "64", "79", "85", "90"])

MOST_ITEMS, MOST_BARS = 5, 5
LEAST_DIGIT = 0.45  # of the canvas's height, where that leaves room for two
LEAST_STEP = 0.15  # of the plot's height, between the tallest or the shortest bar and the next


@dataclass(frozen=True)
class Item:
    """One shape. ``x``, ``y``: its middle as shares of width and height; ``radius``: a share of the shorter side."""

    shape: str
    color: str
    rgb: RGB
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Bar:
    """One bar of a chart; ``height`` is a share of the plot's height."""

    color: str
    rgb: RGB
    height: float


@dataclass(frozen=True)
class Number:
    """One or two digits, how they are written and where; ``size`` is a share of the height."""

    text: str
    color: str
    rgb: RGB
    font: str
    x: float
    y: float
    size: float


@dataclass(frozen=True)
class Chart:
    """Bars from left to right; the plot's box as shares of the canvas, and how much of its slot a bar fills."""

    bars: tuple[Bar, ...]
    box: tuple[float, float, float, float]
    fill: float
    has_axes: bool
    has_grid: bool


@dataclass(frozen=True)
class Scene:
    """A whole picture: its size in pixels, what is behind, how noisy it is, and one of items, number or chart."""

    width: int
    height: int
    background: RGB
    noise: float
    items: tuple[Item, ...] = ()
    number: Number | None = None
    chart: Chart | None = None


def draw_scene(rng: Random, held_out: bool = False) -> Scene:
    """A scene of any kind; with ``held_out`` it may hold what training never sees."""
    roll = rng.random()
    if roll < 0.57:
        return shapes_scene(rng, held_out)
    return number_scene(rng, held_out) if roll < 0.83 else chart_scene(rng)


def canvas(rng: Random, wide: float = 1.0) -> tuple[int, int]:
    """Width and height in pixels, about a third of them square; ``wide`` multiplies the width."""
    height = rng.choice([96, 120, 128, 160, 200, 224, 256, 300])
    ratio = 1.0 if rng.random() < 0.35 else rng.uniform(0.67, 1.5)
    return max(80, round(height * ratio * wide)), height


def ground(rng: Random) -> tuple[RGB, list[str]]:
    """A background and the colors that can be told from it."""
    is_light = rng.random() < 0.8
    rgb = rng.choice(LIGHT if is_light else DARK)
    hidden = ("white",) if is_light else ("black", "blue", "purple")
    return rgb, [color for color in COLORS if color not in hidden]


def shade(color: str, rng: Random) -> RGB:
    """One of the color's shades, mostly a little changed."""
    rgb = rng.choice(COLORS[color])
    if rng.random() < 0.4:
        return rgb
    red, green, blue = (min(255, max(0, part + rng.randint(-12, 12))) for part in rgb)
    return red, green, blue


def noise_of(rng: Random) -> float:
    """How far pixels stray; mostly not at all."""
    return 0.0 if rng.random() < 0.6 else rng.uniform(2.0, 10.0)


def kind_of_item(colors: list[str], rng: Random, held_out: bool) -> tuple[str, str]:
    """A shape and a color that may come together."""
    while True:
        pair = rng.choice(SHAPES), rng.choice(colors)
        if held_out or pair not in HELD_OUT_PAIRS:
            return pair


def shapes_scene(rng: Random, held_out: bool = False) -> Scene:
    """One to three shapes, or two to five alike; no two in the same ninth of the canvas."""
    width, height = canvas(rng)
    background, colors = ground(rng)
    is_alike = rng.random() < 0.22
    count = rng.randint(2, MOST_ITEMS) if is_alike else rng.choices([1, 2, 3], weights=[32, 34, 34])[0]
    if rng.random() < 0.35:
        colors = rng.sample(colors, 2)  # the same color several times
    usual = SHAPES if rng.random() < 0.6 else rng.sample(SHAPES, 2)
    items: list[Item] = []
    for x, y, radius in places(count, (width, height), rng):
        shape, color = kind_of_item(colors, rng, held_out)
        while shape not in usual and rng.random() < 0.9:
            shape, color = kind_of_item(colors, rng, held_out)
        if is_alike and items:
            shape, color = items[0].shape, items[0].color
        items.append(Item(shape, color, shade(color, rng), x, y, radius))
    return Scene(width, height, background, noise_of(rng), tuple(items))


def places(count: int, size: tuple[int, int], rng: Random) -> list[tuple[float, float, float]]:
    """Middles and radii near different ones of nine places, in reading order; a single shape mostly anywhere and larger."""
    if count == 1 and rng.random() < 0.6:
        radius = rng.uniform(0.10, 0.42)
        edge_x, edge_y = (radius * min(size) / length + 0.01 for length in size)
        return [(rng.uniform(edge_x, 1 - edge_x), rng.uniform(edge_y, 1 - edge_y), radius)]
    spots = sorted(rng.sample([(row, column) for row in range(3) for column in range(3)], count))
    stray = 0.055
    return [
        (
            (2 * column + 1) / 6 + rng.uniform(-stray, stray),
            (2 * row + 1) / 6 + rng.uniform(-stray, stray),
            rng.uniform(0.085, 0.11),
        )
        for row, column in spots
    ]


def number_scene(rng: Random, held_out: bool = False) -> Scene:
    """One number from 0 to 99 in some font, size and place."""
    width, height = canvas(rng, 1.1)
    background, colors = ground(rng)
    text = str(rng.randint(0, 9) if rng.random() < 0.35 else rng.randint(10, 99))
    while text in HELD_OUT_NUMBERS and not held_out:
        text = str(rng.randint(10, 99))
    color = rng.choice(colors)
    most = min(0.8, 0.9 * width / height / (0.62 * len(text)))
    size = rng.uniform(min(LEAST_DIGIT, most), most)
    half_x, half_y = 0.32 * size * len(text) * height / width + 0.01, size * 0.42 + 0.01
    x, y = spot(half_x, rng), spot(half_y, rng)
    number = Number(text, color, shade(color, rng), rng.choice(FONTS), x, y, size)
    return Scene(width, height, background, noise_of(rng), number=number)


def spot(half: float, rng: Random) -> float:
    """A middle between the edges, a quarter of the time the canvas's own."""
    return 0.5 if half >= 0.5 or rng.random() < 0.25 else rng.uniform(half, 1 - half)


def chart_scene(rng: Random) -> Scene:
    """A bar chart of two to five bars of different colors; the tallest and the shortest stand out."""
    width, height = canvas(rng, 1.15)
    background, colors = ground(rng)
    count = rng.randint(2, MOST_BARS)
    heights = bar_heights(count, rng)
    bars = tuple(
        Bar(color, shade(color, rng), size) for color, size in zip(rng.sample(colors, count), heights, strict=True)
    )
    box = (rng.uniform(0.04, 0.12), rng.uniform(0.04, 0.12), rng.uniform(0.9, 0.97), rng.uniform(0.88, 0.96))
    chart = Chart(bars, box, rng.uniform(0.55, 0.9), rng.random() < 0.75, rng.random() < 0.25)
    return Scene(width, height, background, noise_of(rng), chart=chart)


def bar_heights(count: int, rng: Random) -> list[float]:
    """Heights of which the greatest and the least differ from all others."""
    while True:
        heights = [rng.uniform(0.12, 1.0) for _ in range(count)]
        ordered = sorted(heights)
        if ordered[-1] - ordered[-2] >= LEAST_STEP <= ordered[1] - ordered[0]:
            return heights
