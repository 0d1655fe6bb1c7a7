"""How long tests wait for what must happen: far longer than it takes, so that a busy machine fails no test.

Waiting costs nothing where it comes at once. httpx waits as long too, instead of its five seconds: servers of tests share
the cores with other tests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

PATIENCE_S = 60.0

T = TypeVar("T")


def run(work: Callable[[], Awaitable[T]]) -> T:
    """The result of `work` on an event loop. Raises: TimeoutError."""

    async def bounded() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await work()

    return asyncio.run(bounded())


async def until(condition: Callable[[], object], pause_s: float = 0.0) -> None:
    """Let the event loop turn until the condition holds. Raises: TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # threads and tasks change it, without an event
            await asyncio.sleep(pause_s)


def wait_until(condition: Callable[[], object], pause_s: float = 0.0) -> None:
    """Wait on this thread until the condition holds."""
    seen_when(condition, bool, pause_s)


def seen_when(look: Callable[[], T], is_awaited: Callable[[T], object], pause_s: float = 0.0) -> T:
    """The result of `look` once it is the awaited one."""
    end_s = time.monotonic() + PATIENCE_S
    while not is_awaited(found := look()):
        assert time.monotonic() < end_s, f"not in time: {found}"
        time.sleep(pause_s)
    return found


def _wait_as_long() -> None:
    """Have clients of httpx, whose default is one object that all of them copy, wait as long."""
    with suppress(ImportError):  # tests of clients may have none
        from httpx import _config

        default = vars(_config)["DEFAULT_TIMEOUT_CONFIG"]
        default.connect = default.read = default.write = default.pool = PATIENCE_S


_wait_as_long()
