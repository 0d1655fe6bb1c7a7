"""The hook threads: results, time limits, threads that never come back, too much work, nothing to do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

import pytest

from dragoman.errors import HookError, Overloaded
from dragoman.server.apis.lmi.hooks.threads import HookPool
from tests.support.patience import PATIENCE_S, until
from tests.support.tables import table

SHORT_S = 0.05


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test, run in an event loop of its own."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets calls that wait for it return, at the latest when the test ends."""
    event = threading.Event()
    yield event
    event.set()


async def start(pool: HookPool, work: Callable[[], Any]) -> asyncio.Task[Any]:
    """A call that has begun to run."""
    is_running = threading.Event()

    def tell() -> Any:
        is_running.set()
        return work()

    task = asyncio.create_task(pool.run(tell))
    await until(is_running.is_set)
    return task


@in_loop
async def test_calls_run_on_threads_of_their_own() -> None:
    thread = await HookPool(PATIENCE_S).run(threading.current_thread)
    assert thread is not threading.current_thread()
    assert thread.daemon, "a call that hangs must not keep the process alive"


@table(
    ("error", "expected"),
    [
        (ValueError("bad"), ValueError),
        (TimeoutError("its own"), TimeoutError),
        (SystemExit(1), HookError),
        (StopIteration(), HookError),
    ],
)
@in_loop
async def test_what_a_call_raises_reaches_its_caller_only(error: BaseException, expected: type[Exception]) -> None:
    def fail() -> None:
        raise error

    pool = HookPool(PATIENCE_S, num_threads=1)
    with pytest.raises(expected):
        await pool.run(fail)
    assert await pool.run(lambda: "next") == "next"


@in_loop
async def test_a_call_that_takes_too_long_fails_and_its_thread_is_replaced(release: threading.Event) -> None:
    pool = HookPool(SHORT_S, num_threads=1)
    with pytest.raises(HookError, match=r"longer than 0\.05 s \(hook_timeout_s\)"):
        await pool.run(release.wait)
    assert pool.num_stuck == 1
    assert await _eventually(pool, lambda: "next") == "next"
    release.set()
    await until(lambda: pool.num_stuck == 0)


async def _eventually(pool: HookPool, work: Callable[[], Any]) -> Any:
    """The result of a short call on a pool with a short limit, tried again where the machine was too slow."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await pool.run(work)
            except HookError:
                continue


@in_loop
async def test_a_call_that_nobody_waits_for_any_more_is_not_begun(release: threading.Event) -> None:
    ran: list[str] = []
    pool = HookPool(PATIENCE_S, num_threads=1)
    first = await start(pool, release.wait)
    second = asyncio.create_task(pool.run(lambda: ran.append("second")))
    await asyncio.sleep(0)  # now it is in the queue
    second.cancel()
    await asyncio.wait((second,))
    release.set()
    await first
    assert await pool.run(lambda: list(ran)) == []


@in_loop
async def test_a_cancelled_call_gives_its_place_away(release: threading.Event) -> None:
    pool = HookPool(PATIENCE_S, num_threads=1)
    task = await start(pool, release.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await pool.run(lambda: "next") == "next"


@in_loop
async def test_too_many_calls_that_hang_are_an_error_until_some_return(release: threading.Event) -> None:
    pool = HookPool(PATIENCE_S, num_threads=1, max_stuck=1)
    task = await start(pool, release.wait)
    task.cancel()
    await asyncio.wait((task,))
    with pytest.raises(HookError, match="1 of their calls have not returned"):
        await pool.run(lambda: None)
    release.set()
    await until(lambda: pool.num_stuck == 0)
    assert await pool.run(lambda: "again") == "again"


@in_loop
async def test_too_many_calls_that_wait_are_an_overload(release: threading.Event) -> None:
    pool = HookPool(PATIENCE_S, num_threads=1, max_waiting=1)
    first = await start(pool, release.wait)
    second = asyncio.create_task(pool.run(lambda: "second"))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="1 calls are already waiting"):
        await pool.run(lambda: None)
    release.set()
    assert (await first, await second) == (True, "second")


@in_loop
async def test_threads_end_when_nobody_can_use_them_any_more() -> None:
    pool: HookPool | None = HookPool(PATIENCE_S, num_threads=2)
    assert pool is not None
    assert pool.num_live == 0
    threads = [await pool.run(threading.current_thread) for _ in range(3)]
    assert all(thread.is_alive() for thread in threads)
    pool = None
    await until(lambda: not any(thread.is_alive() for thread in threads))


@table("has_successor", [False, True])
@in_loop
async def test_a_thread_that_was_stuck_takes_jobs_again_unless_it_has_a_successor(has_successor: bool) -> None:
    release = threading.Event()
    pool = HookPool(PATIENCE_S, num_threads=1)
    stuck = await start(pool, release.wait)
    stuck.cancel()
    await asyncio.wait((stuck,))
    assert (pool.num_stuck, pool.num_live) == (1, 0)
    if has_successor:
        assert await pool.run(lambda: "successor") == "successor"
    release.set()
    await until(lambda: pool.num_stuck == 0)
    assert pool.num_live == 1
    assert await pool.run(lambda: "next") == "next"


@in_loop
async def test_there_are_never_more_threads_than_allowed(release: threading.Event) -> None:
    pool = HookPool(PATIENCE_S, num_threads=2)
    tasks = [await start(pool, release.wait) for _ in range(2)]
    tasks += [asyncio.create_task(pool.run(lambda: True)) for _ in range(20)]
    await asyncio.sleep(0)
    assert pool.num_live == 2
    release.set()
    assert all(await asyncio.gather(*tasks))
