"""Memory for pictures: lent in order, bounded for all requests together, and back however a request ends."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dragoman.errors import Overloaded
from dragoman.pictures import PictureFault, PictureLimits, PictureLoader, PictureSource, decoding
from dragoman.pictures.memory import PictureMemory, Pool
from dragoman.types import Picture
from tests.pictures.drawing import data_url, png
from tests.support.patience import PATIENCE_S, run


def test_bytes_are_lent_in_order_and_too_many_to_one_alone() -> None:
    async def work() -> None:
        pool = Pool(100)
        first = await pool.lend(60)
        large, small = (asyncio.create_task(pool.lend(size)) for size in (1000, 10))
        await asyncio.sleep(0)
        assert (large.done(), small.done(), pool.num_lent) == (False, False, 60)
        first.give_back()
        first.give_back()
        loan = await large
        assert (small.done(), pool.num_lent) == (False, 1000)
        loan.shrink(95)
        assert not small.done()
        with loan.part(5):
            loan.give_back()
        assert pool.num_lent <= 10
        await small
        del small, loan, large
        await asyncio.sleep(0)
        gc.collect()
        assert pool.num_lent == 0, "what nobody knows of is back"

    run(work)


def test_a_long_wait_is_refused_and_a_cancelled_one_blocks_no_other() -> None:
    async def work() -> None:
        pool = Pool(100, max_wait_s=0.05)
        with await pool.lend(90):
            with pytest.raises(Overloaded, match=r"left no memory for 0\.05 s \(max_image_memory\)"):
                await pool.lend(50)
            waiting = asyncio.create_task(pool.lend(50))
            await asyncio.sleep(0)
            behind = asyncio.create_task(pool.lend(10))
            waiting.cancel()
            with await behind:
                assert pool.num_lent == 100
        assert pool.num_lent == 0

    run(work)


def test_loans_return_on_any_thread() -> None:
    pool = Pool(10)

    def borrow(_: int) -> None:
        async def work() -> None:
            for size in (3, 7, 10, 25):
                with await pool.lend(size):
                    assert pool.num_lent <= 25

        run(work)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(borrow, range(40)))
    assert pool.num_lent == 0


class Watched:
    """Decodes as ever, once it is let, and notes how much is lent meanwhile."""

    def __init__(self, memory: PictureMemory, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory = memory
        self.most = 0
        self.num_begun = 0
        self.opened = threading.Event()
        self.opened.set()
        self._decode = decoding.decode_picture
        monkeypatch.setattr(decoding, "decode_picture", self)

    def __call__(self, data: bytes, limits: PictureLimits, path: str) -> Picture:
        self.num_begun += 1
        self.most = max(self.most, sum(self.lent))
        assert self.opened.wait(PATIENCE_S)
        return self._decode(data, limits, path)

    @property
    def lent(self) -> tuple[int, ...]:
        memory = self.memory
        return tuple(pool.num_lent for pool in (memory.sent, memory.fetched, memory.decoding, memory.pictures))

    async def all_back(self) -> None:
        while any(self.lent):
            gc.collect()
            await asyncio.sleep(0)


def test_pictures_of_many_requests_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files of many pixels: all requests are served, some after others."""
    most = 16_000_000
    memory = PictureMemory(most, max_wait_s=PATIENCE_S)
    watched = Watched(memory, monkeypatch)
    loader = PictureLoader(memory=memory)
    sources = [PictureSource(data_url(png(500, 400)), "images[0]")] * 4

    async def request() -> None:
        pictures = await loader.load_all(sources)
        assert memory.pictures.num_lent >= 3 * sum(one.width * one.height for one in pictures) == 2_400_000
        await asyncio.sleep(0)

    async def work() -> None:
        await asyncio.gather(*(request() for _ in range(12)))
        await watched.all_back()

    run(work)
    assert watched.num_begun == 48
    assert watched.most < most, "of 29 MB of pixels alone"


def test_memory_returns_however_a_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = PictureMemory(16_000_000, max_wait_s=PATIENCE_S)
    watched = Watched(memory, monkeypatch)
    loader = PictureLoader(PictureLimits(max_pixels=1_000_000), memory=memory)
    good, damaged = data_url(png(800, 800)), data_url(png(800, 800)[:-900])

    def load(*urls: str) -> Awaitable[tuple[Picture, ...]]:
        return loader.load_all([PictureSource(url, "images[0]") for url in urls])

    async def fails() -> None:
        for urls in ([damaged], [good, damaged], [good, data_url(b"text")], ["data:", good], [good] * 7):
            with pytest.raises(PictureFault):
                await load(*urls)
            await watched.all_back()

    async def succeeds() -> None:
        picture = (await load(good, good))[0]
        while watched.lent != (0, 0, 0, 3 * 640_000):
            gc.collect()
            await asyncio.sleep(0)
        assert picture.width == 800

    async def leaves_while_it_is_decoded() -> None:
        watched.opened.clear()
        request = asyncio.ensure_future(load(good))
        num_before = watched.num_begun
        while watched.num_begun == num_before:  # noqa: ASYNC110 (threads tell nobody)
            await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert watched.lent == (0, 0, 12 * 640_000, 3 * 640_000), "as long as its thread has it"
        watched.opened.set()

    async def waits_in_vain() -> None:
        monkeypatch.setattr(memory.pictures, "_max_wait_s", 0.05)
        with await memory.pictures.lend(7_000_000), pytest.raises(Overloaded):
            await load(good)

    for work in (succeeds, fails, leaves_while_it_is_decoded, waits_in_vain):

        async def ends(work: Callable[[], Awaitable[None]] = work) -> None:
            await work()
            await watched.all_back()

        run(ends)
