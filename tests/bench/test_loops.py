"""When requests are sent: as many at a time as there are clients, or at times that no answer changes."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time

import pytest

from dragoman.tools.bench.answer import Sample
from dragoman.tools.bench.load import Extent, Load, Run, arrivals, drive


def sample(due_s: float | None = None) -> Sample:
    now = time.perf_counter()
    return Sample(now if due_s is None else due_s, now, [now], now)


@pytest.mark.parametrize(("clients", "requests"), [(1, 5), (3, 10), (8, 3)])
def test_a_closed_loop_keeps_so_many_under_way_and_sends_every_number_once(clients: int, requests: int) -> None:
    numbers: list[int] = []
    under_way, most = 0, 0

    async def send(number: int, due_s: float | None) -> Sample:
        nonlocal under_way, most
        assert due_s is None
        numbers.append(number)
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return sample()

    run = Run(Extent(requests))
    asyncio.run(drive(run, Load("concurrency", clients), send, "seed"))
    assert numbers == list(range(requests))
    assert most == min(clients, requests)
    assert (len(run.samples), run.running, run.fraction) == (requests, 0, 1.0)


def test_an_open_loop_waits_for_no_answer() -> None:
    async def all_at_once() -> Run:
        everyone = asyncio.Event()
        run = Run(Extent(20))

        async def send(number: int, due_s: float | None) -> Sample:
            if number == 19:
                everyone.set()
            await everyone.wait()  # the first is answered when the last has been sent
            return sample(due_s)

        await drive(run, Load("rate", 1000.0), send, "seed")
        return run

    run = asyncio.run(all_at_once())
    times = itertools.islice(arrivals(1000.0, "seed"), 20)
    due = [one.due_s - run.begin_s for one in sorted(run.samples, key=lambda one: one.due_s)]
    assert due == pytest.approx(list(times))
    assert all(one.sent_s >= one.due_s for one in run.samples)


def test_arrivals_are_random_at_the_rate_and_the_same_for_a_seed() -> None:
    times = list(itertools.islice(arrivals(4.0, "a"), 4000))
    gaps = [later - earlier for earlier, later in itertools.pairwise([0.0, *times])]
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.1)  # as in a Poisson process
    assert times[:9] == list(itertools.islice(arrivals(4.0, "a"), 9))
    assert times[:9] != list(itertools.islice(arrivals(4.0, "b"), 9))


def test_an_open_loop_sends_nothing_that_is_due_after_its_duration() -> None:
    async def send(number: int, due_s: float | None) -> Sample:
        return sample(due_s)

    run = Run(Extent(duration_s=0.05))
    asyncio.run(drive(run, Load("rate", 400.0), send, "seed"))
    expected = sum(1 for _ in itertools.takewhile(lambda due_s: due_s < 0.05, arrivals(400.0, "seed")))
    assert len(run.samples) == expected > 0


def test_a_closed_loop_ends_with_its_duration() -> None:
    async def send(number: int, due_s: float | None) -> Sample:
        await asyncio.sleep(0.001)
        return sample()

    run = Run(Extent(duration_s=0.03))
    asyncio.run(drive(run, Load("concurrency", 2), send, "seed"))
    assert run.samples
    assert run.duration_s >= 0.03
    assert all(one.sent_s - run.begin_s < 10 for one in run.samples)


@pytest.mark.parametrize("load", [Load("concurrency", 2), Load("rate", 500.0)])
def test_what_was_answered_before_an_interruption_is_kept(load: Load) -> None:
    async def interrupted() -> Run:
        run, third = Run(Extent(10)), asyncio.Event()

        async def send(number: int, due_s: float | None) -> Sample:
            if number >= 2:
                third.set()
                await asyncio.Event().wait()  # never answered
            return sample(due_s)

        driving = asyncio.create_task(drive(run, load, send, "seed"))
        await third.wait()
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
        return run

    run = asyncio.run(interrupted())
    assert len(run.samples) == 2
    assert run.running >= 1
    assert run.end_s > run.begin_s
