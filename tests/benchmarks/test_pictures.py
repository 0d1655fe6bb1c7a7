"""The benchmark of pictures: a model that loads, requests with pictures, what counts as a token, the gaps' arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pictures import CHAT, Asking, fold, gaps_in, tell, tower_windows
from benchmarks.serving.model import BenchShape
from benchmarks.serving.picture_model import PICTURE_TOKENS, PLACEHOLDER_ID, TowerShape, draw_jpeg, write_picture_model
from dragoman.models import ModelOptions, load_model
from dragoman.pictures import PictureLimits
from dragoman.pictures.decoding import decode_picture

SMALL_TOWER = TowerShape(32, 3, 2, 64, image_size=28, patch_size=7)
SMALL_DECODER = BenchShape(64, 2, 2, 1, 32, 64)


def test_the_model_sees(tmp_path: Path) -> None:
    write_picture_model(tmp_path, SMALL_TOWER, SMALL_DECODER)
    loaded = load_model(tmp_path, ModelOptions("int8"))
    assert loaded.tower is not None
    assert loaded.tower.facts.placeholder_id == PLACEHOLDER_ID


def test_the_real_tower_makes_as_many_tokens_as_the_texts_have() -> None:
    shape = TowerShape()
    assert (shape.image_size // shape.patch_size) ** 2 == PICTURE_TOKENS


def content_of(asking: Asking, number: int) -> list[dict[str, Any]]:
    body = json.loads(asking.request(CHAT, number))
    assert body["max_tokens"] == asking.output_tokens
    content: list[dict[str, Any]] = body["messages"][0]["content"]
    return content


def test_new_pictures_differ_and_known_ones_do_not() -> None:
    new = [content_of(Asking("new", 8), number)[0] for number in (1, 2)]
    assert new[0] != new[1]
    known = [content_of(Asking("known", 8), number) for number in (1, 2)]
    assert known[0][0] == known[1][0]
    assert known[0][1] != known[1][1]
    assert [part["type"] for part in content_of(Asking("moved", 8), 1)] == ["text", "image_url", "text"]
    assert [part["type"] for part in content_of(Asking("text", 8), 1)] == ["text"]


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        ({"choices": [{"delta": {"role": "assistant", "content": None}}]}, False),
        ({"choices": [{"delta": {"content": "ab"}}]}, True),
        ({"choices": [{"delta": {}, "finish_reason": "length"}]}, False),
        ({"choices": [], "usage": {}}, False),
        ({"error": {"message": "no"}}, True),
    ],
)
def test_only_events_with_output_count(event: dict[str, Any], counts: bool) -> None:
    assert CHAT.is_piece(b"data: " + json.dumps(event).encode()) is counts


def test_gaps_count_where_they_touch_a_window() -> None:
    times = [[0.0, 1.0, 3.0, 4.0], [2.5, 2.75, 9.0]]
    assert list(gaps_in(times, [(1.5, 2.6)])) == [2.0, 0.25]
    assert list(gaps_in(times, [(0.0, 0.5), (5.0, 6.0)])) == [1.0, 6.25]


def test_a_tower_computes_before_what_a_prompt_takes_at_the_most() -> None:
    assert tower_windows([(0.0, 3.0), (10.0, 11.0)], [(20.0, 21.0), (30.0, 31.5)]) == [(0.0, 1.5)]
    assert tower_windows([(0.0, 1.0)], [(2.0, 4.0)]) == []


def turn(first_ms: float, gaps: list[float] | None) -> dict[str, Any]:
    kinds = ("new", "known", "moved", "text")
    result: dict[str, Any] = {"first_token_ms": {kind: [first_ms] for kind in kinds}, "pictures_per_s": 2.0}
    return result if gaps is None else result | {"gaps_ms": {"quiet": gaps, "new": [3 * gap for gap in gaps]}}


def test_rounds_are_folded_and_told_as_ratios() -> None:
    ours = fold([turn(100, [10.0, 10.0]), turn(200, [10.0, 20.0])])
    assert ours["first_token_ms"]["new"] == 150
    assert ours["gaps_ms"]["quiet"] == {"p50": 10.0, "p99": 20.0, "longest": 20.0, "count": 4}
    lines = list(tell({"ours": ours, "peer": fold([turn(300, None)]) | {"pictures_per_s": 1.0}}))
    text = "\n".join(lines)
    assert "300 ms, 2.00 times ours" in text
    assert "1.00 pictures/s, ours is 2.00 times that" in text
    assert "p99 by the quiet median 6.00" in text


def test_a_drawn_picture_is_one_that_the_server_reads() -> None:
    picture = decode_picture(draw_jpeg(3), PictureLimits(), "here")
    assert (picture.width, picture.height) == (640, 480)
