"""An engine in whose place another one may come: nothing holds the old one when it is gone."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from dragoman.engine.factory import BuiltEngine
from dragoman.engine.renewable import RenewableEngine
from dragoman.errors import EngineDead
from tests.engine.naive import make_request
from tests.support.fake_engine import FakeEngine, saying


def test_the_error_of_a_request_holds_no_dead_engine() -> None:
    """An answer may take long to be read, and with it its error."""
    cause = MemoryError("no room")

    async def another() -> BuiltEngine:
        return BuiltEngine(FakeEngine(saying("abc")))

    async def test() -> None:
        error = EngineDead("it stopped")
        error.__cause__ = cause
        engine = FakeEngine(saying("abc"), error=error)
        renewable = RenewableEngine(BuiltEngine(engine))
        with pytest.raises(EngineDead, match="it stopped") as caught:
            await renewable.deliver(make_request([1, 2]), lambda output: True)
        gone = weakref.ref(engine)
        del engine
        await renewable.renew(another)
        gc.collect()
        assert gone() is None
        assert caught.value.__cause__ is cause

    asyncio.run(test())
