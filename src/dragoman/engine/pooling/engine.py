"""The pooling engine as the server uses it: the Engine protocol over a thread that computes batches of texts.

`_run` and its callees run on the engine thread, the rest on event loops.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from dragoman.engine.base import Capabilities, EngineStats, Health, Outputs, PooledRows
from dragoman.engine.life import OnThread
from dragoman.engine.pooling.queue import TextQueue, WaitingText
from dragoman.errors import Cancelled, Overloaded, ServerError, UnsupportedFeature
from dragoman.histogram import COUNTS, SECONDS, Histogram
from dragoman.types import EngineRequest, PooledText

MAX_WAITING_TOKENS = 1 << 22  # of all requests; a minute's work of a fast machine, some 100 MB of lists
_MOST_RETRY_S = 60


class Pooler(Protocol):
    """A model, as the engine uses it, on one thread."""

    @property
    def dimensions(self) -> int: ...

    def run(self, texts: Sequence[PooledText]) -> Any:
        """The result for each text: a row f32 [dimensions], or an array of another shape."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Job:
    rows: list[Any]
    num_left: int
    num_tokens: int
    done: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop
    begin_s: float = field(default_factory=perf_counter)
    queue_s: float = 0.0
    has_begun: bool = False


class PoolingEngine:
    """Runs `model`, which it owns. `batch_tokens`: tokens of a batch, unless a single text has more."""

    def __init__(
        self,
        model: Pooler,
        *,
        vocab_size: int,
        max_tokens: int,
        batch_tokens: int,
        max_waiting_tokens: int = MAX_WAITING_TOKENS,
    ) -> None:
        self._model = model
        self._batch_tokens = batch_tokens
        self._max_waiting_tokens = max_waiting_tokens
        self.capabilities = Capabilities(max_model_len=max_tokens, vocab_size=vocab_size, prompt_logprobs=False)
        self._queue = TextQueue()
        self._jobs: set[_Job] = set()
        self._changed = threading.Condition()  # guards queue, jobs and the end
        self._life = OnThread("dragoman-pooling")
        self._is_closed = False
        self._num_running = 0  # texts of the current batch
        self._totals = _Totals()

    async def start(self) -> None:
        self._life.begin(self._run, self._fail)

    def generate(self, request: EngineRequest) -> Outputs:
        raise UnsupportedFeature("this model embeds or scores texts and cannot generate", param="model")

    async def pool(self, texts: Sequence[PooledText]) -> PooledRows:
        loop = asyncio.get_running_loop()
        num_tokens = sum(len(text.token_ids) for text in texts)
        rows: list[Any] = [None] * len(texts)
        job = _Job(rows, len(texts), num_tokens, loop.create_future(), loop)
        size = self._model.dimensions
        if not texts:
            return PooledRows(np.empty((0, size), dtype=np.float32), 0.0, 0)
        with self._changed:
            self._check_open(num_tokens)
            self._jobs.add(job)
            self._queue.add(WaitingText(text, job, index) for index, text in enumerate(texts))
            self._changed.notify_all()
        try:
            await job.done
        finally:
            with self._changed:
                self._jobs.discard(job)
                if job.num_left:
                    self._queue.drop(job)
                self._changed.notify_all()
        are_alike = all(row.shape == (size,) for row in rows)
        return PooledRows(np.stack(rows) if are_alike else rows, job.queue_s, num_tokens)

    def health(self) -> Health:
        death = self._life.death
        return Health(not death, death, num_running=self._num_running, num_waiting=len(self._queue))

    def stats(self) -> EngineStats:
        totals = self._totals
        return EngineStats(
            num_steps=totals.num_steps,
            num_prompt_tokens=totals.num_tokens,
            num_generated_tokens=0,
            step_s=totals.step_s,
            step_tokens=totals.step_tokens,
            step_sequences=totals.step_sequences,
        )

    async def shutdown(self, drain_s: float) -> None:
        await self._life.drain(self._wait_until_idle, drain_s)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._fail(Cancelled("the server is shutting down"))
        await self._life.join()
        self._life.end()
        await asyncio.to_thread(self._model.close)

    def _check_open(self, num_tokens: int) -> None:
        """Raises: EngineDead, or Overloaded if there is no room for a request of `num_tokens` tokens."""
        self._life.check_open()
        waiting = self._queue.num_tokens
        if waiting and waiting + num_tokens > self._max_waiting_tokens:
            message = (
                f"{waiting} tokens wait to be embedded, {self._max_waiting_tokens} allowed; this call has {num_tokens}"
            )
            seconds = waiting * self._totals.step_s.total / max(self._totals.num_tokens, 1)
            raise Overloaded(message, retry_after_s=min(max(ceil(seconds), 1), _MOST_RETRY_S))

    def _wait_until_idle(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs, timeout_s)

    # --- the loop: on the engine thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while batch := self._next_batch():
            begin_s = perf_counter()
            rows = self._model.run([waiting.text for waiting in batch])
            self._totals.add(batch, perf_counter() - begin_s)
            self._deliver(batch, rows)

    def _next_batch(self) -> list[WaitingText]:
        """The texts to compute next, once there are some; [] at the end."""
        with self._changed:
            self._num_running = 0
            self._changed.wait_for(lambda: self._is_closed or len(self._queue) > 0)
            batch = [] if self._is_closed else self._queue.take(self._batch_tokens)
            self._num_running = len(batch)
            now = perf_counter()
            for waiting in batch:
                job: _Job = waiting.owner
                if not job.has_begun:
                    job.has_begun, job.queue_s = True, now - job.begin_s
            return batch

    def _deliver(self, batch: Sequence[WaitingText], rows: Any) -> None:
        finished = []
        with self._changed:
            for waiting, row in zip(batch, rows, strict=True):
                job: _Job = waiting.owner
                job.rows[waiting.index] = row
                job.num_left -= 1
                if not job.num_left and job in self._jobs:
                    finished.append(job)
        for job in finished:
            _tell(job, None)

    def _fail(self, error: ServerError) -> None:
        with self._changed:
            jobs = list(self._jobs)
        for job in jobs:
            _tell(job, error)


@dataclass(slots=True)
class _Totals:
    num_steps: int = 0
    num_tokens: int = 0
    step_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    step_tokens: Histogram = field(default_factory=lambda: Histogram(COUNTS))
    step_sequences: Histogram = field(default_factory=lambda: Histogram(COUNTS))

    def add(self, batch: Sequence[WaitingText], seconds: float) -> None:
        num_tokens = sum(waiting.length for waiting in batch)
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.step_s.add(seconds)
        self.step_tokens.add(num_tokens)
        self.step_sequences.add(len(batch))


def _tell(job: _Job, error: ServerError | None) -> None:
    def settle() -> None:
        if job.done.done():
            return
        if error is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(error)

    try:
        job.loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the loop was closed: nothing waits there
        return
