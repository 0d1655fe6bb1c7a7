"""Questions about a scene, each with its one right answer; nothing is asked that the scene leaves open.

``questions`` gives every question that can be asked with certainty as ``Asked``; ``wording`` words it. Called by the
trainer, the evaluation and tests.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from demo.pictures.scene import COLORS, SHAPES, Item, Scene
from demo.pictures.wordings import HELD_OUT, TRAINED

WORDS = ("no", "one", "two", "three", "four", "five")
# How near 1/6, 1/2 and 5/6 a middle must be for the place to be certain.
CERTAIN = 0.1
COLUMNS = ("left", "", "right")
ROWS = ("top", "", "bottom")


@dataclass(frozen=True)
class Asked:
    """A question's kind, what fills its slots, and the right answer."""

    kind: str
    answer: str
    slots: dict[str, str] = field(default_factory=dict)


def plural(shape: str) -> str:
    """More than one of a shape."""
    return shape + ("es" if shape.endswith("s") else "s")


def named(item: Item) -> str:
    """Its color and shape with an article."""
    return f"{'an' if item.color == 'orange' else 'a'} {item.color} {item.shape}"


def capital(text: str) -> str:
    """The text with a capital letter."""
    return text[0].upper() + text[1:]


def wording(asked: Asked, rng: Random, held_out: bool = False) -> str:
    """The question in one of its wordings, of training or held out."""
    text = rng.choice((HELD_OUT if held_out else TRAINED)[asked.kind])
    for slot, value in asked.slots.items():
        text = text.replace("{" + slot + "}", value)
    return text.replace(" a orange", " an orange")


def questions(scene: Scene, rng: Random) -> list[Asked]:
    """Every kind of question that the scene answers for certain, once or a few times each."""
    if scene.number:
        return about_number(scene, rng)
    if scene.chart:
        return about_chart(scene, rng)
    return [
        *about_all(scene),
        *about_items(scene, rng),
        *about_counts(scene, rng),
        *about_places(scene, rng),
        *about_existence(scene, rng),
        *about_missing(scene, rng),
    ]


def about_number(scene: Scene, rng: Random) -> list[Asked]:
    """The number and its color."""
    number = scene.number
    assert number is not None
    said = Asked("number", f"The number is {number.text}.")
    out = [said, said, Asked("number_color", f"The number is {number.color}.")]
    out.append(Asked("describe", f"The number {number.text} in {number.color}."))
    if rng.random() < 0.15:
        out.append(Asked("bars", "There is no chart in the picture."))
    if rng.random() < 0.15:
        shape = rng.choice(SHAPES)
        out.append(Asked("count_shape", f"There are no {plural(shape)}.", {"ss": plural(shape)}))
    return out


def about_chart(scene: Scene, rng: Random) -> list[Asked]:
    """How many bars there are, the tallest and the shortest."""
    chart = scene.chart
    assert chart is not None
    bars = sorted(chart.bars, key=lambda bar: bar.height)
    out = [
        Asked("bars", f"There are {WORDS[len(bars)]} bars."),
        Asked("tallest", f"The {bars[-1].color} bar is the tallest."),
        Asked("shortest", f"The {bars[0].color} bar is the shortest."),
        Asked("describe", f"A bar chart with {WORDS[len(bars)]} bars."),
    ]
    if rng.random() < 0.15:
        out.append(Asked("number", "There is no number in the picture."))
    return out


def about_all(scene: Scene) -> list[Asked]:
    """What is in the picture: shapes by name in reading order, or how many alike."""
    names = [named(item) for item in scene.items]
    if len(names) > 1 and len(set(names)) == 1:
        item = scene.items[0]
        return [Asked("describe", f"{capital(WORDS[len(names)])} {item.color} {plural(item.shape)}.")]
    text = names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
    return [Asked("describe", capital(text) + ".")]


def about_items(scene: Scene, rng: Random) -> list[Asked]:
    """Shapes that are the only one of their kind or color."""
    shapes = Counter(item.shape for item in scene.items)
    colors = Counter(item.color for item in scene.items)
    out = []
    for item in scene.items:
        if shapes[item.shape] == 1:
            out.append(Asked("color", f"The {item.shape} is {item.color}.", {"s": item.shape}))
        if colors[item.color] == 1:
            out.append(Asked("which", f"The {item.shape} is {item.color}.", {"c": item.color}))
    out = rng.sample(out, min(2, len(out)))
    if len(scene.items) == 1:
        item = scene.items[0]
        out.append(Asked("shape", f"It is a {item.shape}."))
        out.append(Asked("color", f"The {item.shape} is {item.color}.", {"s": "shape"}))
    return out


def number_of(count: int, thing: str, things: str) -> str:
    """A sentence that says how many there are."""
    return f"There is one {thing}." if count == 1 else f"There are {WORDS[count]} {things}."


def about_counts(scene: Scene, rng: Random) -> list[Asked]:
    """How many shapes there are, of a kind, of a color."""
    items = scene.items
    out = [Asked("count", number_of(len(items), "shape", "shapes"))]
    present = [item.shape for item in items] + [rng.choice(SHAPES)]
    shape = rng.choice(present)
    count = sum(item.shape == shape for item in items)
    out.append(Asked("count_shape", number_of(count, shape, plural(shape)), {"ss": plural(shape)}))
    color = rng.choice([item.color for item in items] + [rng.choice(list(COLORS))])
    count = sum(item.color == color for item in items)
    out.append(Asked("count_color", number_of(count, f"{color} shape", f"{color} shapes"), {"c": color}))
    return out


def cell(share: float) -> int | None:
    """0, 1 or 2 for a third of the canvas that a middle is clearly in."""
    index = min(2, int(share * 3))
    return index if abs(share - (2 * index + 1) / 6) <= CERTAIN else None


def place(column: int, row: int) -> str:
    """One of nine places by name."""
    words = " ".join(word for word in (ROWS[row], COLUMNS[column]) if word)
    return f"at the {words}" if ROWS[row] else f"on the {words}" if words else "in the center"


def definite(item: Item, scene: Scene, rng: Random) -> str | None:
    """What tells the item from all others: its shape, or its color and shape; None if nothing does."""
    same = [other for other in scene.items if other.shape == item.shape]
    if len(same) == 1:
        return item.shape if rng.random() < 0.5 else f"{item.color} {item.shape}"
    return f"{item.color} {item.shape}" if sum(other.color == item.color for other in same) == 1 else None


def about_places(scene: Scene, rng: Random) -> list[Asked]:
    """Where something is, and what is somewhere."""
    out = []
    found: dict[tuple[int, int], list[Item]] = {}
    uncertain = False
    for item in scene.items:
        column, row = cell(item.x), cell(item.y)
        if column is None or row is None:
            uncertain = True
            continue
        found.setdefault((column, row), []).append(item)
        name = definite(item, scene, rng)
        if name:
            out.append(Asked("where", f"The {name} is {place(column, row)}.", {"i": name}))
    out = rng.sample(out, min(2, len(out)))
    single = [spot for spot, items in found.items() if len(items) == 1]
    if single and not uncertain:
        spot = rng.choice(single)
        where = place(*spot)
        out.append(Asked("at", f"{capital(named(found[spot][0]))} is {where}.", {"p": where}))
    return out


def about_existence(scene: Scene, rng: Random) -> list[Asked]:
    """Whether there is a shape of a kind, or of a kind and color."""
    item = rng.choice(scene.items)
    shape, color = item.shape, item.color
    if rng.random() < 0.5:
        shape = rng.choice(SHAPES)
        color = rng.choice([color, rng.choice(list(COLORS))])
    if rng.random() < 0.5:
        name, has_it = shape, any(other.shape == shape for other in scene.items)
    else:
        name = f"{color} {shape}"
        has_it = any((other.shape, other.color) == (shape, color) for other in scene.items)
    article = "an" if name.startswith("orange") else "a"
    answer = f"Yes, there is {article} {name}." if has_it else f"No, there is no {name}."
    return [Asked("exists", answer, {"i": name})]


def about_missing(scene: Scene, rng: Random) -> list[Asked]:
    """Sometimes something that is not in the picture."""
    out = []
    if rng.random() < 0.06:
        out.append(Asked("number", "There is no number in the picture."))
    if rng.random() < 0.06:
        out.append(Asked(rng.choice(["bars", "tallest", "shortest"]), "There is no chart in the picture."))
    if rng.random() < 0.15:
        shape = rng.choice([shape for shape in SHAPES if all(item.shape != shape for item in scene.items)])
        out.append(Asked(*missing(rng.choice(["color", "where"]), shape)))
    return out


def missing(kind: str, shape: str) -> tuple[str, str, dict[str, str]]:
    """A question about a shape that is not there."""
    return kind, f"There is no {shape} in the picture.", {"s": shape, "i": shape}
