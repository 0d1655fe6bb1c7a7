"""Runs several coroutines as one: all finish, or none continues.

Does: run them together on the event loop, end the others when one fails. Does not: limit how many. Called by engines that
make several requests of one, and by those who ask for several answers at once.
"""

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
