"""A picture that cannot be embedded, or has no memory: its calls fail, and nobody else, with pictures or without."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.config import RollingConfig
from dragoman.models.facts import PictureFacts
from dragoman.pictures import PictureLoader
from dragoman.pictures.memory import PictureMemory
from dragoman.types import Detail, Picture, PictureSpan
from tests.engine.naive import make_request
from tests.faults.neighbours import check_told, victims
from tests.faults.seeing import PLACEHOLDER_ID, seeing_parts, with_pictures
from tests.support.every_api import Calling
from tests.support.small_server import LetterRunner, SmallServer, run, small_server

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


def test_memory_of_pictures_comes_back_from_calls_of_every_api() -> None:
    """From those that are answered, fail, or leave; and who gets none is told so."""
    memory = PictureMemory(max_wait_s=0.05)
    lent = (memory.sent, memory.fetched, memory.decoding, memory.pictures)

    async def all_back() -> None:
        while any(pool.num_lent for pool in lent):
            gc.collect()
            await asyncio.sleep(0)

    async def ended(server: SmallServer, widths: Sequence[int]) -> None:
        for call in [server.call(calling) for calling in with_pictures(widths)]:
            await call.ended()

    async def left(server: SmallServer, calling: Calling) -> None:
        call = server.call(calling)
        while not memory.pictures.num_lent and not call.task.done():  # noqa: ASYNC110 (as above)
            await asyncio.sleep(0)
        call.leave()
        await call.ended()

    async def in_vain(server: SmallServer) -> None:
        callings = with_pictures([GOOD])
        for calling, call in zip(callings, [server.call(calling) for calling in callings], strict=True):
            check_told(calling, await call.ended(), "other requests' images left no memory for 0.05 s")

    async def test() -> None:
        parts = seeing_parts(FailingTower(), LetterRunner(num_blocks=2000), PictureLoader(memory=memory))
        parts.config = RollingConfig(prefix_cache="off")  # pictures are embedded for prompts from their beginning on
        async with small_server(parts) as server:
            for widths in ([GOOD], [BAD], [GOOD, BAD]):
                await ended(server, widths)
                await all_back()
            for calling in with_pictures([GOOD, GOOD]):
                await left(server, calling)
            await all_back()
            with await memory.pictures.lend(1 << 40):
                await in_vain(server)
            await all_back()
            await server.settle()

    run(test)
