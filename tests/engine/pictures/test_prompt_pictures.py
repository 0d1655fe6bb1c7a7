"""Where pictures stand in a prompt: positions as transformers counts them, cuts, parts, names of blocks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engine.rolling.pictures import EmbeddedPicture, PromptPictures
from dragoman.errors import InvalidRequest
from dragoman.models import ModelOptions
from dragoman.models.facts import PictureFacts
from dragoman.types import Picture, PictureSpan
from tests.engine.naive import make_request
from tests.support.vision_checkpoint import prompt_pieces, token_ids
from tests.support.vision_model import SeeingModel

PLACEHOLDER = 9
LAYOUT = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12)), min_size=1, max_size=5)


def prompt_of(
    layout: list[tuple[int, int]], *, is_bidirectional: bool = True, digests: str = "abcde"
) -> tuple[PromptPictures, list[PictureSpan], int]:
    """Pictures of so many placeholders, each behind so many words; their spans, and the tokens of the prompt."""
    ids: list[int] = []
    spans = []
    for (num_words, length), digest in zip(layout, digests, strict=False):
        ids += [1] * num_words
        spans.append(PictureSpan(Picture(1, 1, b"\0\0\0", digest), len(ids), length))
        ids += [PLACEHOLDER] * length
    ids += [1, 1]
    request = msgspec.structs.replace(make_request(ids, 4), pictures=tuple(spans))
    embedded = [EmbeddedPicture(np.arange(s.length, dtype=np.float32)[:, None] + s.begin, (0, 0)) for s in spans]
    facts = PictureFacts(PLACEHOLDER, is_bidirectional=is_bidirectional)
    return PromptPictures(request, embedded, facts), spans, len(ids)


@given(LAYOUT, st.data())
def test_a_cut_is_the_nearest_place_outside_of_all_pictures(layout: list[tuple[int, int]], data: st.DataObject) -> None:
    pictures, spans, num_tokens = prompt_of(layout)
    place = data.draw(st.integers(0, num_tokens))
    legal = [p for p in range(num_tokens + 1) if not any(s.begin < p < s.begin + s.length for s in spans)]
    assert pictures.cut_before(place) == max(p for p in legal if p <= place)
    assert pictures.cut_from(place) == min(p for p in legal if p >= place)
    assert pictures.longest_span == max(s.length for s in spans)
    free, _, _ = prompt_of(layout, is_bidirectional=False)
    assert free.cut_before(place) == free.cut_from(place) == place
    assert free.longest_span == 0


@given(LAYOUT, st.data())
def test_a_part_has_the_embeddings_of_its_placeholders(layout: list[tuple[int, int]], data: st.DataObject) -> None:
    pictures, spans, num_tokens = prompt_of(layout)
    begin = data.draw(st.integers(0, num_tokens))
    end = data.draw(st.integers(begin, num_tokens + 3))
    found = [
        (int(row), float(vector[0]))
        for rows, vectors in pictures.between(begin, end)
        for row, vector in zip(rows, vectors, strict=True)
    ]
    inside = [p for s in spans for p in range(s.begin, s.begin + s.length) if begin <= p < end]
    assert found == [(p, float(p)) for p in inside]


@given(LAYOUT, st.integers(1, 8))
def test_blocks_are_named_by_the_pictures_in_them(layout: list[tuple[int, int]], block_size: int) -> None:
    pictures, spans, num_tokens = prompt_of(layout)
    others, _, _ = prompt_of(layout, digests="abcdX"[: len(layout) - 1] + "Y")
    keys, other_keys = pictures.block_keys(block_size), others.block_keys(block_size)
    changed = {p // block_size for p in range(spans[-1].begin, spans[-1].begin + spans[-1].length)}
    for block in range(num_tokens // block_size):
        assert (keys.get(block) != other_keys.get(block)) == (block in changed)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_three_positions_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    model = SeeingModel(name, tmp_path, ModelOptions(weight_type="f32"))
    for index in range(len(model.case["prompts"]) - 1):
        ids, spans, embedded = [], [], []
        for kind, piece in prompt_pieces(name, model.case, index):
            if kind == "text":
                ids += token_ids(model.case, piece)
                continue
            picture, picture_ids = model.picture(piece), model.picture_ids(piece)
            layout = model.processor.layout(picture.width, picture.height, "auto")
            begin = len(ids) + picture_ids.index(model.vision.facts.placeholder_id)
            spans.append(PictureSpan(picture, begin, layout.num_embeddings))
            embedded.append(EmbeddedPicture(np.zeros((layout.num_embeddings, 1), dtype=np.float32), layout.grid))
            ids += picture_ids
        assert ids == model.prompt_ids(index)
        request = msgspec.structs.replace(make_request(ids, 4), pictures=tuple(spans))
        pictures = PromptPictures(request, embedded, model.vision.facts)
        expected = model.positions(index)
        middle = len(ids) // 2
        parts = [pictures.positions_between(0, middle), pictures.positions_between(middle, len(ids) + 3)]
        found = np.concatenate(parts, axis=1)
        assert (found[:, : len(ids)] == expected).all()
        assert (found[:, len(ids) :] == expected.max() + 1 + np.arange(3)).all()


def test_placeholders_and_embeddings_must_match() -> None:
    span = PictureSpan(Picture(7, 3, b"", "a"), 1, 2)
    request = msgspec.structs.replace(make_request([1, PLACEHOLDER, PLACEHOLDER, 1], 4), pictures=(span,))
    three = EmbeddedPicture(np.zeros((3, 1), dtype=np.float32), (0, 0))
    with pytest.raises(InvalidRequest, match=r"7 x 3 pixels has 2 placeholders in the prompt, must have 3"):
        PromptPictures(request, [three], PictureFacts(PLACEHOLDER))
    two = EmbeddedPicture(np.zeros((2, 1), dtype=np.float32), (2, 2))
    with pytest.raises(InvalidRequest):
        PromptPictures(request, [two], PictureFacts(PLACEHOLDER))
