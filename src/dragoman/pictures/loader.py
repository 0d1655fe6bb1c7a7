"""Brings the pictures of requests, several at a time, with bounded queues, in memory lent before, on its own threads.

Reads the bytes of `data:` URLs, as clients really send them. Source: RFC 2397, RFC 4648.
"""

from __future__ import annotations

import asyncio
import binascii
import re
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dragoman.errors import Overloaded, Unavailable
from dragoman.pictures.limits import (
    DATA_URL,
    PICTURES_PER_REQUEST,
    RGB_BYTES,
    PictureFault,
    PictureLimits,
    RequestBudget,
    excerpt,
    too_large,
)
from dragoman.pictures.memory import Loan, PictureMemory, process_memory
from dragoman.types import Picture

if TYPE_CHECKING:
    from dragoman.pictures.decoding import PictureSize
    from dragoman.pictures.fetching import Fetcher

DECODING_THREADS = 4  # each may hold several copies of a picture's pixels
FETCHING_THREADS = 16
MAX_WAITING = 256  # pictures, for each kind of threads
PICTURES_AT_A_TIME = 4  # of one request, which cannot fill the queue
_READING_BYTES = 3  # for each character of a data URL while reading

Result = TypeVar("Result")


class PictureSource(NamedTuple):
    """The address of a picture, and the parameter's name for messages, as in `messages[0].content[1].image_url.url`."""

    url: str
    path: str


class _File(NamedTuple):
    data: bytes
    path: str
    size: PictureSize


class PictureLoader:
    """Brings pictures within the operator's limits. Used on one event loop. `memory`: shared with all other models."""

    def __init__(
        self,
        limits: PictureLimits | None = None,
        fetcher: Fetcher | None = None,
        memory: PictureMemory | None = None,
    ) -> None:
        self.limits = limits or PictureLimits()
        self._memory = memory or process_memory()
        self._fetcher = fetcher or _make_fetcher(self.limits)
        self._decoding = _Lane("picture-decoding", DECODING_THREADS)  # separate: slow hosts must not delay data URLs
        self._fetching = _Lane("picture-fetching", FETCHING_THREADS)

    async def load(self, url: str, path: str) -> Picture:
        """The picture at `url`: a data URL, or an http(s) address of an allowed host. Raises: PictureFault, Overloaded."""
        [picture] = await self.load_all([PictureSource(url, path)])
        return picture

    async def load_all(self, sources: Sequence[PictureSource]) -> tuple[Picture, ...]:
        """The pictures of one request in order, brought at the same time; the first failure ends the others.

        Their memory is lent before decoding, and returned when the last owner drops the picture. Raises: as `load`.
        """
        if not sources:
            return ()
        budget, turns = RequestBudget(self.limits), asyncio.Semaphore(PICTURES_AT_A_TIME)
        sent = [len(source.url) for source in sources if is_data_url(source.url)]
        num_fetched = 0 if self._fetcher is None else min(len(sources) - len(sent), PICTURES_PER_REQUEST)
        with (
            await self._memory.sent.lend(_READING_BYTES * sum(sent)) as reading,
            await self._memory.fetched.lend(num_fetched * self.limits.max_bytes),
        ):
            read = await _each([self._read(source, budget) for source in sources], turns)
            reading.shrink(sum(sent))
            with await self._memory.pictures.lend(RGB_BYTES * budget.num_pixels) as pixels:
                loans = [pixels.part(RGB_BYTES * picture.size.num_pixels) for picture in read]
                try:
                    works = [self._decode(picture, loan) for picture, loan in zip(read, loans, strict=True)]
                    return tuple(await _each(works, turns))
                finally:
                    for loan in loans:
                        loan.give_back()

    def close(self) -> None:
        """Begin nothing more; running work ends by itself, at its deadline at the latest."""
        self._decoding.close()
        self._fetching.close()

    async def _read(self, source: PictureSource, budget: RequestBudget) -> _File:
        url, path = source
        if is_data_url(url):
            file = await self._decoding.run(partial(_read_and_measure, source, self.limits))
        elif self._fetcher is None:
            message = f"must be {DATA_URL}: this server fetches no images (--allow-image-hosts), got {excerpt(url)}"
            raise PictureFault(path, "address", message)
        else:
            data = await self._fetch(self._fetcher, url, path)
            file = await self._decoding.run(partial(_measured, data, path, self.limits))
        budget.take(len(file.data), file.size.num_pixels, path)
        return file

    async def _decode(self, file: _File, loan: Loan) -> Picture:
        with await self._memory.decoding.lend(file.size.working_bytes) as working:
            return await self._decoding.run(partial(_decoded, file, self.limits, loan, working))

    async def _fetch(self, fetcher: Fetcher, url: str, path: str) -> bytes:
        fetch = fetcher.begin(url, path)
        try:
            async with asyncio.timeout(self.limits.timeout_s):  # name resolution has no timeout
                return await self._fetching.run(fetch.run)
        except TimeoutError:
            if not fetch.has_begun:
                raise Overloaded("too many images are already being fetched; try again later") from None
            raise fetch.fault("it took too long") from None
        finally:
            fetch.end()


# Slow imports wait for the first picture: most servers never see any.


def _make_fetcher(limits: PictureLimits) -> Fetcher | None:
    if not limits.allowed_hosts:
        return None
    from dragoman.pictures.fetching import Fetcher

    return Fetcher(limits)


async def _each(works: Sequence[Coroutine[Any, Any, Result]], turns: asyncio.Semaphore) -> list[Result]:
    """The results in order, as many at a time as there are turns. Raises: the error of the first that fails."""

    async def one(work: Coroutine[Any, Any, Result]) -> Result:
        async with turns:
            return await work

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(work)) for work in works]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        for work in works:
            work.close()  # if it has not begun
    return [task.result() for task in tasks]


def _read_and_measure(source: PictureSource, limits: PictureLimits) -> _File:
    return _measured(read_data_url(source.url, limits, source.path), source.path, limits)


def _measured(data: bytes, path: str, limits: PictureLimits) -> _File:
    from dragoman.pictures.decoding import measure_picture

    return _File(data, path, measure_picture(data, limits, path))


def _decoded(file: _File, limits: PictureLimits, loan: Loan, working: Loan) -> Picture:
    """The memory counts until this has ended, even if the request has ended before."""
    from dragoman.pictures.decoding import decode_picture

    with loan.moved() as rest, working.moved():
        picture = decode_picture(file.data, limits, file.path)
        weakref.finalize(picture, rest.moved().give_back).atexit = False
        return picture


class _Lane:
    def __init__(self, name: str, num_threads: int) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._free = num_threads + MAX_WAITING
        self._is_closed = False
        self._lock = Lock()

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, which does not begin if the caller gives up before. Raises: Overloaded."""
        with self._lock:
            if self._is_closed:
                raise Unavailable("the model is being unloaded; try again later")
            if self._free == 0:
                raise Overloaded("too many images are already waiting to be read; try again later")
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


# --- data URLs --------------------------------------------------------------------------------------------------------

SCHEME = "data:"

_HEAD = re.compile(r"data:\s*image/[\w.+*-]+\s*(?:;[^,;]*)*;\s*base64\s*", re.IGNORECASE | re.ASCII)
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_WHITE_SPACE = b" \t\r\n\f\v"  # dropped: mail-style encoders break lines
_ESCAPED = {f"%{ord(sign):02X}": sign for sign in "+/=-_ \t\r\n\f\v"}  # signs that base64 may need to escape
_OTHER_ESCAPE = re.compile("%(?!{})".format("|".join(escape[1:] for escape in _ESCAPED)), re.IGNORECASE)
_LONGEST = 2  # times the length of its base64, for white space and escapes
_LEAST_LONGEST = 65_536  # characters


def is_data_url(url: str) -> bool:
    return url[: len(SCHEME)].lower() == SCHEME


def read_data_url(url: str, limits: PictureLimits, path: str) -> bytes:
    """The bytes in the URL, also with white space, the URL-safe alphabet, missing padding or escaped signs.

    Decoding other escapes would take a hundred times the text's memory. Raises: PictureFault.
    """
    begin = url.find(",") + 1
    head = url[: max(begin - 1, 0)] if begin else url
    if not begin or not _HEAD.fullmatch(head):
        raise PictureFault(path, "address", f"must be {DATA_URL}, got {excerpt(head)}")
    most = limits.max_bytes * 4 // 3 + 4
    if len(url) - begin > max(_LONGEST * most, _LEAST_LONGEST):
        raise too_large(path, limits)
    text = url[begin:]
    if "%" in text and not _OTHER_ESCAPE.search(text):
        for escape, sign in _ESCAPED.items():
            text = text.replace(escape, sign).replace(escape.lower(), sign)
    try:
        encoded = text.encode("ascii").translate(_URL_SAFE, _WHITE_SPACE).rstrip(b"=")
        if len(encoded) * 3 // 4 > limits.max_bytes:
            raise too_large(path, limits)
        data = binascii.a2b_base64(encoded + b"=" * (-len(encoded) % 4), strict_mode=True)
    except ValueError as error:  # from binascii, or for characters beyond ASCII
        raise PictureFault(path, "encoding", f"must be base64 after the comma, got {excerpt(text)}") from error
    if not data:
        raise PictureFault(path, "encoding", "must hold base64 data after the comma, got none")
    return data
