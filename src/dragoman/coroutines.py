"""Runs several coroutines as one, on the event loop: all finish, or none continues. Does not limit how many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

Result = TypeVar("Result")


async def together(works: Iterable[Awaitable[Result]]) -> list[Result]:
    """The results of all, in the order of `works`.

    Raises: the first error, or CancelledError, after the others have ended.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
