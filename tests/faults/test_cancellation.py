"""Cancellation as a contract, on every route of every API that generates: no step after the running one computes for it.

A call is cancelled by its client, who closes the connection, or by `POST /cancel/ID`: while it waits for its turn, in its
prompt, in its answer, or at any moment at all. Routes come from the APIs' tables: a new one is tested by being there.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from itertools import count, product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from dragoman.engine.base import EngineTools
from dragoman.engine.rolling.config import RollingConfig
from dragoman.models.facts import PictureFacts
from dragoman.server.operations import GenerateOperation
from dragoman.types import Detail, EngineRequest, Grammar, Picture, TokenMasker
from tests.engine.forward_gate import ForwardGate
from tests.engine.naive import make_request
from tests.faults.neighbours import with_grammars
from tests.faults.seeing import PLACEHOLDER_ID, seeing_parts, with_pictures
from tests.support.every_api import Calling, operations
from tests.support.maskers import ByForks
from tests.support.patience import PATIENCE_S
from tests.support.seeing import HeldLoader
from tests.support.small_server import (
    CALLS,
    SETTLING_STEPS,
    AppCall,
    LetterRunner,
    Parts,
    SmallServer,
    byte_tools,
    distinct,
    id_of,
    of_each_encoder,
    run,
    small_server,
)
from tests.support.tables import table
from tests.support.tiers import width

Way = Literal["leaves", "cancelled"]
ID = ("x-request-id", "mine")

WAYS: tuple[Way, ...] = ("leaves", "cancelled")
EACH_CALL = width(distinct(CALLS), of_each_encoder(CALLS))


def named(value: object) -> object:
    """For the name of a row."""
    return id_of(value) if isinstance(value, Calling) else value


async def end(server: SmallServer, call: AppCall, way: Way) -> None:
    """Have the call end, before anything else is computed, and see how it does."""
    if way == "leaves":
        call.leave()
    else:
        answer = await server.call("/cancel/mine").ended()
        assert (answer.status, answer.body) == (200, b'{"cancelled":1}')
    await call.ended()
    if way == "cancelled":
        assert b"was cancelled" in call.body or call.is_cut
        assert call.status >= 400 or call.is_complete or call.is_cut


def test_every_operation_that_generates_is_among_the_calls() -> None:
    paths = {one.path for one in operations() if type(one) is GenerateOperation}
    assert {calling.operation.path for calling in CALLS} == paths


@table("calling, way, num_free", product(EACH_CALL, WAYS, [0, 1, 6]), ids=named)
def test_what_runs_is_not_computed_any_more(calling: Calling, way: Way, num_free: int) -> None:
    """At first, in its prompt, in its answer."""

    async def test() -> None:
        gate = ForwardGate(num_free)
        runner = LetterRunner(before_forward=gate)
        config = RollingConfig(max_batch_tokens=16, prefix_cache="off")
        async with small_server(Parts(runner, config=config)) as server:
            call = server.call(calling, None, ID)
            await gate.reached()
            await end(server, call, way)
            gate.open()
            await server.settle()
            assert runner.num_forwards == num_free + 1 + SETTLING_STEPS

    run(test)


@table("calling, way", product(EACH_CALL, WAYS), ids=named)
def test_what_waits_is_never_computed(calling: Calling, way: Way) -> None:
    async def test() -> None:
        gate = ForwardGate(3)
        runner = LetterRunner(before_forward=gate)
        async with small_server(Parts(runner, config=RollingConfig(max_num_seqs=1))) as server:
            first = make_request([1, 2, 3], max_tokens=12, ignore_eos=True)
            running = asyncio.create_task(server.collect(first))
            await gate.reached()
            call = server.call(calling, None, ID)
            while not server.engine.health().num_waiting:  # noqa: ASYNC110  # the engine thread changes it
                await asyncio.sleep(0)
            await end(server, call, way)
            gate.open()
            tokens = await running
            await server.settle()
            assert runner.num_forwards == 12 + SETTLING_STEPS
            assert set(runner.batches) == {1}
        assert tokens == await undisturbed(first)

    run(test)


async def undisturbed(request: EngineRequest) -> list[int]:
    """The tokens of a request to a server that does nothing else."""
    async with small_server() as server:
        return await server.collect(request)


@table("calling", [one for one in EACH_CALL if b'"stream": true' in one.http.body], ids=named)
def test_what_a_client_does_not_read_is_not_computed_any_more_once_it_is_cancelled(calling: Calling) -> None:
    """The writer of such an answer waits for the client, and hears of nothing."""

    async def test() -> None:
        gate = ForwardGate(6)
        runner = LetterRunner(before_forward=gate)
        async with small_server(Parts(runner)) as server:
            call = server.call(calling, None, ID)
            call.stop_reading()
            await gate.reached()
            assert (await server.call("/cancel/mine").ended()).status == 200
            await server.unwanted()  # its answer may be ahead of what it began
            gate.open()
            await server.settle_engine()
            assert runner.num_forwards == 7 + SETTLING_STEPS
            call.read_on()
            await call.ended()
            await server.settle()

    run(test)


# --- at every await ----------------------------------------------------------------------------------------------------

_counter: contextvars.ContextVar[Countdown | None] = contextvars.ContextVar("counter", default=None)


class Countdown:
    """Counts how often any task of a call gives its turn away; does something the `at`-th time."""

    def __init__(self, at: int = 0, action: Callable[[], object] = lambda: None) -> None:
        self.count = 0
        self._at = at
        self.action = action

    def tick(self) -> None:
        self.count += 1
        if self.count == self._at:
            self.action()


class Counted(Coroutine[Any, Any, Any]):
    """A coroutine whose turns are counted."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], countdown: Countdown) -> None:
        self._coroutine = coroutine
        self._countdown = countdown

    def send(self, value: Any) -> Any:
        waited = self._coroutine.send(value)
        self._countdown.tick()
        return waited

    def throw(self, *error: Any) -> Any:
        waited = self._coroutine.throw(*error)
        self._countdown.tick()
        return waited

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()


def count_awaits() -> None:
    """From now on, count the turns of all tasks that are begun while there is a `_counter`."""

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        countdown = _counter.get()
        if countdown is not None and asyncio.iscoroutine(coroutine):
            coroutine = Counted(coroutine, countdown)
        return asyncio.Task(coroutine, loop=loop, **options)

    asyncio.get_running_loop().set_task_factory(factory)


def begin(server: SmallServer, calling: Calling, countdown: Countdown) -> AppCall:
    """Begin a call whose turns are counted."""
    token = _counter.set(countdown)
    try:
        return server.call(calling, None, ID)
    finally:
        _counter.reset(token)


END_WAYS = (*WAYS, "task")  # the last: the task of the call is cancelled, as a server does that ends at once
AT_AWAITS = width(
    list(product(EACH_CALL, END_WAYS)),
    [(calling, END_WAYS[(number + more) % 3]) for number, calling in enumerate(EACH_CALL) for more in (0, 1)],
)


@pytest.mark.varies("how often a task gives its turn away depends on the Python")
@table("calling, way", AT_AWAITS, ids=named)
def test_a_call_may_end_at_every_await(
    calling: Calling, way: Literal["leaves", "cancelled", "task"], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()  # what other rows logged

    async def test() -> None:
        beside = make_request([4, 5, 6], max_tokens=10, ignore_eos=True)
        expected = await undisturbed(beside)
        async with small_server() as server:
            count_awaits()
            whole = Countdown()
            answer = await begin(server, calling, whole).ended()
            assert answer.status < 400
            assert whole.count > 3
            number = 0
            while True:
                number += 1
                neighbour = asyncio.create_task(server.collect(beside)) if number % 8 == 0 else None
                countdown = Countdown(number)
                call = begin(server, calling, countdown)
                actions: dict[str, Callable[[], object]] = {
                    "leaves": call.leave,
                    "cancelled": lambda: contextvars.Context().run(server.call, "/cancel/mine"),
                    "task": call.task.cancel,
                }
                countdown.action = actions[way]
                await asyncio.gather(call.ended(), return_exceptions=way == "task")
                assert neighbour is None or await neighbour == expected
                await server.settle()
                if countdown.count < number:
                    break  # it had ended before
            assert number > 3
        assert not caplog.records, caplog.text

    run(test)


# --- grammars, masks, pictures -----------------------------------------------------------------------------------------

GUIDED = with_grammars()


class Held:
    """Something on another thread that waits until it is let go, and tells that it waits."""

    def __init__(self) -> None:
        self._is_reached = threading.Event()
        self.may_go = threading.Event()

    def wait(self) -> None:
        self._is_reached.set()
        assert self.may_go.wait(PATIENCE_S)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._is_reached.wait, PATIENCE_S)


class HeldMasker(ByForks):
    """A grammar's state that forbids nothing; its masks wait."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self.is_finished = False

    def fork(self) -> TokenMasker:
        return self

    def fill_mask(self, bitmask_row: Any) -> None:
        self._held.wait()
        bitmask_row[:] = np.uint32(0xFFFFFFFF)

    def advance(self, token_id: int) -> bool:
        return True

    def validate(self, token_ids: Sequence[int]) -> int:
        return len(token_ids)


def test_the_calls_without_a_grammar_are_those_of_apis_that_have_none() -> None:
    paths = {one.operation.path for one in CALLS} - {one.operation.path for one in GUIDED}
    assert paths == {"/api/generate-one", "/api/generate-batch", "/parrot/say"}


EACH_GUIDED = width(distinct(GUIDED), of_each_encoder(GUIDED))


@table("waits_for, calling, way", product(["check", "grammar", "mask"], EACH_GUIDED, WAYS), ids=named)
def test_who_waits_for_a_grammar_or_a_mask_is_not_computed_any_more(waits_for: str, calling: Calling, way: Way) -> None:
    async def test() -> None:
        held, runner, num_compiled = Held(), LetterRunner(), count(1)

        def compile_grammar(grammar: Grammar) -> TokenMasker:
            if next(num_compiled) == {"check": 1, "grammar": 2}.get(
                waits_for
            ):  # the server asks first, then the engine
                held.wait()
            return HeldMasker(held)

        tools = EngineTools(compile_grammar, byte_tools().watch_stops)
        async with small_server(Parts(runner, tools=tools)) as server:
            call = server.call(calling, None, ID)
            await held.reached()
            await end(server, call, way)
            held.may_go.set()
            await server.settle()
            assert runner.num_forwards == (1 if waits_for == "mask" else 0) + SETTLING_STEPS

    run(test)


class HeldTower:
    """Embeds pictures when it is let go."""

    def __init__(self, held: Held) -> None:
        self.facts = PictureFacts(PLACEHOLDER_ID)
        self.widths: list[int] = []  # of those it has embedded
        self._held = held

    def embed(self, picture: Picture, detail: Detail) -> Generator[None, None, npt.NDArray[np.float32]]:
        yield
        self._held.wait()
        self.widths.append(picture.width)
        return np.zeros((1, 3), dtype=np.float32)

    def grid(self, picture: Picture, detail: Detail) -> tuple[int, int]:
        return (1, 1)

    def close(self) -> None:
        """Nothing to release."""


WITH_PICTURES = with_pictures([1, 2])
EACH_WITH_PICTURES = width(distinct(WITH_PICTURES), of_each_encoder(WITH_PICTURES))


@table("calling, way", product(EACH_WITH_PICTURES, WAYS), ids=named)
def test_who_waits_for_a_picture_is_not_computed_and_no_other_picture_of_it_is_embedded(
    calling: Calling, way: Way
) -> None:
    async def test() -> None:
        held, runner = Held(), LetterRunner()
        tower = HeldTower(held)
        async with small_server(seeing_parts(tower, runner)) as server:
            call = server.call(calling, None, ID)
            await held.reached()
            await end(server, call, way)
            held.may_go.set()
            await server.settle()
            assert runner.num_forwards == SETTLING_STEPS
        assert tower.widths == [1]  # the engine has ended, and the tower with it

    run(test)


@table("calling, way", product(EACH_WITH_PICTURES, WAYS), ids=named)
def test_whose_pictures_are_still_brought_has_none_embedded(calling: Calling, way: Way) -> None:
    async def test() -> None:
        runner, loader, tower = LetterRunner(), HeldLoader(), HeldTower(Held())
        async with small_server(seeing_parts(tower, runner, loader)) as server:
            call = server.call(calling, None, ID)
            await asyncio.wait_for(loader.begun.wait(), PATIENCE_S)
            await end(server, call, way)
            assert loader.num_given_up == 1
            await server.settle()
            assert runner.num_forwards == SETTLING_STEPS
        assert tower.widths == []

    run(test)
