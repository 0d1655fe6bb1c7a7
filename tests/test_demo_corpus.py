"""The demo model's training text: held-out wordings stay out of it, sums are right, lists have what was asked for."""

from random import Random

import pytest

from demo.corpus import facts, frames, tasks
from demo.corpus.mix import sample_document

DOCUMENTS = 4000


def fixed_part(wording: str) -> str:
    """The words of a held-out wording before its slot, in small letters."""
    return wording.split("{")[0].strip().lower()


@pytest.mark.parametrize("wording", facts.HELD_OUT + facts.HELD_OUT_QUESTIONS)
def test_held_out_wording_is_recognized(wording: str) -> None:
    assert frames.near_held_out(wording.replace("{x}", "the Moon").replace("{q}", "what is a cat?"))


def test_training_documents_hold_no_held_out_wording() -> None:
    rng = Random(17)
    texts = ["".join(text for text, _ in sample_document(rng)).lower() for _ in range(DOCUMENTS)]
    for wording in facts.HELD_OUT + facts.HELD_OUT_QUESTIONS:
        assert not [text for text in texts if fixed_part(wording) in text], wording


def test_frames_vary_and_keep_the_name() -> None:
    rng = Random(17)
    drawn = [frames.topic_frame(rng) for _ in range(DOCUMENTS)]
    assert all(frame.count("{x}") == 1 for frame in drawn)
    assert len(set(drawn)) > DOCUMENTS / 2


def test_small_sums_are_right_and_never_negative() -> None:
    rng = Random(17)
    for _ in range(DOCUMENTS):
        a, sign, b, result = tasks.small_sum(rng)
        assert result == (a + b if sign == "+" else a - b) >= 0


def test_lists_have_as_many_different_items_as_asked_for() -> None:
    rng = Random(17)
    counted = 0
    for _ in range(DOCUMENTS):
        prompt, answer = tasks.list_pair(rng)
        asked = [tasks.WORDS.index(word) for word in prompt.strip(".?").split(" ") if word in tasks.WORDS]
        items = [line.split(" ", 1)[-1] for line in answer.splitlines()]
        if asked and len(items) > 1:
            counted += 1
            assert len(items) == len(set(items)) == asked[0], prompt
    assert counted > 100
