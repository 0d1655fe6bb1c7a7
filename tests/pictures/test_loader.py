"""`PictureLoader`: several pictures at a time, in order, within bounds, and given up when nobody waits."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from dragoman.errors import Overloaded, Unavailable
from dragoman.pictures import PictureFault, PictureLimits, PictureLoader, PictureSource, loader
from dragoman.pictures.addresses import Address
from dragoman.pictures.fetching import Fetcher
from dragoman.pictures.memory import PictureMemory
from tests.pictures.drawing import colours, data_url, pixels_of, png
from tests.pictures.hosts import PUBLIC, MadeUpNetwork, hosting, ok
from tests.support.patience import PATIENCE_S, run, until
from tests.support.tables import table

NAME = "messages[0].content[1].image_url.url"
HOST = "pictures.example"


def sources(*urls: str) -> list[PictureSource]:
    return [PictureSource(url, f"images[{place}]") for place, url in enumerate(urls)]


@pytest.fixture
def plain() -> Iterator[PictureLoader]:
    """Without hosts."""
    made = PictureLoader()
    yield made
    made.close()


class Gate(MadeUpNetwork):
    """A network whose resolver does not answer until it is let."""

    def __init__(self) -> None:
        super().__init__({})
        self.num_asked = 0
        self.opened = threading.Event()
        self._lock = threading.Lock()

    def resolve(self, host: str, port: int) -> list[Address]:
        """As `Network`, when it is let."""
        with self._lock:
            self.num_asked += 1
        self.opened.wait(PATIENCE_S)
        return super().resolve(host, port)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.opened.set()


def gated(gate: Gate, timeout_s: float) -> PictureLoader:
    limits = PictureLimits(timeout_s=timeout_s, allowed_hosts=("*",))
    return PictureLoader(limits, Fetcher(limits, gate), PictureMemory(2**40))


def test_a_picture_in_a_data_url(plain: PictureLoader) -> None:
    picture = run(lambda: plain.load(data_url(png()), NAME))
    assert (pixels_of(picture) == colours()).all()


def test_a_picture_at_an_address() -> None:
    with hosting(ok(png(), "Content-Type: text/plain")) as host:
        limits = PictureLimits(allowed_hosts=(HOST,), timeout_s=PATIENCE_S)
        fetcher = Fetcher(limits, MadeUpNetwork({HOST: [[PUBLIC]]}, {PUBLIC: host.port}))
        picture = run(lambda: PictureLoader(limits, fetcher).load(f"http://{HOST}/", NAME))
    assert (pixels_of(picture) == colours()).all()


def test_what_is_fetched_is_a_picture_or_a_fault() -> None:
    with hosting(ok(b"<html></html>", "Content-Type: image/png")) as host:
        limits = PictureLimits(allowed_hosts=(HOST,), timeout_s=PATIENCE_S)
        fetcher = Fetcher(limits, MadeUpNetwork({HOST: [[PUBLIC]]}, {PUBLIC: host.port}))
        with pytest.raises(PictureFault, match="a png, jpeg, webp, gif or bmp image") as caught:
            run(lambda: PictureLoader(limits, fetcher).load(f"http://{HOST}/", NAME))
    assert caught.value.param == NAME


def test_the_operators_hosts_are_those_of_the_limits() -> None:
    limited = PictureLoader(PictureLimits(allowed_hosts=("a.example",)))
    with pytest.raises(PictureFault, match="must be at a host that the operator allows"):
        run(lambda: limited.load("http://b.example/", NAME))


@table("url", ["http://a.example/", "https://a.example/", "file:///etc/passwd", "/etc/passwd", "hello", ""])
def test_without_allowed_hosts_only_data_urls_are_accepted(plain: PictureLoader, url: str) -> None:
    with pytest.raises(PictureFault, match="this server fetches no images") as caught:
        run(lambda: plain.load(url, NAME))
    assert (caught.value.param, caught.value.problem) == (NAME, "address")


def test_pictures_come_in_their_order(plain: PictureLoader) -> None:
    pictures = run(lambda: plain.load_all(sources(*(data_url(png(20 - n, 3)) for n in range(12)))))
    assert [picture.width for picture in pictures] == [20 - n for n in range(12)]
    assert run(lambda: plain.load_all([])) == ()


def test_the_one_that_fails_is_named(plain: PictureLoader) -> None:
    urls = [data_url(png())] * 5 + [data_url(b"text")] + [data_url(png())] * 5
    with pytest.raises(PictureFault) as caught:
        run(lambda: plain.load_all(sources(*urls)))
    assert caught.value.param == "images[5]"


def test_the_pictures_of_one_request_are_bounded_together() -> None:
    small = PictureLoader(PictureLimits(max_pixels=20))
    assert len(run(lambda: small.load_all(sources(*[data_url(png())] * 4)))) == 4
    with pytest.raises(PictureFault, match="80 pixels in all"):
        run(lambda: small.load_all(sources(*[data_url(png())] * 5)))
    assert len(run(lambda: small.load_all(sources(*[data_url(png())] * 4)))) == 4


def test_a_slow_name_resolution_is_given_up(gate: Gate) -> None:
    slow = gated(gate, timeout_s=0.1)
    with pytest.raises(PictureFault, match=r"within 0\.1 seconds") as caught:
        run(lambda: slow.load("http://a.example/", NAME))
    assert caught.value.problem == "fetch"


def test_slow_hosts_do_not_delay_data_urls(gate: Gate) -> None:
    async def work() -> int:
        waiting = [asyncio.create_task(slow.load(f"http://{n}.a.example/", NAME)) for n in range(40)]
        await until(lambda: gate.num_asked == loader.FETCHING_THREADS)
        picture = await slow.load(data_url(png()), NAME)
        assert not any(task.done() for task in waiting)
        gate.opened.set()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(outcome, PictureFault) for outcome in outcomes)
        return picture.width

    slow = gated(gate, PATIENCE_S)
    assert run(work) == 5


def test_a_request_takes_a_few_places_in_the_queue(gate: Gate) -> None:
    async def work() -> None:
        many = asyncio.create_task(slow.load_all(sources(*(f"http://{n}.a.example/" for n in range(50)))))
        await until(lambda: gate.num_asked == loader.PICTURES_AT_A_TIME)
        other = asyncio.create_task(slow.load("http://b.example/", NAME))
        await until(lambda: gate.num_asked == loader.PICTURES_AT_A_TIME + 1)
        gate.opened.set()
        await asyncio.gather(many, other, return_exceptions=True)

    slow = gated(gate, PATIENCE_S)
    run(work)


def test_pictures_beyond_the_queue_are_refused(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        waiting = [asyncio.create_task(slow.load(f"http://{n}.a.example/", NAME)) for n in range(threads + 3)]
        await until(lambda: gate.num_asked == threads)
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await slow.load("http://b.example/", NAME)
        gate.opened.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(PictureFault):  # there is room again
            await slow.load("http://b.example/", NAME)

    threads = loader.FETCHING_THREADS
    monkeypatch.setattr(loader, "MAX_WAITING", 3)
    slow = gated(gate, PATIENCE_S)
    run(work)


def test_a_fetch_whose_turn_does_not_come_in_time_is_refused(gate: Gate) -> None:
    async def work() -> None:
        first = [asyncio.create_task(long.load(f"http://{n}.a.example/", NAME)) for n in range(loader.FETCHING_THREADS)]
        await until(lambda: gate.num_asked == loader.FETCHING_THREADS)
        long.limits = PictureLimits(timeout_s=0.1, allowed_hosts=("*",))
        with pytest.raises(Overloaded):
            await long.load("http://b.example/", NAME)
        gate.opened.set()
        await asyncio.gather(*first, return_exceptions=True)

    long = gated(gate, PATIENCE_S)
    run(work)


def test_a_request_that_is_cancelled_frees_its_places(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        for _ in range(5):  # more than fit at a time
            request = asyncio.create_task(slow.load_all(sources(*(f"http://{n}.a.example/" for n in range(9)))))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
        gate.opened.set()
        with pytest.raises(PictureFault):
            await slow.load("http://b.example/", NAME)
        await until(lambda: slow._fetching._free == loader.FETCHING_THREADS + 20)

    monkeypatch.setattr(loader, "MAX_WAITING", 20)
    slow = gated(gate, PATIENCE_S)
    run(work)
    assert gate.connected == []


def test_a_cancelled_fetch_ends_at_its_next_piece() -> None:
    ended = threading.Event()
    begun = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        begun.set()
        try:
            while True:
                connection.sendall(b"x")
        except OSError:
            ended.set()
            raise

    async def work() -> None:
        request = asyncio.create_task(dripping.load(f"http://{HOST}/", NAME))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert await asyncio.to_thread(ended.wait, PATIENCE_S)

    with hosting(drip) as host:
        limits = PictureLimits(max_bytes=2**30, allowed_hosts=("*",), timeout_s=PATIENCE_S)
        dripping = PictureLoader(limits, Fetcher(limits, MadeUpNetwork({HOST: [[PUBLIC]]}, {PUBLIC: host.port})))
        run(work)


def test_a_closed_loader_begins_nothing(plain: PictureLoader) -> None:
    plain.close()
    with pytest.raises(Unavailable):
        run(lambda: plain.load(data_url(png()), NAME))
