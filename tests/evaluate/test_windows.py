"""How a text is cut into windows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dragoman.tools.evaluate import cut_windows


@given(st.integers(1, 60), st.integers(2, 20), st.data(), st.booleans())
def test_every_token_behind_another_is_scored_once(length: int, size: int, data: st.DataObject, starts: bool) -> None:
    start = (99,) if starts else ()
    stride = data.draw(st.integers(1, size - len(start)))
    tokens = list(range(length))
    windows = list(cut_windows(tokens, size, stride, start))
    scored = [token for window in windows for token in window.token_ids[window.first_scored :]]
    assert len(scored) == len(set(scored))
    assert all(len(window.token_ids) <= size and window.first_scored >= 1 for window in windows)
    assert all(window.token_ids[: len(start)] == start for window in windows)
    if stride < size - len(start) or start:
        assert scored == tokens[0 if start else 1 :]  # something stands before each but the first


def test_a_shorter_stride_lets_tokens_see_more() -> None:
    windows = list(cut_windows(range(10), 4, 2))
    assert [(window.token_ids, window.first_scored) for window in windows] == [
        ((0, 1, 2, 3), 1),
        ((2, 3, 4, 5), 2),
        ((4, 5, 6, 7), 2),
        ((6, 7, 8, 9), 2),
    ]
