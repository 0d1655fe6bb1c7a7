"""Durations as people and Ollama's clients write them."""

from __future__ import annotations

import time

import pytest

from dragoman.parameters import seconds_of


def test_every_form_has_its_seconds() -> None:
    for text, seconds in {
        "10m": 600, "1h30m": 5400, "250ms": 0.25, "1.5s": 1.5, ".5s": 0.5, "90": 90, "2.5": 2.5, "0": 0, "-1": -1,
        "-5m": -300, "+3s": 3, "1m0.5s": 60.5, "20us": 2e-5, "20µs": 2e-5, "7ns": 7e-9,
    }.items():  # fmt: skip
        assert seconds_of(text) == pytest.approx(seconds), text
    for text in ("", "soon", "m", "5 m", "1h 30m", "--5s", "1e3", "nan", "inf", "5d", "٣s", "3s-", "-"):
        with pytest.raises(ValueError, match=text or "^$"):
            seconds_of(text)


def test_a_text_of_any_length_is_read_at_once() -> None:
    begun = time.process_time()
    for length in (500, 100_000):
        for text in ("1" * length + "x", "1s" * length + "x", "1." * length):
            with pytest.raises(ValueError, match="1"):
                seconds_of(text)
    assert seconds_of("0" * 500 + "7") == 7
    assert time.process_time() - begun < 2
