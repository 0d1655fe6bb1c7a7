"""`PictureLoader`: brings the pictures of requests, off the event loop.

Does: decode data URLs, fetch from hosts that the operator allows, several at a time, with bounded queues.
Does not: know requests or prompts. Called by the service, on the event loop; the work is done on threads of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dragoman.errors import Overloaded, Unavailable
from dragoman.pictures.data_url import is_data_url, read_data_url
from dragoman.pictures.limits import DATA_URL, PictureFault, PictureLimits, PixelBudget, excerpt
from dragoman.types import Picture

if TYPE_CHECKING:
    from dragoman.pictures.fetching import Fetcher

DECODING_THREADS = 4  # each may hold several copies of a picture's pixels
FETCHING_THREADS = 16
MAX_WAITING = 256  # pictures, for a thread of one kind
PICTURES_AT_A_TIME = 4  # of one request, so that it cannot fill the queue

Result = TypeVar("Result")


class PictureSource(NamedTuple):
    """Where a picture is, and the parameter's name for messages, as in `messages[0].content[1].image_url.url`."""

    url: str
    path: str


class PictureLoader:
    """Brings pictures within the operator's limits. Used on one event loop at a time, until `close`."""

    def __init__(self, limits: PictureLimits | None = None, fetcher: Fetcher | None = None) -> None:
        self.limits = limits or PictureLimits()
        self._fetcher = fetcher or _make_fetcher(self.limits)
        self._decoding = _Lane("picture-decoding", DECODING_THREADS)  # apart: slow hosts must not hold up data URLs
        self._fetching = _Lane("picture-fetching", FETCHING_THREADS)

    async def load(self, url: str, path: str) -> Picture:
        """The picture at `url`: a data URL, or an http(s) address of an allowed host.

        Raises: PictureFault naming `path`, Overloaded if too many pictures wait already.
        """
        [picture] = await self.load_all([PictureSource(url, path)])
        return picture

    async def load_all(self, sources: Sequence[PictureSource]) -> tuple[Picture, ...]:
        """The pictures of one request in their order, brought at the same time; the first that fails ends the others.

        Raises: as `load`; PictureFault also if they are too large together.
        """
        budget, turns = PixelBudget(self.limits), asyncio.Semaphore(PICTURES_AT_A_TIME)

        async def one(source: PictureSource) -> Picture:
            async with turns:
                return await self._bring(source, budget)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(source)) for source in sources]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return tuple(task.result() for task in tasks)

    def close(self) -> None:
        """Begin nothing more; what runs ends by itself, at its deadline at the latest."""
        self._decoding.close()
        self._fetching.close()

    async def _bring(self, source: PictureSource, budget: PixelBudget) -> Picture:
        url, path = source
        if is_data_url(url):
            return await self._decoding.run(partial(_read_and_decode, source, self.limits, budget))
        if self._fetcher is None:
            message = f"must be {DATA_URL}: this server fetches no images (--allow-image-hosts), got {excerpt(url)}"
            raise PictureFault(path, "address", message)
        data = await self._fetch(self._fetcher, url, path)
        return await self._decoding.run(partial(_decode, data, path, self.limits, budget))

    async def _fetch(self, fetcher: Fetcher, url: str, path: str) -> bytes:
        """The bytes at an address, before its deadline. Raises: PictureFault, Overloaded."""
        fetch = fetcher.begin(url, path)
        try:
            async with asyncio.timeout(self.limits.timeout_s):  # names are resolved without one
                return await self._fetching.run(fetch.run)
        except TimeoutError:
            if not fetch.has_begun:
                raise Overloaded("too many images are being fetched already; try again later") from None
            raise fetch.fault("it takes too long") from None
        finally:
            fetch.end()


# What takes long to import is imported with the first picture: most servers never see any.


def _make_fetcher(limits: PictureLimits) -> Fetcher | None:
    """None where nothing is to be fetched."""
    if not limits.allowed_hosts:
        return None
    from dragoman.pictures.fetching import Fetcher

    return Fetcher(limits)


def _read_and_decode(source: PictureSource, limits: PictureLimits, budget: PixelBudget) -> Picture:
    return _decode(read_data_url(source.url, limits, source.path), source.path, limits, budget)


def _decode(data: bytes, path: str, limits: PictureLimits, budget: PixelBudget) -> Picture:
    from dragoman.pictures.decoding import decode_picture

    return decode_picture(data, limits, path, budget)


class _Lane:
    """Threads for one kind of work, with a bounded queue."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._free = num_threads + MAX_WAITING
        self._is_closed = False
        self._lock = Lock()

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of `work`; given up by its caller, it does not begin, or ends unheard. Raises: Overloaded."""
        with self._lock:
            if self._is_closed:
                raise Unavailable("the model is being unloaded; try again later")
            if self._free == 0:
                raise Overloaded("too many images wait to be read already; try again later")
            self._free -= 1
            future = self._executor.submit(work)
        future.add_done_callback(self._leave)
        return await asyncio.wrap_future(future)

    def _leave(self, _: Future[Any]) -> None:
        with self._lock:
            self._free += 1

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
