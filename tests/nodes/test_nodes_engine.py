"""Several nodes behind one engine: who gets a request, and what becomes of it when a node is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

from dragoman.engine.base import Capabilities, Engine, PromptProgress
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.errors import EngineDead, EngineFailed, InvalidRequest, NotFound
from dragoman.types import EngineRequest, SamplingParams
from tests.engine.fake_runner import FakeRunner
from tests.engine.forward_gate import ForwardGate
from tests.support.letters import VOCAB_SIZE, letter_tools
from tests.support.near_nodes import NearProcess, OnNearNodes
from tests.support.patience import PATIENCE_S, until

PROMPT = (1, 2, 3)  # less than a block: whoever is idle gets it, the first one first


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes and servers that were lost are tried again at once."""
    monkeypatch.setattr("dragoman.nodes.engine.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("dragoman.engine.remote.fleet.FIRST_RETRY_S", 0.01)


class Gate:
    """What an engine's steps wait at. `is_reached`: a step has come to it. `most_s`: a step waits no longer than that."""

    def __init__(self, most_s: float = PATIENCE_S) -> None:
        self.is_open, self.is_reached = Event(), Event()
        self._most_s = most_s

    def __call__(self, batch: Any) -> None:
        self.is_reached.set()
        self.is_open.wait(self._most_s)


def engine(gate: Callable[[Any], None] | None = None) -> Engine:
    runner = FakeRunner(num_blocks=400, vocab_size=VOCAB_SIZE, max_model_len=256)
    runner.before_forward = gate
    return RollingEngine(runner, Sampler(VOCAB_SIZE), RollingConfig(max_num_seqs=8), (), letter_tools())


class HoldsAdapters(RollingEngine):
    """Has adapters by name alone. A change waits until it may: `may_change` is asked whenever the event loop turns."""

    def __init__(self, may_change: Callable[[HoldsAdapters, str], bool] = lambda engine, name: True) -> None:
        runner = FakeRunner(num_blocks=400, vocab_size=VOCAB_SIZE, max_model_len=256)
        super().__init__(runner, Sampler(VOCAB_SIZE), RollingConfig(max_num_seqs=8), (), letter_tools())
        self._may_change = may_change
        self.held: list[str] = []
        self.asked: list[str] = []

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, adapters=tuple(self.held))

    async def load_adapter(self, name: str, directory: Path, *, is_replacing: bool = False) -> None:
        self.asked.append(name)
        await until(lambda: self._may_change(self, name))
        self.held.append(name)

    async def unload_adapter(self, name: str) -> None:
        if name not in self.held:
            raise NotFound(f"there is no adapter {name}")
        self.held.remove(name)


class RefusesAdapters(HoldsAdapters):
    """Has none."""

    async def load_adapter(self, name: str, directory: Path, *, is_replacing: bool = False) -> None:
        await super().load_adapter(name, directory)
        raise InvalidRequest(f"{name} is no adapter", param="lora_path")


def held(process: NearProcess) -> list[str]:
    engine = process.engine
    assert isinstance(engine, HoldsAdapters)
    return engine.held


def is_well(nodes: OnNearNodes) -> list[bool]:
    return [one.is_healthy for one in nodes.health().upstreams]


def asking(prompt: tuple[int, ...], max_tokens: int = 4) -> EngineRequest:
    return EngineRequest("request", prompt, SamplingParams(), max_tokens, seed=1)


async def answer(nodes: OnNearNodes, request: EngineRequest) -> list[int]:
    return [token async for output in nodes.generate(request) for token in output.token_ids]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 2 * PATIENCE_S))


def num_computed(process: NearProcess) -> int:
    return process.engine.stats().num_prompt_tokens or 0


def test_prompts_that_begin_alike_go_to_one_node_and_others_to_all() -> None:
    async def test() -> None:
        nodes = OnNearNodes(engine(), engine())
        await nodes.start()
        try:
            beginnings = [tuple(1 + (number + place) % 20 for place in range(64)) for number in range(12)]
            for last in (1, 2, 3):
                assert len(await answer(nodes, asking((*beginnings[0], last)))) == 4
            assert sorted(num_computed(process) > 0 for process in nodes.near) == [False, True]
            for beginning in beginnings:
                await answer(nodes, asking(beginning))
            assert all(num_computed(process) for process in nodes.near)
            assert nodes.stats().num_generated_tokens == 4 * (3 + len(beginnings))
        finally:
            await nodes.shutdown(0.0)

    run(test)


def test_how_far_a_request_is_comes_from_the_node_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.cli.node_process.GAUGES_S", 0.005)

    async def test() -> None:
        gate = Gate(0.02)  # so that the request before the waiting one takes longer than to be told of this one
        nodes = OnNearNodes(engine(gate))
        await nodes.start()
        try:
            filling = msgspec.structs.replace(asking(PROMPT, 240), sampling=SamplingParams(n=8, ignore_eos=True))
            running = asyncio.create_task(answer(nodes, filling))
            await until(gate.is_reached.is_set)
            waiting = asyncio.create_task(answer(nodes, msgspec.structs.replace(asking(PROMPT), request_id="later")))
            found: list[PromptProgress] = []

            def is_told() -> bool:
                progress = nodes.progress("later")
                found.extend([] if progress is None else [progress])
                return bool(found) or waiting.done()

            await until(is_told)
            gate.is_open.set()
            running.cancel()
            assert (found[0].num_tokens, found[0].has_begun, found[0].num_ahead) == (len(PROMPT), False, 0)
            assert len(await waiting) == 4
            assert nodes.progress("later") is None
        finally:
            await nodes.shutdown(0.0)

    run(test)


def test_what_a_lost_node_had_not_begun_is_answered_by_another_and_a_new_process_takes_its_place() -> None:
    async def test() -> None:
        gate = Gate()
        nodes = OnNearNodes(engine(gate), engine(), again=engine)
        await nodes.start()
        try:
            waiting = asyncio.create_task(answer(nodes, asking(PROMPT)))
            await until(gate.is_reached.is_set)
            losing = asyncio.create_task(nodes.near[0].lose())
            assert len(await waiting) == 4
            assert num_computed(nodes.near[1]) == len(PROMPT)
            assert nodes.health().is_alive
            gate.is_open.set()
            await losing
            await until(lambda: all(one.is_healthy for one in nodes.health().upstreams))
            assert await answer(nodes, asking(PROMPT)) == await waiting
            assert num_computed(nodes.processes.started_again[0]) == len(PROMPT)
        finally:
            gate.is_open.set()
            await nodes.shutdown(0.0)

    run(test)


def test_an_answer_that_has_begun_fails_with_its_node() -> None:
    async def test() -> None:
        gate = ForwardGate(2)
        nodes = OnNearNodes(engine(gate), engine())
        await nodes.start()
        try:
            outputs = nodes.generate(asking(PROMPT, max_tokens=200))
            await anext(outputs)
            losing = asyncio.create_task(nodes.near[0].lose())
            with pytest.raises(EngineFailed):
                async for _ in outputs:
                    pass
            gate.open()
            await losing
            assert len(await answer(nodes, asking(PROMPT))) == 4
            await until(lambda: nodes.processes.num_attempts > 1)  # what fails is tried again
            assert [one.is_healthy for one in nodes.health().upstreams] == [False, True]
        finally:
            await nodes.shutdown(0.0)

    run(test)


def test_without_any_node_the_engine_is_dead_and_says_why() -> None:
    async def test() -> None:
        gates = [Gate(), Gate()]
        nodes = OnNearNodes(*map(engine, gates), again=engine)
        await nodes.start()
        try:
            waiting = asyncio.create_task(answer(nodes, asking(PROMPT)))
            await until(gates[0].is_reached.is_set)
            losing = [asyncio.create_task(process.lose()) for process in nodes.near]
            with pytest.raises(EngineDead, match=r"node[01]"):
                await waiting
            assert not nodes.health().is_alive
            for gate in gates:
                gate.is_open.set()
            await asyncio.gather(*losing)
            with pytest.raises(EngineDead):
                await answer(nodes, asking(PROMPT))
            assert not nodes.processes.num_attempts  # the host makes a new engine
        finally:
            await nodes.shutdown(0.0)

    run(test)


@pytest.mark.parametrize("lost", [0, 1])
def test_an_adapter_is_loaded_on_the_nodes_that_are_left_and_on_a_lost_one_when_it_is_back(lost: int) -> None:
    """Lost: the node that loads it at that moment, and one whose turn is still to come."""

    async def test() -> None:
        is_open = False
        nodes = OnNearNodes(
            *(HoldsAdapters(lambda *_: is_open) for _ in range(3)), again=lambda: HoldsAdapters(lambda *_: is_open)
        )
        await nodes.start()
        try:
            loading = asyncio.create_task(nodes.load_adapter("sql", Path("sql")))
            await until(lambda: bool(nodes.near[0].engine.asked))  # type: ignore[attr-defined]
            await nodes.near[lost].lose()
            await until(lambda: not is_well(nodes)[lost])
            is_open = True
            await loading
            assert nodes.capabilities.adapters == ("sql",)
            assert [held(process) for number, process in enumerate(nodes.near) if number != lost] == [["sql"]] * 2
            await until(lambda: all(is_well(nodes)))
            assert held(nodes.processes.started_again[0]) == ["sql"]
        finally:
            await nodes.shutdown(0.0)

    run(test)


def test_an_adapter_that_a_node_refuses_is_on_none_also_when_one_of_them_is_lost() -> None:
    async def test() -> None:
        is_open = False
        nodes = OnNearNodes(HoldsAdapters(), HoldsAdapters(), RefusesAdapters(lambda *_: is_open))
        await nodes.start()
        try:
            loading = asyncio.create_task(nodes.load_adapter("sql", Path("sql")))
            await until(lambda: bool(nodes.near[2].engine.asked))  # type: ignore[attr-defined]
            await nodes.near[0].lose()
            await until(lambda: not is_well(nodes)[0])
            is_open = True
            with pytest.raises(InvalidRequest):
                await loading
            assert held(nodes.near[1]) == []
            assert nodes.capabilities.adapters == ()
        finally:
            await nodes.shutdown(0.0)

    run(test)


def test_without_any_node_an_adapter_is_not_loaded() -> None:
    async def test() -> None:
        nodes = OnNearNodes(HoldsAdapters(lambda *_: False), HoldsAdapters(lambda *_: False))
        await nodes.start()
        try:
            loading = asyncio.create_task(nodes.load_adapter("sql", Path("sql")))
            for process in nodes.near:
                await process.lose()
            with pytest.raises(EngineDead):
                await loading
        finally:
            await nodes.shutdown(0.0)

    run(test)


def test_a_new_process_also_takes_the_adapter_that_came_while_it_caught_up() -> None:
    async def test() -> None:
        is_open = False
        nodes = OnNearNodes(HoldsAdapters(), HoldsAdapters(), again=lambda: HoldsAdapters(lambda *_: is_open))
        await nodes.start()
        try:
            await nodes.load_adapter("first", Path("first"))
            await nodes.near[0].lose()
            await until(lambda: any(process.engine.asked for process in nodes.processes.started_again))  # type: ignore[attr-defined]
            await nodes.load_adapter("second", Path("second"))
            is_open = True
            await until(lambda: all(is_well(nodes)))
            assert held(nodes.processes.started_again[0]) == ["first", "second"]
            assert nodes.processes.num_attempts == 1
        finally:
            await nodes.shutdown(0.0)

    run(test)


def test_a_process_that_is_lost_while_it_catches_up_is_dropped_and_followed_by_one_other() -> None:
    async def test() -> None:
        made: list[HoldsAdapters] = []

        def again() -> HoldsAdapters:
            made.append(HoldsAdapters(lambda engine, _: engine is not made[0]))
            return made[-1]

        nodes = OnNearNodes(HoldsAdapters(), HoldsAdapters(), again=again)
        await nodes.start()
        try:
            for name in ("first", "second"):
                await nodes.load_adapter(name, Path(name))
            await nodes.near[0].lose()
            await until(lambda: bool(made and made[0].asked))
            first = nodes.processes.started_again[0]
            await first.lose()
            await until(lambda: all(is_well(nodes)))
            assert first in nodes.processes.dropped
            last = nodes.processes.started_again[-1]
            assert held(last) == ["first", "second"]
            await last.lose()  # it is the node's only one: nothing of the first stands in its place
            await until(lambda: not is_well(nodes)[0])
            await until(lambda: all(is_well(nodes)))
            assert nodes.processes.num_attempts == 3
        finally:
            await nodes.shutdown(0.0)

    run(test)
