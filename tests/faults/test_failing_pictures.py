"""A picture that cannot be embedded: the calls that have it fail, and nobody else, with pictures or without."""

from __future__ import annotations

from collections.abc import Generator

import msgspec
import numpy as np
import numpy.typing as npt

from dragoman.models.facts import PictureFacts
from dragoman.types import Detail, Picture, PictureSpan
from tests.engine.naive import make_request
from tests.faults.neighbours import check_told, victims
from tests.faults.seeing import PLACEHOLDER_ID, seeing_parts, with_pictures
from tests.support.small_server import LetterRunner, run, small_server

STAND_IN = ord("p")  # the token that an embedding counts as
GOOD, BAD = 1, 2  # widths


class FailingTower:
    """Embeds pictures that begin a prompt and are a dot; fails for others."""

    def __init__(self) -> None:
        self.facts = PictureFacts(PLACEHOLDER_ID)
        self.num_failures = 0

    def embed(self, picture: Picture, detail: Detail) -> Generator[None, None, npt.NDArray[np.float32]]:
        yield
        if picture.width == BAD:
            self.num_failures += 1
            raise FloatingPointError("no such colour")
        yield
        return np.array([[STAND_IN, 0, 0]], dtype=np.float32)

    def grid(self, picture: Picture, detail: Detail) -> tuple[int, int]:
        return (0, 0)

    def close(self) -> None:
        """Nothing to release."""


def test_a_picture_that_cannot_be_embedded() -> None:
    dot = PictureSpan(Picture(GOOD, 1, bytes(3), "dot"), 0, 1)
    seeing, plain = (
        make_request([first, 1, 2, 3], max_tokens=24, name="seeing", ignore_eos=True)
        for first in (PLACEHOLDER_ID, STAND_IN)
    )
    seeing = msgspec.structs.replace(seeing, pictures=(dot,))

    async def test() -> None:
        tower = FailingTower()
        async with small_server(seeing_parts(tower, LetterRunner(num_blocks=200))) as server:
            calls = with_pictures([BAD])
            for calling, call in zip(calls, await victims(server, calls, [(seeing, plain)]), strict=True):
                check_told(calling, call, "a picture could not be embedded: FloatingPointError: no such colour")
            assert tower.num_failures
            again = server.call(calls[0])
            num_before = tower.num_failures
            await again.ended()
            assert tower.num_failures == num_before + 1, "a failure is not remembered"
            await server.settle()

    run(test)
