"""Pictures in the rolling engine: their embedding beside the step loop, and their places in a prompt.

`PictureEmbedder.embed` is called on any event loop; the tower runs on one thread of the embedder's.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from types import TracebackType
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dragoman.errors import Cancelled, EngineDead, EngineFailed, InvalidRequest, Overloaded, ServerError
from dragoman.models.facts import PictureFacts
from dragoman.types import Detail, EngineRequest, Picture, PictureSpan

_CACHE_BYTES = 256 << 20  # of embeddings: some 60 large pictures of a model with 2,048 numbers per token
_MAX_WAITING = 64  # pictures
_PATIENCE = 2.0  # times the last turn

Embeddings = npt.NDArray[np.float32]

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
            return [entry if isinstance(entry, EmbeddedPicture) else await entry.result() for entry in taken]
        finally:
            for entry in taken:
                if isinstance(entry, _Job):
                    self._leave(entry)

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


class Turn:
    """One side. Its context manager is a turn. Used by one thread."""

    def __init__(self, turns: Turns) -> None:
        self.last_s = 0.0  # the duration of its last turn; 0 = none
        self.gate = Lock()  # opened when its turn has come
        self.gate.acquire()
        self._turns = turns
        self._begin_s = 0.0

    def __enter__(self) -> None:
        self._turns.take(self)
        self._begin_s = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.last_s = perf_counter() - self._begin_s
        self._turns.leave(self)


class Turns:
    """Lets steps and the parts of a tower compute in turn, as both want all cores. Each side uses its own thread.

    A stream's gap is then one step and one part; with two computations at once it would vary, as each operation waits
    for all its threads. A side does not wait for the other if its own last turn was less than half as long, and never
    longer than that.
    """

    def __init__(self) -> None:
        self.steps, self.parts = Turn(self), Turn(self)
        self._lock = Lock()  # guards the following
        self._holder: Turn | None = None
        self._next: Turn | None = None  # waits until its gate opens

    @property
    def is_awaited(self) -> bool:
        return self._next is not None

    def take(self, side: Turn) -> None:
        """Return when it is that side's turn, or when it has waited long enough."""
        with self._lock:
            if self._holder is None:
                self._holder = side
                return
            patience_s = _PATIENCE * side.last_s
            if self._holder.last_s > patience_s:
                return
            self._next = side
        if side.gate.acquire(timeout=patience_s):
            return
        with self._lock:
            if self._next is side:
                self._next = None
            else:
                side.gate.acquire()  # it was opened meanwhile

    def leave(self, side: Turn) -> None:
        with self._lock:
            if self._holder is not side:  # it had not waited for its turn
                return
            self._holder, self._next = self._next, None
            if self._holder is not None:
                self._holder.gate.release()


class EmbeddedPicture(NamedTuple):
    """A picture's embeddings f32 [N, width], and its grid: rows and columns, (0, 0) if unused."""

    embeddings: Embeddings
    grid: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PlacedPicture:
    """A picture in a prompt. `rows`: the position of a placeholder for each embedding. `key` names its content."""

    rows: npt.NDArray[np.int64]
    embeddings: Embeddings
    key: bytes

    def between(self, begin: int, end: int) -> tuple[npt.NDArray[np.int64], Embeddings]:
        first, last = np.searchsorted(self.rows, (begin, end))
        return self.rows[first:last], self.embeddings[first:last]


class PromptPictures:
    """A prompt's pictures in the order of their places. Made on an event loop, read on the engine thread; immutable.

    `positions` i64 [3, prompt tokens]: time, row and column; None = one position. Later tokens have three equal ones,
    their index plus `offset`. Source: Qwen2-VL (arXiv:2409.12191), section 2.1.
    """

    def __init__(self, request: EngineRequest, pictures: Sequence[EmbeddedPicture], facts: PictureFacts) -> None:
        """Raises: InvalidRequest if placeholders and embeddings do not match."""
        ids = np.array(request.prompt_ids, dtype=np.int64)
        self.placed = [
            _place(span, picture, ids, facts.placeholder_id)
            for span, picture in zip(request.pictures, pictures, strict=True)
        ]
        self.positions: npt.NDArray[np.int64] | None = None
        self.offset = 0
        if any(picture.grid != (0, 0) for picture in pictures):
            self.positions, self.offset = _positions(len(ids), request.pictures, [each.grid for each in pictures])
        whole = request.pictures if facts.is_bidirectional else ()
        self._begins = [span.begin for span in whole]
        self._ends = [span.begin + span.length for span in whole]

    def between(self, begin: int, end: int) -> list[tuple[npt.NDArray[np.int64], Embeddings]]:
        """The positions in [begin, end) of placeholders, and their embeddings, for each picture there."""
        parts = [picture.between(begin, end) for picture in self.placed]
        return [part for part in parts if len(part[0])]

    def positions_between(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The three positions of tokens in [begin, end); i64 [3, end - begin]."""
        plain = np.broadcast_to(np.arange(begin, end, dtype=np.int64) + self.offset, (3, end - begin))
        if self.positions is None or begin >= self.positions.shape[1]:
            return plain
        known = self.positions[:, begin:end]
        return np.concatenate([known, plain[:, known.shape[1] :]], axis=1)

    def cut_before(self, end: int) -> int:
        """The last place, at most `end`, that is not inside a picture whose tokens see each other."""
        index = bisect_left(self._begins, end) - 1
        return self._begins[index] if index >= 0 and end < self._ends[index] else end

    def cut_from(self, begin: int) -> int:
        index = bisect_left(self._begins, begin) - 1
        return max(begin, self._ends[index]) if index >= 0 else begin

    @property
    def longest_span(self) -> int:
        """Tokens of the longest picture that must be computed in one step."""
        return max((end - begin for begin, end in zip(self._begins, self._ends, strict=True)), default=0)

    def block_keys(self, block_size: int) -> dict[int, bytes]:
        """For each block with placeholders: a key of the pictures there."""
        keys: dict[int, bytes] = {}
        for picture in self.placed:
            for block in np.unique(picture.rows // block_size).tolist():
                keys[block] = keys.get(block, b"") + picture.key
        return keys


def _place(
    span: PictureSpan, picture: EmbeddedPicture, ids: npt.NDArray[np.int64], placeholder_id: int
) -> PlacedPicture:
    rows = span.begin + np.flatnonzero(ids[span.begin : span.begin + span.length] == placeholder_id)
    num_cells = picture.grid[0] * picture.grid[1]
    if len(rows) != len(picture.embeddings) or num_cells not in (0, span.length):
        raise InvalidRequest(
            f"a picture of {span.picture.width} x {span.picture.height} pixels has {len(rows)} placeholders in the prompt, "
            f"must have {len(picture.embeddings)} beside each other",
            param="messages",
        )
    return PlacedPicture(rows, picture.embeddings, f"{span.picture.digest} {span.detail};".encode())


def _positions(
    num_tokens: int, spans: Sequence[PictureSpan], grids: Sequence[tuple[int, int]]
) -> tuple[npt.NDArray[np.int64], int]:
    """The positions of all tokens of a prompt, and the offset for later ones. A picture's tokens share one time."""
    positions = np.empty((3, num_tokens), dtype=np.int64)
    token, following = 0, 0  # the next token, and its position as text
    for span, (num_rows, num_columns) in zip(spans, grids, strict=True):
        positions[:, token : span.begin] = following + np.arange(span.begin - token)
        following += span.begin - token
        token = span.begin + span.length
        rows, columns = np.divmod(np.arange(num_rows * num_columns), num_columns)
        positions[:, span.begin : token] = following + np.stack([np.zeros_like(rows), rows, columns])
        following += max(num_rows, num_columns)
    positions[:, token:] = following + np.arange(num_tokens - token)
    return positions, following - token
