"""The pooling engine: batches by tokens, requests in parts, what becomes of cancelled requests and of a dead engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest

from dragoman.engine.pooling import PoolingEngine, TextQueue, WaitingText
from dragoman.errors import Cancelled, EngineDead, Overloaded, UnsupportedFeature
from dragoman.types import EngineRequest, PooledText, SamplingParams
from tests.support.patience import PATIENCE_S


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The test, run by an event loop of its own."""

    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 60))

    return run


async def wait_until(holds: Callable[[], bool]) -> None:
    """Return once that is so; other tasks run meanwhile."""
    while True:
        if holds():
            return
        await asyncio.sleep(0)


def text(length: int, token: int = 1) -> PooledText:
    return PooledText((token,) * length)


class SumModel:
    """A model whose vector of a text is the sum of its tokens; it computes only while `gate` is open."""

    dimensions = 1

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[list[int]] = []
        self.entered = threading.Semaphore(0)
        self.is_closed = False
        self.failure: Exception | None = None

    def run(self, texts: Sequence[PooledText]) -> Any:
        self.batches.append([len(one.token_ids) for one in texts])
        self.entered.release()
        assert self.gate.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        return np.array([[sum(one.token_ids)] for one in texts], dtype=np.float32)

    def close(self) -> None:
        self.is_closed = True


def engine_over(model: SumModel, **more: Any) -> PoolingEngine:
    return PoolingEngine(model, vocab_size=10, max_tokens=100, **{"batch_tokens": 64, **more})


async def entered(model: SumModel) -> None:
    """Return once another batch has begun."""
    assert await asyncio.to_thread(model.entered.acquire, timeout=30)


def queue_of(*lengths: int) -> TextQueue:
    queue = TextQueue()
    queue.add(WaitingText(text(length), None, index) for index, length in enumerate(lengths))
    return queue


def taken(queue: TextQueue, max_tokens: int = 64) -> list[int]:
    return sorted(waiting.length for waiting in queue.take(max_tokens))


def test_the_oldest_text_goes_with_those_of_its_length() -> None:
    queue = queue_of(10, 60, 11, 9, 50, 12, 10, 13)
    assert taken(queue) == [9, 10, 10, 11, 12]
    assert taken(queue) == [60]
    assert taken(queue) == [13, 50]


def test_a_text_longer_than_the_budget_goes_alone() -> None:
    queue = queue_of(900, 3)
    assert taken(queue) == [900]
    assert taken(queue) == [3]
    assert taken(queue) == []
    assert queue.num_tokens == 0


def test_rows_of_attention_are_hardly_ever_empty() -> None:
    queue = queue_of(2000, *[10] * 100)
    batch = queue.take(4000)
    assert [waiting.length for waiting in batch] == [2000]  # beside 100 short texts it would be 100 rows of 2000


def test_every_text_is_computed_once() -> None:
    stream = np.random.RandomState(5)
    lengths = stream.randint(1, 200, size=300).tolist()
    queue = queue_of(*lengths)
    found: list[int] = []
    while batch := queue.take(128):
        total = sum(waiting.length for waiting in batch)
        assert total <= 128 or len(batch) == 1
        found += [waiting.index for waiting in batch]
    assert sorted(found) == list(range(300))
    assert (len(queue), queue.num_tokens) == (0, 0)


def test_what_is_dropped_is_not_computed() -> None:
    queue = TextQueue()
    mine, others = object(), object()
    queue.add(WaitingText(text(5), owner, index) for index, owner in enumerate([mine, others, mine]))
    queue.drop(mine)
    assert queue.num_tokens == 5
    assert [waiting.owner for waiting in queue.take(64)] == [others]
    assert queue.take(64) == []


@in_loop
async def test_requests_share_batches_and_get_their_own_rows() -> None:
    model = SumModel()
    engine = engine_over(model)
    await engine.start()
    model.gate.clear()
    first = asyncio.create_task(engine.pool([text(3)]))
    await entered(model)
    requests = [asyncio.ensure_future(engine.pool([text(4, one), text(5, one)])) for one in (2, 3, 4)]
    await wait_until(lambda: engine.health().num_waiting == 6)
    model.gate.set()
    answers = await asyncio.gather(*requests)
    assert (await first).rows.tolist() == [[3.0]]
    assert [answer.rows[:, 0].tolist() for answer in answers] == [[4.0 * one, 5.0 * one] for one in (2, 3, 4)]
    assert [answer.num_tokens for answer in answers] == [9, 9, 9]
    assert all(answer.queue_s > 0 for answer in answers)
    assert model.batches == [[3], [4, 4, 4, 5, 5, 5]]
    stats = engine.stats()
    assert (stats.num_steps, stats.num_prompt_tokens) == (2, 30)
    assert stats.step_tokens is not None
    assert stats.step_tokens.total == 30
    await engine.shutdown(5)
    assert model.is_closed


@in_loop
async def test_a_request_larger_than_a_batch_is_computed_in_parts() -> None:
    model = SumModel()
    engine = engine_over(model)
    await engine.start()
    answer = await engine.pool([text(20, index % 9) for index in range(50)])
    assert answer.rows[:, 0].tolist() == [20.0 * (index % 9) for index in range(50)]
    assert max(map(len, model.batches)) == 3
    await engine.shutdown(5)


@in_loop
async def test_a_cancelled_request_is_not_computed_any_further() -> None:
    model = SumModel()
    engine = engine_over(model)
    await engine.start()
    model.gate.clear()
    requests = [asyncio.create_task(engine.pool([text(40, 2)] * 10))]
    await entered(model)
    requests[0].cancel()
    assert isinstance((await asyncio.gather(*requests, return_exceptions=True))[0], asyncio.CancelledError)
    assert engine.health().num_waiting == 0
    model.gate.set()
    assert (await engine.pool([text(7)])).rows.tolist() == [[7.0]]
    assert model.batches == [[40], [7]]
    await engine.shutdown(5)


@in_loop
async def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    model = SumModel()
    engine = engine_over(model, max_waiting_tokens=100)
    await engine.start()
    model.gate.clear()
    first = asyncio.create_task(engine.pool([text(5)]))
    await entered(model)
    second = asyncio.create_task(engine.pool([text(60)]))
    await wait_until(lambda: engine.health().num_waiting > 0)
    with pytest.raises(Overloaded, match=r"60 tokens wait.*100 allowed.*50") as caught:
        await engine.pool([text(50)])
    assert caught.value.retry_after_s >= 1
    model.gate.set()
    await asyncio.gather(first, second)
    await engine.shutdown(5)


@in_loop
async def test_a_failure_of_the_runtime_ends_the_engine_and_answers_everybody() -> None:
    model = SumModel()
    engine = engine_over(model)
    await engine.start()
    model.gate.clear()
    model.failure = RuntimeError("out of memory")
    requests = [asyncio.ensure_future(engine.pool([text(60)])) for _ in range(3)]
    await entered(model)
    model.gate.set()
    for answer in await asyncio.gather(*requests, return_exceptions=True):
        assert isinstance(answer, EngineDead)
        assert "out of memory" in answer.message
    assert not engine.health().is_alive
    with pytest.raises(EngineDead):
        await engine.pool([text(1)])
    await engine.shutdown(0)


@in_loop
async def test_a_shutdown_waits_and_then_cancels() -> None:
    model = SumModel()
    engine = engine_over(model)
    await engine.start()
    model.gate.clear()
    request = asyncio.create_task(engine.pool([text(60), text(60)]))
    await entered(model)
    ending = asyncio.create_task(engine.shutdown(0.01))
    with pytest.raises(Cancelled):
        await request
    model.gate.set()
    await ending
    with pytest.raises(EngineDead):
        await engine.pool([text(1)])


@in_loop
async def test_it_does_not_generate() -> None:
    engine = engine_over(SumModel())
    with pytest.raises(UnsupportedFeature, match="cannot generate"):
        engine.generate(EngineRequest("r", (1,), SamplingParams(), max_tokens=1, seed=0))
    await engine.shutdown(0)
