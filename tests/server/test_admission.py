"""The door of a model: who is let in, and when it is idle."""

from __future__ import annotations

import asyncio

from dragoman.server.admission import Admission


def test_a_call_that_goes_on_at_once_with_another_permit_is_not_taken_for_gone() -> None:
    async def test() -> None:
        admission = Admission("m")
        with admission.permit():
            idle = asyncio.create_task(admission.wait_idle())
            await asyncio.sleep(0)
        with admission.permit():
            for _ in range(5):
                await asyncio.sleep(0)
            assert not idle.done()
        await idle

    asyncio.run(test())
