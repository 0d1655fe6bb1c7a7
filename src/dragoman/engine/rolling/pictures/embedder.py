"""Embeds the pictures of requests, one after the other, beside the step loop, and caches the results by content.

`embed` is called on any event loop; the tower runs on one thread of the embedder's.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from dragoman.engine.rolling.pictures.prompt_pictures import EmbeddedPicture, Embeddings
from dragoman.engine.rolling.pictures.turns import Turns
from dragoman.errors import Cancelled, EngineDead, EngineFailed, Overloaded, ServerError
from dragoman.models.facts import PictureFacts
from dragoman.types import Detail, Picture, PictureSpan

_CACHE_BYTES = 256 << 20  # of embeddings: some 60 large pictures of a model with 2,048 numbers per token
_MAX_WAITING = 64  # pictures

_Key = tuple[str, Detail]


class PictureTower(Protocol):
    """The model part that embeds a picture. Used by one thread at a time."""

    facts: PictureFacts

    def embed(self, picture: Picture, detail: Detail) -> Generator[None, None, Embeddings]:
        """Returns the embeddings; yields after preparing the picture and between the parts of the computation."""
        ...

    def grid(self, picture: Picture, detail: Detail) -> tuple[int, int]: ...

    def close(self) -> None: ...


class PictureEmbedder:
    """Owns `tower`. `max_waiting` bounds the pictures in the queue."""

    def __init__(
        self, tower: PictureTower, *, cache_bytes: int = _CACHE_BYTES, max_waiting: int = _MAX_WAITING
    ) -> None:
        self.facts = tower.facts
        self.num_pictures = 0  # requested pictures
        self.num_hits = 0  # of these, those that were cached or queued already
        self.turns = Turns()
        self._tower = tower
        self._cache_bytes = cache_bytes
        self._max_waiting = max_waiting
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dragoman-pictures")
        self._lock = threading.Lock()  # guards everything below
        self._cache: OrderedDict[_Key, EmbeddedPicture] = OrderedDict()
        self._num_cached_bytes = 0
        self._jobs: dict[_Key, _Job] = {}
        self._is_closed = False

    @property
    def num_waiting(self) -> int:
        return len(self._jobs)

    async def embed(self, spans: Sequence[PictureSpan]) -> list[EmbeddedPicture]:
        """Raises: Overloaded, EngineFailed, EngineDead or Cancelled (closed).

        When no request waits for a picture any more, its embedding stops.
        """
        taken: list[_Job | EmbeddedPicture] = []
        try:
            for span in spans:
                taken.append(self._take((span.picture.digest, span.detail), span.picture))
            return [one if isinstance(one, EmbeddedPicture) else await one.result() for one in taken]
        finally:
            for one in taken:
                if isinstance(one, _Job):
                    self._leave(one)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._cache.clear()
        self._pool.shutdown(cancel_futures=True)
        self._tower.close()

    def _take(self, key: _Key, picture: Picture) -> _Job | EmbeddedPicture:
        with self._lock:
            if self._is_closed:
                raise EngineDead("the engine was shut down")
            self.num_pictures += 1
            known = self._cache.get(key)
            if known is not None:
                self._cache.move_to_end(key)
                self.num_hits += 1
                return known
            job = self._jobs.get(key)
            if job is None:
                if len(self._jobs) >= self._max_waiting:
                    raise Overloaded(
                        f"{len(self._jobs)} pictures are waiting to be embedded, at most {self._max_waiting} allowed"
                    )
                job = self._jobs[key] = _Job(key)
                job.future = self._pool.submit(self._run, job, picture)
            else:
                self.num_hits += 1
            job.num_waiting += 1
            return job

    def _leave(self, job: _Job) -> None:
        with self._lock:
            job.num_waiting -= 1
            if not job.num_waiting and job.future.cancel():
                self._forget(job)

    def _run(self, job: _Job, picture: Picture) -> EmbeddedPicture:
        detail = job.key[1]
        try:
            embedded = EmbeddedPicture(self._compute(job, picture, detail), self._tower.grid(picture, detail))
        except BaseException:
            with self._lock:
                self._forget(job)
            raise
        with self._lock:
            self._forget(job)
            self._remember(job.key, embedded)
        return embedded

    def _compute(self, job: _Job, picture: Picture, detail: Detail) -> Embeddings:
        """Compute the tower's parts in turn with steps. Raises: Cancelled as soon as no request waits any more."""
        parts = self._tower.embed(picture, detail)
        next(parts)
        while True:
            with self.turns.parts:
                try:
                    next(parts)
                except StopIteration as end:
                    embeddings: Embeddings = end.value
                    return embeddings
            with self._lock:
                if self._is_closed or not job.num_waiting:
                    self._forget(job)  # later requests for it start again
                    raise Cancelled("the server is shutting down")

    def _forget(self, job: _Job) -> None:
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]

    def _remember(self, key: _Key, embedded: EmbeddedPicture) -> None:
        if self._is_closed or embedded.embeddings.nbytes > self._cache_bytes:
            return
        self._cache[key] = embedded
        self._num_cached_bytes += embedded.embeddings.nbytes
        while self._num_cached_bytes > self._cache_bytes:
            _, oldest = self._cache.popitem(last=False)
            self._num_cached_bytes -= oldest.embeddings.nbytes


class _Job:
    """A queued picture. `num_waiting`: requests that wait for it."""

    future: Future[EmbeddedPicture]

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.num_waiting = 0

    async def result(self) -> EmbeddedPicture:
        try:
            return await asyncio.shield(asyncio.wrap_future(self.future))
        except asyncio.CancelledError:
            if self.future.cancelled():  # by `close`, not by this waiting request
                raise Cancelled("the server is shutting down") from None
            raise
        except ServerError:
            raise
        except Exception as error:
            raise EngineFailed(f"a picture could not be embedded: {type(error).__name__}: {error}") from error
