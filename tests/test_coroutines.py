"""Several coroutines as one."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.coroutines import together


def test_what_all_give_comes_in_their_order() -> None:
    async def later(value: int, *after: asyncio.Event) -> int:
        for event in after:
            await event.wait()
        return value

    async def test() -> None:
        is_last_done = asyncio.Event()

        async def last() -> int:
            is_last_done.set()
            return 2

        assert await together([later(1, is_last_done), last()]) == [1, 2]
        assert await together([]) == []

    asyncio.run(test())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_others_have_ended_before_a_failure_or_an_end_is_told(is_cancelled: bool) -> None:
    async def test() -> None:
        has_begun, ended = asyncio.Event(), []

        async def endless(number: int) -> None:
            try:
                has_begun.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)  # winding up takes a while
                ended.append(number)

        async def failing() -> None:
            await has_begun.wait()
            if is_cancelled:
                await asyncio.Event().wait()
            raise ValueError

        working = asyncio.create_task(together([endless(1), failing(), endless(2)]))
        await has_begun.wait()
        if is_cancelled:
            await asyncio.sleep(0)
            working.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else ValueError):
            await working
        assert sorted(ended) == [1, 2]

    asyncio.run(test())
