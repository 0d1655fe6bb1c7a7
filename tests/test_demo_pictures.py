"""The demo vision model's pictures: the same for the same seed, held-out things stay out of training, answers are right."""

from random import Random

import numpy as np
import pytest
from PIL import Image

from demo.pictures import cache, labels, prepare, questions, render, scene, wordings

SCENES = 800
NAMES = dict(enumerate(questions.WORDS))


def drawn(count: int, held_out: bool = False) -> list[scene.Scene]:
    rng = Random(23)
    return [scene.draw_scene(rng, held_out) for _ in range(count)]


def pairs_of(scenes: list[scene.Scene]) -> set[tuple[str, str]]:
    return {(item.shape, item.color) for one in scenes for item in one.items}


def numbers_of(scenes: list[scene.Scene]) -> set[str]:
    return {one.number.text for one in scenes if one.number}


def test_the_same_seed_draws_the_same_pictures() -> None:
    first, second = ([render.draw(one) for one in drawn(20)] for _ in range(2))
    assert [one.tobytes() for one in first] == [one.tobytes() for one in second]
    assert len({one.tobytes() for one in first}) == len(first)


def test_training_scenes_hold_nothing_held_out() -> None:
    scenes = drawn(SCENES) + cache.scenes_of(0)
    assert not pairs_of(scenes) & scene.HELD_OUT_PAIRS
    assert not numbers_of(scenes) & scene.HELD_OUT_NUMBERS


def test_evaluation_scenes_hold_all_that_is_held_out() -> None:
    scenes = drawn(3 * SCENES, held_out=True)
    assert pairs_of(scenes) >= scene.HELD_OUT_PAIRS
    assert numbers_of(scenes) >= scene.HELD_OUT_NUMBERS


def test_every_shape_color_and_digit_stays_in_training() -> None:
    scenes = drawn(3 * SCENES)
    assert {shape for shape, _ in pairs_of(scenes)} == set(scene.SHAPES)
    assert {color for _, color in pairs_of(scenes)} == set(scene.COLORS)
    for place in (0, -1):
        assert {text[place] for text in numbers_of(scenes) if len(text) == 2} >= set("123456789")


def test_held_out_wordings_are_not_trained() -> None:
    assert wordings.TRAINED.keys() == wordings.HELD_OUT.keys()
    for kind, held_out in wordings.HELD_OUT.items():
        assert not set(held_out) & set(wordings.TRAINED[kind]), kind


@pytest.mark.parametrize("held_out", [False, True])
def test_wordings_leave_no_slot_open(held_out: bool) -> None:
    rng = Random(23)
    kinds = set()
    for one in drawn(SCENES):
        for asked in questions.questions(one, rng):
            kinds.add(asked.kind)
            text = questions.wording(asked, rng, held_out)
            assert "{" not in text, text
            assert asked.answer[-1] == "."
    assert kinds == wordings.TRAINED.keys()


def test_shapes_lie_inside_the_canvas_and_apart() -> None:
    for one in drawn(SCENES):
        shorter = min(one.width, one.height)
        for item in one.items:
            for middle, length in ((item.x, one.width), (item.y, one.height)):
                reach = item.radius * shorter / length - 0.03  # the edge may cut off a little
                assert reach <= middle <= 1 - reach
        for index, item in enumerate(one.items):
            for other in one.items[:index]:
                across, down = (item.x - other.x) * one.width, (item.y - other.y) * one.height
                assert (across**2 + down**2) ** 0.5 > (item.radius + other.radius) * shorter * 0.8


def test_counts_agree_with_the_scene() -> None:
    rng = Random(23)
    counted = 0
    for one in drawn(SCENES):
        for asked in questions.questions(one, rng):
            if asked.kind == "count":
                counted += 1
                assert f" {NAMES[len(one.items)]} shape" in asked.answer
            if asked.kind == "bars" and one.chart:
                counted += 1
                assert f" {NAMES[len(one.chart.bars)]} bars" in asked.answer
    assert counted > SCENES / 2


def test_the_tallest_bar_is_the_highest_in_the_picture() -> None:
    for one in drawn(SCENES):
        if not one.chart:
            continue
        boxes = render.bar_boxes(one.chart, (one.width, one.height))
        tops = {bar.color: box[1] for bar, box in zip(one.chart.bars, boxes, strict=True)}
        asked = next(asked for asked in questions.questions(one, Random(1)) if asked.kind == "tallest")
        assert asked.answer == f"The {min(tops, key=tops.__getitem__)} bar is the tallest."


def test_the_middle_of_a_shape_has_its_color() -> None:
    for one in drawn(200):
        picture = np.asarray(render.draw(one)).astype(int)
        for item in one.items:
            pixel = picture[int(item.y * one.height), int(item.x * one.width)]
            assert np.abs(pixel - np.array(item.rgb)).max() <= max(3, 6 * one.noise), item


def test_classes_name_what_lies_in_the_patches() -> None:
    square = scene.Item("square", "red", (255, 0, 0), 0.25, 0.25, 0.2)
    things, colors = render.classes(scene.Scene(100, 100, (255, 255, 255), 0.0, (square,)), prepare.GRID)
    side = prepare.GRID
    assert things.reshape(side, side)[2, 2] == scene.SHAPES.index("square") + 1
    assert colors.reshape(side, side)[2, 2] == render.COLOR_CLASS["red"]
    assert not things.reshape(side, side)[5:].any()


def test_no_two_shapes_have_the_same_of_nine_places() -> None:
    several = [found for found in drawn(SCENES) if len(found.items) > 1]
    for found in several:
        ninths = [(questions.cell(item.x), questions.cell(item.y)) for item in found.items]
        assert None not in {part for place in ninths for part in place}
        assert len(set(ninths)) == len(ninths)
        assert ninths == sorted(ninths, key=lambda place: (place[1], place[0])), "in reading order"
    assert len(several) > SCENES / 4


def test_pictures_of_more_than_three_shapes_have_them_alike() -> None:
    for found in drawn(SCENES):
        if len(found.items) > 3:
            assert len(pairs_of([found])) == 1
            (asked,) = (asked for asked in questions.questions(found, Random(1)) if asked.kind == "describe")
            assert asked.answer.lower().startswith(f"{NAMES[len(found.items)]} {found.items[0].color} ")


def test_facts_count_and_read() -> None:
    for one in drawn(300):
        facts = labels.facts_of(one)
        assert len(facts) == labels.NUM_FACTS
        assert facts[0] == sum(facts[1 : 1 + len(scene.SHAPES)]) == len(one.items)
        tens, units = facts[-5:-3]
        read = "".join(str(digit) for digit in (tens, units) if digit < 10)
        assert read == (one.number.text if one.number else "")


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (400, 1), (120, 120), (300, 97)])
def test_prepared_pictures_are_squares(size: tuple[int, int]) -> None:
    square = prepare.prepare(Image.new("RGB", size, (10, 200, 30)))
    assert square.shape == (prepare.SIDE, prepare.SIDE, 3)
    assert (square == np.array([10, 200, 30])).all()
