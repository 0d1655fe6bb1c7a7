"""Who embeds pictures: once for all who ask, remembered, bounded, one failure at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from functools import wraps
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dragoman.engine.rolling.pictures import PictureEmbedder
from dragoman.errors import Cancelled, EngineDead, EngineFailed, Overloaded
from dragoman.models.facts import PictureFacts
from dragoman.types import Detail, Picture, PictureSpan
from tests.support.patience import PATIENCE_S

SIZE = 4 * 10  # bytes of a picture's embeddings


def span(name: str, detail: Detail = "auto") -> PictureSpan:
    """A picture that is known by its name."""
    return PictureSpan(Picture(1, 1, b"\0\0\0", name), 0, 1, detail)


class FakeTower:
    """Embeds a picture as ten times its number; waits while `is_open` is not set; fails for "bad"."""

    def __init__(self) -> None:
        self.facts = PictureFacts(placeholder_id=5)
        self.is_open = threading.Event()
        self.has_begun = threading.Event()
        self.embedded: list[tuple[str, Detail]] = []
        self.finished: list[str] = []
        self.is_closed = False

    def embed(self, picture: Picture, detail: Detail) -> Generator[None, None, npt.NDArray[np.float32]]:
        yield
        self.has_begun.set()
        assert self.is_open.wait(PATIENCE_S)
        self.embedded.append((picture.digest, detail))
        yield
        if picture.digest == "bad":
            raise ValueError("no such colour")
        self.finished.append(picture.digest)
        return np.full((1, SIZE // 4), int(picture.digest), dtype=np.float32)

    def grid(self, picture: Picture, detail: Detail) -> tuple[int, int]:
        return (1, 1)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def tower() -> FakeTower:
    tower = FakeTower()
    tower.is_open.set()
    return tower


@pytest.fixture
def embedder(tower: FakeTower) -> Iterator[PictureEmbedder]:
    embedder = PictureEmbedder(tower, cache_bytes=3 * SIZE, max_waiting=4)
    yield embedder
    tower.is_open.set()
    embedder.close()


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test to its end, or fail."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(test(*arguments, **named), 60)

        asyncio.run(bounded())

    return run


async def begun(tower: FakeTower, *tasks: asyncio.Task[Any]) -> None:
    """Return when the tasks have asked for their pictures, and the tower is at work."""
    await asyncio.sleep(0)  # a task asks before it waits for the first time
    assert not any(task.done() for task in tasks)
    assert await asyncio.to_thread(tower.has_begun.wait, 20)


@on_a_loop
async def test_pictures_come_in_their_order_with_their_grids(embedder: PictureEmbedder) -> None:
    found = await embedder.embed([span("3"), span("1"), span("3")])
    assert [picture.embeddings[0, 0] for picture in found] == [3, 1, 3]
    assert {picture.grid for picture in found} == {(1, 1)}


@on_a_loop
async def test_a_picture_is_embedded_once_for_all_who_ask(embedder: PictureEmbedder, tower: FakeTower) -> None:
    tower.is_open.clear()
    tasks = [asyncio.create_task(embedder.embed([span("7")])) for _ in range(4)]
    await begun(tower, *tasks)
    tower.is_open.set()
    assert {found[0].embeddings[0, 0] for found in await asyncio.gather(*tasks)} == {7}
    await embedder.embed([span("7")])
    assert tower.embedded == [("7", "auto")]
    assert (embedder.num_pictures, embedder.num_hits) == (5, 4)


@on_a_loop
async def test_what_is_looked_at_more_closely_is_another_picture(embedder: PictureEmbedder, tower: FakeTower) -> None:
    await embedder.embed([span("7", "low"), span("7", "high")])
    assert tower.embedded == [("7", "low"), ("7", "high")]


@on_a_loop
async def test_the_pictures_used_last_are_remembered_up_to_the_bound(
    embedder: PictureEmbedder, tower: FakeTower
) -> None:
    await embedder.embed([span("1"), span("2"), span("3")])
    await embedder.embed([span("1")])
    await embedder.embed([span("4")])  # in place of 2
    await embedder.embed([span("1"), span("3"), span("4")])
    assert len(tower.embedded) == 4
    await embedder.embed([span("2")])
    assert len(tower.embedded) == 5


@on_a_loop
async def test_a_failure_is_that_of_its_picture_alone(embedder: PictureEmbedder) -> None:
    good, bad = await asyncio.gather(embedder.embed([span("1")]), embedder.embed([span("bad")]), return_exceptions=True)
    assert isinstance(bad, EngineFailed)
    assert "no such colour" in str(bad)
    assert not isinstance(good, BaseException)
    with pytest.raises(EngineFailed):  # and is not remembered
        await embedder.embed([span("bad")])


@on_a_loop
async def test_more_pictures_than_may_wait_are_refused(embedder: PictureEmbedder, tower: FakeTower) -> None:
    tower.is_open.clear()
    waiting = asyncio.create_task(embedder.embed([span("1"), span("2"), span("3"), span("4")]))
    await begun(tower, waiting)
    with pytest.raises(Overloaded, match="4 pictures are waiting"):
        await embedder.embed([span("5")])
    again = asyncio.create_task(embedder.embed([span("2")]))  # which waits already
    await begun(tower, again)
    tower.is_open.set()
    await asyncio.gather(waiting, again)


@on_a_loop
async def test_a_picture_that_nobody_waits_for_is_not_begun(embedder: PictureEmbedder, tower: FakeTower) -> None:
    tower.is_open.clear()
    first = asyncio.create_task(embedder.embed([span("1")]))
    await begun(tower, first)
    left, stays = (asyncio.create_task(embedder.embed([span("2"), span(other)])) for other in ("3", "4"))
    await begun(tower, left, stays)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    tower.is_open.set()
    await asyncio.gather(first, stays)
    assert [name for name, _ in tower.embedded] == ["1", "2", "4"]


@on_a_loop
async def test_a_picture_whose_last_request_has_gone_is_not_embedded_to_the_end(
    embedder: PictureEmbedder, tower: FakeTower
) -> None:
    tower.is_open.clear()
    gone = asyncio.create_task(embedder.embed([span("1")]))
    await begun(tower, gone)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    tower.is_open.set()
    assert (await embedder.embed([span("2")]))[0].embeddings[0, 0] == 2
    assert tower.finished == ["2"]
    assert (await embedder.embed([span("1")]))[0].embeddings[0, 0] == 1, "whoever wants it later gets it"
    assert tower.finished == ["2", "1"]


@on_a_loop
async def test_closing_answers_whoever_waits(tower: FakeTower) -> None:
    tower.is_open.clear()
    embedder = PictureEmbedder(tower)
    first, waits = (asyncio.create_task(embedder.embed([span(name)])) for name in ("1", "2"))
    await begun(tower, first, waits)
    closing = asyncio.create_task(asyncio.to_thread(embedder.close))
    with pytest.raises(Cancelled):
        await waits
    tower.is_open.set()
    await closing
    with pytest.raises(Cancelled, match="shutting down"):  # behind the part that was at work
        await first
    assert tower.is_closed
    with pytest.raises(EngineDead):
        await embedder.embed([span("3")])
