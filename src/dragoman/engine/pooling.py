"""The engine of models that embed or score texts: its factory, and batches of texts of similar length across requests.

`_run` and its callees run on the engine thread, the factory on the loading thread, the rest on event loops.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, prod
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from dragoman.engine.base import Capabilities, EngineStats, EngineTools, Health, MemoryNeeds, Outputs, PooledRows
from dragoman.engine.factory import BuiltEngine, EngineOptionError, EngineSetup
from dragoman.engine.life import OnThread
from dragoman.engine.rolling.options import RollingOptions
from dragoman.errors import Cancelled, Overloaded, ServerError, UnsupportedFeature
from dragoman.histogram import COUNTS, SECONDS, Histogram
from dragoman.models import ModelOptions
from dragoman.models.pooling.facts import Recipe
from dragoman.models.pooling.model import LoadedPooler, load_pooler, text_family
from dragoman.models.pooling.recipe import chosen_of, read_recipe
from dragoman.models.stored.opening import stored_weights
from dragoman.types import EngineRequest, PooledText

logger = logging.getLogger(__name__)

MAX_WAITING_TOKENS = 1 << 22  # of all requests; a minute's work of a fast machine, some 100 MB of lists
_MOST_RETRY_S = 60
# Attention pads rows to the batch's longest text. It is a small part of a batch's cost, so some padding is worth a fuller
# batch; the rest of the network has no padding at all.
_EMPTINESS = 1.25
_SHORT_TOKENS = 512  # padding that is always allowed: little beside the products of the smallest efficient batch

_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}
_BESIDE = 1.1  # buffers and machine code
_GENERATING = ("draft_model", "lora", "enable_lora", "merge_lora")
"""Options that change how text is generated."""


class PoolingFactory:
    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        recipe, options = recipe_of(setup), RollingOptions.among(setup.options)
        family = text_family(setup.model_dir, recipe)
        size = _BYTES[options.model_options.weight_type]
        total = 0.0
        for name, shape in stored_weights(setup.model_dir).shapes().items():
            is_table = (
                len(shape) == 2 and shape[0] >= min(family.facts.vocab_size, 30_000) and re.search("embed|wte", name)
            )
            total += prod(shape) * ((max(size, 2.0) if is_table else size) if len(shape) > 1 else 4.0)
        if recipe.sparse is not None:  # the embedding table a second time, for the words' weights
            total += family.facts.vocab_size * family.facts.hidden_size * size
        return MemoryNeeds(int(total * _BESIDE))

    def load(self, setup: EngineSetup) -> LoadedPooling:
        options, recipe = RollingOptions.among(setup.options), recipe_of(setup)
        for name in _GENERATING:
            if getattr(options, name, None):
                raise EngineOptionError(name, f"must be left out: model {setup.model_dir.name} generates no text")
        stored = replace(options.model_options, has_neighbours=setup.has_neighbours)
        pooler = load_pooler(setup.model_dir, recipe, stored, setup.progress)
        return LoadedPooling(pooler, options, stored, setup.options.get("max_queued_tokens"))


@dataclass(frozen=True, slots=True)
class LoadedPooling:
    pooler: LoadedPooler
    options: RollingOptions
    stored: ModelOptions
    max_waiting_tokens: int | None = None

    def build(self, tools: EngineTools, memory_bytes: int) -> BuiltEngine:
        facts, recipe, longest = self.pooler.facts, self.pooler.recipe, self.pooler.max_tokens
        wanted = self.options.max_model_len
        if wanted is not None and wanted > facts.max_tokens:
            raise EngineOptionError("max_model_len", f"must be at most {facts.max_tokens}, the model's longest text")
        longest = longest if wanted is None else wanted
        engine = PoolingEngine(
            self.pooler,
            vocab_size=facts.vocab_size,
            max_tokens=longest,
            batch_tokens=self.options.max_batch_tokens,
            max_waiting_tokens=self.max_waiting_tokens or MAX_WAITING_TOKENS,
        )
        for departure in recipe.departures:
            logger.warning("%s: %s", facts.architecture, departure)
        description = (
            facts.architecture,
            f"{self.stored.weight_type} weights",
            f"{longest} tokens of one text",
            *_words(recipe, self.pooler.dimensions),
            *recipe.departures,
        )
        return BuiltEngine(
            engine, description, self.stored.weight_type, pooling=engine, row_size=self.pooler.dimensions
        )


def _words(recipe: Recipe, dimensions: int) -> list[str]:
    match recipe.kind:
        case "score":
            return [f"scores pairs of texts ({recipe.activation})"]
        case "classify":
            return [f"classifies texts, {dimensions} labels ({recipe.activation})"]
        case "sparse":
            return [f"weighs {dimensions} words of texts"]
        case "tokens":
            return [f"embeds tokens of texts in {dimensions} dimensions, for late interaction"]
    length = ", of length 1" if recipe.is_normalized else ""
    return [f"embeds texts in {dimensions} dimensions ({' and '.join(recipe.pooling)}{length})"]


def recipe_of(setup: EngineSetup) -> Recipe:
    return read_recipe(setup.model_dir, *chosen_of(setup.options))


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
    done: Future[None] = field(default_factory=Future)
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
        num_tokens = sum(len(text.token_ids) for text in texts)
        rows: list[Any] = [None] * len(texts)
        job = _Job(rows, len(texts))
        size = self._model.dimensions
        if not texts:
            return PooledRows(np.empty((0, size), dtype=np.float32), 0.0, 0)
        with self._changed:
            self._check_open(num_tokens)
            self._jobs.add(job)
            self._queue.add(WaitingText(text, job, index) for index, text in enumerate(texts))
            self._changed.notify_all()
        try:
            await asyncio.wrap_future(job.done)
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
    with suppress(InvalidStateError):  # its caller has left, or was told before
        if error is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(error)


@dataclass(slots=True, eq=False)
class WaitingText:
    """The text at `index` of the request `owner`."""

    text: PooledText
    owner: Any
    index: int
    length: int = field(init=False)
    is_taken: bool = False  # or dropped

    def __post_init__(self) -> None:
        self.length = len(self.text.token_ids)


class TextQueue:
    def __init__(self) -> None:
        self._by_age: deque[WaitingText] = deque()  # removed texts are skipped when they reach the front
        self._by_length: list[tuple[int, int, WaitingText]] = []
        self._number = 0
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._by_length)

    def add(self, texts: Iterable[WaitingText]) -> None:
        for text in texts:
            self._number += 1
            self._by_age.append(text)
            insort(self._by_length, (text.length, self._number, text))
            self.num_tokens += text.length

    def drop(self, owner: object) -> None:
        dropped = [text for _, _, text in self._by_length if text.owner is owner]
        if dropped:
            self._by_length = [entry for entry in self._by_length if entry[2].owner is not owner]
        self._leave(dropped)
        self._by_age = deque(text for text in self._by_age if not text.is_taken)

    def take(self, max_tokens: int) -> list[WaitingText]:
        """The oldest text and others nearest to it in length, up to `max_tokens` together; [] if none waits."""
        while self._by_age and self._by_age[0].is_taken:
            self._by_age.popleft()
        if not self._by_age:
            return []
        oldest = self._by_age[0]
        order = self._by_length
        first = bisect_left(order, (oldest.length, 0))
        while order[first][2] is not oldest:
            first += 1
        last, total, longest = first, oldest.length, oldest.length
        while True:
            before = order[first - 1][0] if first else None
            behind = order[last + 1][0] if last + 1 < len(order) else None
            is_behind = before is None or (behind is not None and behind - oldest.length <= oldest.length - before)
            length = behind if is_behind else before
            if length is None or total + length > max_tokens:
                break
            places = (last - first + 2) * max(longest, length)
            if places > _EMPTINESS * (total + length) + _SHORT_TOKENS:
                break
            total += length
            if is_behind:
                last, longest = last + 1, length
            else:
                first -= 1
        taken = [text for _, _, text in order[first : last + 1]]
        del order[first : last + 1]
        self._leave(taken)
        return taken

    def _leave(self, texts: Iterable[WaitingText]) -> None:
        for text in texts:
            text.is_taken = True
            self.num_tokens -= text.length


factory = PoolingFactory()
