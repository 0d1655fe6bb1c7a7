"""The display of loading stages."""

from __future__ import annotations

import io

import pytest

from dragoman.cli.progress import ProgressDisplay


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock set by a test."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def show(stream: io.StringIO, clock: Clock) -> str:
    display = ProgressDisplay(stream, clock)
    for at, stage, fraction in [
        (0.0, "building", 0.0),
        (0.01, "building", 0.1),
        (1.0, "building", 0.5),
        (2.5, "compiling", 0.0),
    ]:
        clock.now = at
        display(stage, fraction)
    clock.now = 4.0
    display.finish()
    display.finish()
    return stream.getvalue()


def test_without_a_terminal_each_stage_is_one_line_with_its_time(clock: Clock) -> None:
    assert show(io.StringIO(), clock) == "  building: 2.5 s\n  compiling: 1.5 s\n"


def test_on_a_terminal_the_running_stage_is_redrawn_not_too_often(clock: Clock) -> None:
    clear = "\r\x1b[K"
    assert show(Terminal(), clock) == (
        f"{clear}  building ...{clear}  building ...  50%{clear}  building: 2.5 s\n"
        f"{clear}  compiling ...{clear}  compiling: 1.5 s\n"
    )


def test_a_long_stage_shows_the_time_left(clock: Clock) -> None:
    stream = Terminal()
    display = ProgressDisplay(stream, clock, "m")
    for at, fraction in ((0.0, 0.0), (4.0, 0.2), (10.0, 0.25), (20.0, 1.0)):
        clock.now = at
        display("measuring", fraction)
    lines = stream.getvalue().split("\x1b[K")
    assert lines[1:] == [
        "  m: measuring ...\r",
        "  m: measuring ...  20%\r",
        "  m: measuring ...  25%, about 30 s left\r",
        "  m: measuring ... 100%",
    ]
