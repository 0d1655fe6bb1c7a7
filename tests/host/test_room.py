"""Memory: what does not fit is refused untouched, and room is made by idle models alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dragoman.errors import (
    Conflict,
    InvalidRequest,
    NoMemory,
    NotFound,
)
from dragoman.models import ModelError
from dragoman.server.hosting import ModelMemory, ModelSource
from tests.support.fake_models import (
    LIMIT,
    MIB,
    SIZE,
    Hosting,
    answer,
    calling,
    held,
    load,
    needs,
    play,
    refusal,
    start,
    states,
)
from tests.support.patience import until
from tests.support.tiers import everything

# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_is_refused_without_changes(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")
        found.builder.needs_by_name.update(b=needs(70, 11), a=needs(70, 11))
        before, models = states(found), found.registry.models
        for work in (found.host.load(ModelSource("b")), found.host.replace(ModelSource("a"))):
            error = await refusal(work)
            assert isinstance(error, NoMemory)
            assert "it needs 81 MiB, 80 MiB are available (a holds 20 MiB)" in error.message
        assert (states(found), found.registry.models) == (before, models)
        assert found.builder.started == ["a"]
        assert held(found.ledger) == {"a": SIZE}
        found.free[0] = 10 * MIB
        assert "10 MiB are available" in (await refusal(found.host.load(ModelSource("c")))).message

    play(tmp_path, scenario)


def test_the_first_model_that_does_not_fit_ends_the_start(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.needs_by_name.update(a=needs(50, 10), b=needs(40, 1))
        with pytest.raises(
            ModelError, match=r"model b does not fit into memory: it needs 41 MiB.* 40 MiB are available"
        ):
            await start(found, "a", "b", "c")
        assert found.builder.started == ["a"]

    play(tmp_path, scenario, is_ready=False)


def test_a_cache_takes_free_memory_up_to_the_useful_size(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.needs_by_name.update(a=needs(20, 1, 200, 10), b=needs(10, 1, 2))
        await load(found, "a", "b")
        assert found.builder.rooms == [70 * MIB, 25 * MIB]
        assert found.host.status("a").memory == ModelMemory(20 * MIB, 35 * MIB, 10 * MIB)
        assert held(found.ledger) == {"a": 65 * MIB, "b": 12 * MIB}

    play(tmp_path, scenario)


def test_estimates_are_corrected_by_the_models_size(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.memory_by_name["a"] = ModelMemory(3, 4, 5)
        await load(found, "a")
        assert held(found.ledger) == {"a": 12}
        assert found.host.status("a").memory == ModelMemory(3, 4, 5)

    play(tmp_path, scenario)


def test_simultaneous_loads_share_the_memory(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        for name in "abc":
            found.builder.needs_by_name[name] = needs(40)
            found.builder.gates[name] = asyncio.Event()
        loads = [asyncio.create_task(found.host.load(ModelSource(name))) for name in "abc"]
        await until(lambda: len(found.builder.started) == 2 and sum(task.done() for task in loads) == 1)
        for gate in found.builder.gates.values():
            gate.set()
        ends = await asyncio.gather(*loads, return_exceptions=True)
        assert [type(end) for end in ends].count(NoMemory) == 1
        assert found.ledger.held_bytes == 80 * MIB

    play(tmp_path, scenario)


# --- pins and demand --------------------------------------------------------------------------------------------------


def test_a_pinned_model_is_not_unloaded(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")
        found.host.pin("a")
        found.host.pin("a")
        error = await refusal(found.host.unload("a"))
        assert (type(error), error.message) == (Conflict, "Model a is pinned; unpin it first")
        found.host.unpin("a")
        await found.host.unload("a")
        for act in (found.host.pin, found.host.unpin, found.host.status):
            with pytest.raises(NotFound):
                act("a")

    play(tmp_path, scenario)


def test_callers_of_one_name_share_one_load(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.gates["a"] = asyncio.Event()

        async def ask() -> str:
            async with found.host.get_or_load("a") as model:
                return model.name

        callers = [asyncio.create_task(ask()) for _ in range(10)]
        await until(lambda: found.builder.started)
        callers[0].cancel()
        found.builder.gates["a"].set()
        ends = await asyncio.gather(*callers, return_exceptions=True)
        assert ends[1:] == ["a"] * 9, "one that gave up does not end it for the others"
        assert found.builder.started == ["a"]
        assert await ask() == "a"

    play(tmp_path, scenario)


def test_a_failed_load_on_demand_fails_for_all_waiting_calls(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.gates["a"] = asyncio.Event()
        found.builder.failures["a"] = ModelError("bad")
        callers = [asyncio.create_task(found.host.get_or_load("a").__aenter__()) for _ in range(3)]
        await until(lambda: found.builder.started)
        found.builder.gates["a"].set()
        assert {type(await refusal(caller)) for caller in callers} == {InvalidRequest}
        assert found.builder.started == ["a"]
        for name in ("x", "../demo", ""):
            assert isinstance(await refusal(found.host.get_or_load(name).__aenter__()), NotFound)

    play(tmp_path, scenario)


def test_the_least_recently_used_models_make_room_never_pinned_or_busy_ones(tmp_path: Path) -> None:
    names = ("a", "b", "c", "d", "e", "f", "g")

    async def scenario(found: Hosting) -> None:
        await load(found, *"abcde")
        found.host.pin("a")
        for name in "cdeb":  # b is the last one that was used
            with calling(found.registry.find(name)):
                pass
        with calling(found.registry.find("c")):
            async with found.host.get_or_load("f") as model:
                assert model.name == "f"
                assert sorted(found.names) == ["a", "b", "c", "e", "f"], "d was the least recently used idle one"
                found.builder.needs_by_name["g"] = needs(41)
                assert isinstance(await refusal(found.host.get_or_load("g").__aenter__()), NoMemory)
                assert sorted(found.names) == ["a", "b", "c", "e", "f"], "nothing was dropped in vain"
                found.builder.needs_by_name["g"] = needs(40)
                async with found.host.get_or_load("g"):
                    assert sorted(found.names) == ["a", "c", "f", "g"]
        assert found.ledger.held_bytes == LIMIT

    play(tmp_path, scenario, *names)


def test_the_default_model_of_the_start_stays(tmp_path: Path) -> None:
    """Calls without a name mean it, and would silently mean another one."""

    async def scenario(found: Hosting) -> None:
        found.builder.needs_by_name.update(a=needs(20), b=needs(20), c=needs(90))
        await start(found, "a", "b")
        assert isinstance(await refusal(found.host.get_or_load("c").__aenter__()), NoMemory)
        found.builder.needs_by_name["c"] = needs(80)
        async with found.host.get_or_load("c"):
            assert found.names == ["a", "c"]
            assert found.registry.find(None).name == "a"
            assert found.registry.unloaded_called("b")

    play(tmp_path, scenario, is_ready=False)


def test_a_dropped_model_is_loaded_again_unless_it_was_unloaded(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.needs_by_name.update(x=needs(60), b=needs(60))
        await found.host.load(ModelSource("a", "x", "7", {"max_num_seqs": "3"}))
        async with found.host.get_or_load("b"):
            assert found.names == ["b"]
            assert states(found) == {"b": "ready"}
        async with found.host.get_or_load("x/7") as model:
            assert (model.name, model.version) == ("x", "7")
            assert found.builder.configs[-1].engine.max_num_seqs == 3
        async with found.host.get_or_load("b"):
            await found.host.unload("x")
        assert isinstance(await refusal(found.host.get_or_load("x").__aenter__()), NotFound)

    play(tmp_path, scenario)


def test_models_that_calls_wait_for_are_not_dropped_for_each_other(tmp_path: Path) -> None:
    """More models are asked for than fit, by callers who come back: each gets its model, and holds it while it works."""
    names = [f"m{number}" for number in range(8)]

    async def scenario(found: Hosting) -> None:
        async def client(number: int) -> int:
            num_refused = 0
            for turn in range(15 if everything() else 5):
                name = names[(number * 3 + turn * 5) % len(names)]
                try:
                    async with found.host.get_or_load(name) as model:
                        assert model.name == name
                        done = asyncio.Event()
                        asyncio.get_running_loop().call_soon(done.set)
                        assert await answer(model, done) == name
                except NoMemory:
                    num_refused += 1
                assert found.ledger.held_bytes <= LIMIT
            return num_refused

        refused = await asyncio.gather(*(client(number) for number in range(4)))
        assert sum(refused) == 0, "at most four of five places are busy at a time"

    play(tmp_path, scenario, *names)


def test_a_call_for_a_leaving_model_loads_it_again(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")
        done = asyncio.Event()
        call = asyncio.create_task(answer(found.registry.find("a"), done))
        await until(lambda: found.registry.find("a").admission.num_in_flight)
        unloading = asyncio.create_task(found.host.unload("a"))
        await until(lambda: states(found)["a"] == "unloading")
        asking = asyncio.create_task(found.host.get_or_load("a").__aenter__())
        await until(lambda: found.host._num_callers)  # white box: it waits
        done.set()
        await asyncio.gather(call, unloading)
        assert (await asking).name == "a"
        assert found.builder.started == ["a", "a"]

    play(tmp_path, scenario)
