"""Which upstream a prompt goes to: the one that has its beginning, as long as that has no more than its share."""

from __future__ import annotations

import asyncio

from dragoman.engine.base import Engine
from tests.contract.asking import run
from tests.engine.remote.asking import beginning, remote, request, text
from tests.support.fake_upstream import FakeUpstream
from tests.support.patience import until


def servers(count: int) -> list[FakeUpstream]:
    return [FakeUpstream(max_model_len=256) for _ in range(count)]


async def asked(engine: Engine, upstreams: list[FakeUpstream], prompt: str) -> int:
    """The place of the server that answers."""
    before = [len(one.bodies) for one in upstreams]
    await text(engine, request(text=prompt))
    (place,) = [place for place, one in enumerate(upstreams) if len(one.bodies) > before[place]]
    return place


def test_prompts_that_begin_alike_go_to_one_server_and_others_to_all() -> None:
    upstreams = servers(3)

    async def test() -> None:
        async with remote(*upstreams) as engine:
            homes: list[int] = []
            for number in range(40):
                places = {await asked(engine, upstreams, beginning(number) + end) for end in ("", "one", "and two")}
                assert len(places) == 1
                homes += places
            assert set(homes) == {0, 1, 2}

    run(test())


def test_requests_of_one_key_go_to_one_server_and_those_of_many_to_all() -> None:
    upstreams = servers(3)

    async def asked_with(engine: Engine, key: str) -> int:
        before = [len(one.bodies) for one in upstreams]
        await text(engine, request(cache_key=key))
        (place,) = [place for place, one in enumerate(upstreams) if len(one.bodies) > before[place]]
        return place

    async def test() -> None:
        async with remote(*upstreams) as engine:
            assert engine.capabilities.cache_key
            homes = [{await asked_with(engine, f"conversation {number}") for _ in range(3)} for number in range(20)]
            assert all(len(places) == 1 for places in homes)
            assert set.union(*homes) == {0, 1, 2}
        async with remote(upstreams[0]) as engine:
            assert not engine.capabilities.cache_key

    run(test())


def test_a_server_with_its_share_keeps_its_beginnings_and_one_with_more_does_not() -> None:
    upstreams = servers(3)

    async def test() -> None:
        async with remote(*upstreams) as engine:
            beginnings: dict[int, str] = {}
            for number in range(40):
                beginnings[await asked(engine, upstreams, beginning(number))] = beginning(number)
            holding: list[asyncio.Task[str]] = []

            async def hold(place: int) -> None:
                upstreams[place].hangs_after = 1
                holding.append(asyncio.create_task(text(engine, request(text=beginnings[place]))))
                await until(lambda: sum(running()) == len(holding))
                upstreams[place].hangs_after = None

            def running() -> list[int]:
                return [one.num_hanging for one in upstreams]

            for place in (0, 1, 2, 1):
                await hold(place)
            assert running() == [1, 2, 1]
            holding[2].cancel()
            await until(lambda: running() == [1, 2, 0])
            assert await asked(engine, upstreams, beginnings[0]) == 0, "it has just the mean, and room for one more"
            assert await asked(engine, upstreams, beginnings[1]) != 1, (
                "it would have more than a quarter above the mean"
            )
            for task in holding:
                task.cancel()
            await asyncio.gather(*holding, return_exceptions=True)
            await until(lambda: running() == [0, 0, 0])
            assert await asked(engine, upstreams, beginnings[1]) == 1

    run(test())
