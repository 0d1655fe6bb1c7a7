"""What the owner of the models promises: names, memory, failures, and that calls in flight are never harmed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dragoman.config.resolve import ConfigError
from dragoman.errors import (
    Cancelled,
    Conflict,
    EngineFailed,
    InvalidRequest,
    NoMemory,
    NotFound,
    ServerError,
    Unavailable,
)
from dragoman.models import ModelError
from dragoman.server.hosting import ModelHosting, ModelMemory, ModelSource, ModelState
from tests.support.fake_models import (
    LIMIT,
    MIB,
    SIZE,
    Hosting,
    answer,
    calling,
    held,
    hosting,
    needs,
    until,
    write_models,
)

Scenario = Callable[[Hosting], Awaitable[None]]


def play(tmp_path: Path, scenario: Scenario, *names: str, **options: object) -> None:
    """Run the scenario over a host whose store has these models, and end the host."""

    async def run() -> None:
        found = hosting(tmp_path, *(names or ("a", "b", "c")), **options)  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            await scenario(found)
            await found.host.close()

    asyncio.run(run())


async def load(found: Hosting, *names: str) -> None:
    for name in names:
        await found.host.load(ModelSource(name))


async def refusal(work: Awaitable[object]) -> ServerError:
    with pytest.raises(ServerError) as caught:
        await work
    return caught.value


def states(found: Hosting) -> dict[str, str]:
    return {status.name: str(status.state) for status in found.host.statuses()}


# --- load and unload --------------------------------------------------------------------------------------------------


def test_a_model_is_served_once_it_is_loaded_and_never_before(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.gates["a"] = asyncio.Event()
        loading = asyncio.create_task(found.host.load(ModelSource("a", version="2")))
        await until(lambda: found.builder.started)
        assert states(found) == {"a": "loading"}
        assert found.registry.expected_names == ("a",)
        with pytest.raises(Unavailable, match="still loading"):
            found.registry.find("a")
        found.builder.gates["a"].set()
        status = await loading
        assert (status.state, status.url, status.version) == (ModelState.READY, str(found.store / "a"), "2")
        assert status.loaded_s > 0
        assert found.registry.find("a") is found.registry.find("a/2") is found.registry.find(None)
        assert not found.registry.expected_names

    play(tmp_path, scenario)


def test_the_host_is_what_the_protocol_says(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        host: ModelHosting = found.host
        assert [source.name for source in host.stored()] == ["a", "b", "c"]

    play(tmp_path, scenario)


def test_an_unloaded_model_is_gone_and_the_next_one_is_the_default(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a", "b")
        engine, [built] = (
            found.engine("a"),
            [found.host._hosted["a"].built],
        )  # white box: nobody else sees the part that closes
        assert built is not None
        await found.host.unload("a")
        assert found.names == ["b"]
        assert found.registry.find(None).name == "b"
        assert (engine.num_shutdowns, built.is_closed) == (1, True)  # type: ignore[attr-defined]
        assert held(found.ledger) == {"b": SIZE}
        for name in ("a", "x"):
            assert isinstance(await refusal(found.host.unload(name)), NotFound)
        await found.host.unload("b")
        with pytest.raises(NotFound, match="no model is loaded"):
            found.registry.find(None)
        await load(found, "a")
        assert found.registry.find(None).name == "a"

    play(tmp_path, scenario)


def test_one_operation_at_a_time_has_a_name_and_other_names_go_on(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.gates["a"] = asyncio.Event()
        loading = asyncio.create_task(found.host.load(ModelSource("a")))
        await until(lambda: found.builder.started)
        await load(found, "b")
        for work in (found.host.load(ModelSource("a")), found.host.unload("a"), found.host.replace(ModelSource("a"))):
            assert "being loaded" in (await refusal(work)).message
        assert isinstance(await refusal(found.host.load(ModelSource("c", "b"))), Conflict)
        found.builder.gates["a"].set()
        await loading
        assert isinstance(await refusal(found.host.load(ModelSource("a"))), Conflict)
        assert found.names == ["b", "a"]

    play(tmp_path, scenario)


def test_running_calls_finish_before_a_model_goes_and_new_ones_are_refused(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a", "b")
        model, done = found.registry.find("a"), asyncio.Event()
        call = asyncio.create_task(answer(model, done))
        await until(lambda: model.admission.num_in_flight)
        unloading = asyncio.create_task(found.host.unload("a"))
        await until(lambda: states(found)["a"] == "unloading")
        with pytest.raises(Unavailable, match="Model a is being unloaded"):
            found.registry.find("a")
        with pytest.raises(Unavailable, match="being unloaded"), model.admission.permit():
            pass
        assert found.registry.find(None).name == "b"
        assert isinstance(await refusal(found.host.unload("a")), Conflict)
        assert held(found.ledger)["a"] == SIZE, "it is not gone yet"
        done.set()
        assert await call == "a"
        await unloading

    play(tmp_path, scenario)


def test_calls_that_do_not_finish_in_time_are_aborted(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")
        call = asyncio.create_task(answer(found.registry.find("a"), asyncio.Event()))
        await until(lambda: found.registry.find("a").admission.num_in_flight)
        await found.host.unload("a")
        assert isinstance(await refusal(call), Cancelled)

    play(tmp_path, scenario, drain_s=0.01)


def test_a_caller_who_goes_away_ends_nothing_halfway(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.gates["a"] = asyncio.Event()
        loading = asyncio.create_task(found.host.load(ModelSource("a")))
        await until(lambda: found.builder.started)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        found.builder.gates["a"].set()
        await until(lambda: found.names == ["a"])

    play(tmp_path, scenario)


def test_an_engine_that_fails_to_end_does_not_keep_its_place(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")

        async def fail(drain_s: float) -> None:
            raise RuntimeError("stuck")

        found.engine("a").shutdown = fail  # type: ignore[method-assign]
        await found.host.unload("a")
        assert found.ledger.held_bytes == 0

    play(tmp_path, scenario)


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        (ModelError("no weights"), InvalidRequest, "Model a cannot be used: no weights"),
        (ConfigError(["one", "two"]), InvalidRequest, "one; two"),
        (RuntimeError("broken"), EngineFailed, "Model a could not be loaded: RuntimeError: broken"),
        (MemoryError(), EngineFailed, "Model a could not be loaded: MemoryError: "),
    ],
)
def test_a_failed_load_leaves_everything_as_it_was(
    tmp_path: Path, failure: Exception, kind: type[ServerError], text: str
) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "b")
        found.builder.failures["a"] = failure
        error = await refusal(found.host.load(ModelSource("a")))
        assert (type(error), error.message) == (kind, text.strip())
        assert held(found.ledger) == {"b": SIZE}
        assert (found.names, found.registry.expected_names) == (["b"], ())
        status = found.host.status("a")
        assert (status.state, status.memory.total) == (ModelState.FAILED, 0)
        assert status.reason
        with pytest.raises(NotFound):
            found.registry.find("a")
        assert isinstance(await refusal(found.host.replace(ModelSource("a"))), NotFound)
        with pytest.raises(NotFound):
            found.host.pin("a")
        del found.builder.failures["a"]
        await load(found, "a")
        assert states(found) == {"b": "ready", "a": "ready"}

    play(tmp_path, scenario)


def test_a_failure_is_forgotten_when_asked_to_or_when_there_are_too_many(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        for number in range(110):
            name = f"m{number}"
            found.builder.failures[name] = ModelError("bad")
            await refusal(found.host.load(ModelSource("a", name)))
        assert len(found.host.statuses()) == 100
        await found.host.unload("m109")
        assert isinstance(await refusal(found.host.unload("m109")), NotFound)

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (ModelSource("../demo"), InvalidRequest),
        (ModelSource("s3://bucket/a"), InvalidRequest),
        (ModelSource("a", options={"dtype": "int5", "kv_dtype": "u9"}), InvalidRequest),
        (ModelSource("a", options={"port": "1"}), InvalidRequest),
        (ModelSource("x"), NotFound),
    ],
)
def test_what_the_store_does_not_allow_is_refused_in_one_line(
    tmp_path: Path, source: ModelSource, kind: type[ServerError]
) -> None:
    async def scenario(found: Hosting) -> None:
        for work in (found.host.load(source), found.host.replace(source)):
            error = await refusal(work)
            assert type(error) is kind
            assert "\n" not in error.message
        if "kv_dtype" in source.options:
            assert error.message.count("must be") == 2, "every problem is told"
        assert (found.builder.started, states(found)) == ([], {})

    play(tmp_path, scenario)


def test_nothing_is_done_while_the_server_loads_or_drains(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")
        found.registry.drain()
        works = [found.host.load(ModelSource("b")), found.host.unload("a"), found.host.replace(ModelSource("a")),
                 found.host.sync([]), found.host.get_or_load("b").__aenter__()]  # fmt: skip
        for work in works:
            assert isinstance(await refusal(work), Unavailable)

    play(tmp_path, scenario)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
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


def test_a_cache_grows_into_what_is_free_but_not_beyond_what_is_useful(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.needs_by_name.update(a=needs(20, 1, 200, 10), b=needs(10, 1, 2))
        await load(found, "a", "b")
        assert found.builder.rooms == [70 * MIB, 25 * MIB]
        assert found.host.status("a").memory == ModelMemory(20 * MIB, 35 * MIB, 10 * MIB)
        assert held(found.ledger) == {"a": 65 * MIB, "b": 12 * MIB}

    play(tmp_path, scenario)


def test_estimates_are_corrected_by_what_a_model_says_it_took(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.memory_by_name["a"] = ModelMemory(3, 4, 5)
        await load(found, "a")
        assert held(found.ledger) == {"a": 12}
        assert found.host.status("a").memory == ModelMemory(3, 4, 5)

    play(tmp_path, scenario)


def test_loads_side_by_side_share_what_is_there(tmp_path: Path) -> None:
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


# --- replace ----------------------------------------------------------------------------------------------------------


def test_a_replacement_leaves_no_gap_and_calls_finish_on_the_old_model(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a", "b")
        found.host.pin("a")
        old, done = found.registry.find("a"), asyncio.Event()
        call = asyncio.create_task(answer(old, done))
        found.builder.gates["a"] = asyncio.Event()
        replacing = asyncio.create_task(found.host.replace(ModelSource("a", version="2")))
        await until(lambda: found.builder.started == ["a", "b", "a"])
        assert found.host.status("a").is_replacing
        assert found.registry.find("a") is old, "it answers until the new one is ready"
        assert found.registry.is_single is False
        found.builder.gates["a"].set()
        status = await replacing
        new = found.registry.find("a")
        assert new is not old
        assert found.registry.find(None) is new is found.registry.find("a/2"), "the default stays the default"
        assert (status.version, status.is_pinned, status.is_replacing) == ("2", True, False)
        with calling(new):
            assert found.ledger.held_bytes == 3 * SIZE, "the old one is still there"
            done.set()
            assert await call == "a"
        await until(lambda: found.ledger.held_bytes == 2 * SIZE)
        assert old.engine.num_shutdowns == 1  # type: ignore[attr-defined]

    play(tmp_path, scenario)


def test_a_failed_replacement_leaves_the_old_model(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")
        old = found.registry.find("a")
        found.builder.failures["a"] = ModelError("bad")
        assert isinstance(await refusal(found.host.replace(ModelSource("a"))), InvalidRequest)
        assert found.registry.find("a") is old
        assert held(found.ledger) == {"a": SIZE}
        status = found.host.status("a")
        assert (status.state, status.is_replacing) == (ModelState.READY, False)
        assert isinstance(await refusal(found.host.replace(ModelSource("b"))), NotFound)

    play(tmp_path, scenario)


def test_calls_meet_a_model_whatever_is_replaced(tmp_path: Path) -> None:
    """Calls come all the time while a model is replaced again and again: none is refused or aborted."""

    async def scenario(found: Hosting) -> None:
        await load(found, "a")
        num_answers, is_over = 0, False

        async def client() -> None:
            nonlocal num_answers
            while not is_over:
                done = asyncio.Event()
                asyncio.get_running_loop().call_soon(done.set)
                await answer(found.registry.find("a"), done)
                num_answers += 1

        clients = [asyncio.create_task(client()) for _ in range(5)]
        for _ in range(20):
            await found.host.replace(ModelSource("a"))
        is_over = True
        await asyncio.gather(*clients)
        assert num_answers > 20
        await until(lambda: held(found.ledger) == {"a": SIZE} and found.ledger.held_bytes == SIZE)

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


def test_a_load_on_demand_that_fails_fails_for_all_that_wait(tmp_path: Path) -> None:
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


def test_room_is_made_by_the_least_recently_used_and_never_by_pinned_or_busy_models(tmp_path: Path) -> None:
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


def test_what_several_callers_are_waiting_for_is_not_dropped_for_each_other(tmp_path: Path) -> None:
    """More models are asked for than fit, by callers who come back: each gets its model, and holds it while it works."""
    names = [f"m{number}" for number in range(8)]

    async def scenario(found: Hosting) -> None:
        async def client(number: int) -> int:
            num_refused = 0
            for turn in range(15):
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


def test_who_asks_for_a_model_that_leaves_gets_it_again(tmp_path: Path) -> None:
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


# --- reconciliation ---------------------------------------------------------------------------------------------------


def test_sync_unloads_what_is_gone_replaces_what_changed_and_loads_what_is_new(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a", "b", "c")
        kept = found.registry.find("b")
        write_models(found.store, "d")
        (found.store / "c" / "serving.properties").write_text("option.max_num_seqs=3\n", encoding="utf-8")
        (found.store / "a" / "config.json").unlink()
        (found.store / "a").rmdir()
        result = await found.host.sync(found.host.stored())
        assert (result.unloaded, result.replaced, result.loaded) == (("a",), ("c",), ("d",))
        assert (result.unchanged, result.failures) == (("b",), {})
        assert found.registry.find("b") is kept
        assert found.names == ["b", "c", "d"]
        again = await found.host.sync(found.host.stored())
        assert again.unchanged == ("b", "c", "d")
        assert found.ledger.held_bytes == 3 * SIZE

    play(tmp_path, scenario)


def test_sync_does_what_it_can_and_tells_the_rest(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a", "b")
        found.host.pin("b")
        found.builder.failures["c"] = ModelError("bad")
        bad = ModelSource("a", "a", options={"dtype": "int5"})
        result = await found.host.sync([bad, ModelSource("c"), ModelSource("d")])
        assert set(result.failures) == {"a", "b", "c", "d"}
        assert found.names == ["a", "b"], "what cannot be judged and what is pinned stays"
        twice = await refusal(found.host.sync([ModelSource("a"), ModelSource("b", "a")]))
        assert isinstance(twice, InvalidRequest)

    play(tmp_path, scenario)


def test_a_sync_that_does_not_fit_as_a_whole_touches_nothing(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")
        found.builder.needs_by_name.update(b=needs(60), c=needs(41))
        error = await refusal(found.host.sync([ModelSource("b"), ModelSource("c")]))
        assert isinstance(error, NoMemory)
        assert found.names == ["a"]
        found.builder.needs_by_name["c"] = needs(40)
        assert (await found.host.sync([ModelSource("b"), ModelSource("c")])).loaded == ("b", "c")

    play(tmp_path, scenario)


def test_one_sync_at_a_time(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.gates["a"] = asyncio.Event()
        first = asyncio.create_task(found.host.sync([ModelSource("a")]))
        await until(lambda: found.builder.started)
        assert isinstance(await refusal(found.host.sync([])), Conflict)
        found.builder.gates["a"].set()
        assert (await first).loaded == ("a",)

    play(tmp_path, scenario)


# --- the end ----------------------------------------------------------------------------------------------------------


def test_the_end_gives_up_loads_and_stops_every_engine_once(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a", "b")
        engines = [found.engine("a"), found.engine("b")]
        call = asyncio.create_task(answer(found.registry.find("b"), asyncio.Event()))
        await until(lambda: found.registry.find("b").admission.num_in_flight)
        unloading = asyncio.create_task(found.host.unload("b"))
        await until(lambda: states(found)["b"] == "unloading")
        found.builder.gates["c"] = asyncio.Event()
        loading = asyncio.create_task(found.host.load(ModelSource("c")))
        await until(lambda: "c" in found.builder.started)
        await found.host.close()
        assert found.builder.ended[-1] == "c"
        assert [engine.num_shutdowns for engine in engines] == [1, 1]
        assert isinstance(await refusal(call), Cancelled)
        await unloading
        with pytest.raises(asyncio.CancelledError):
            await loading

    play(tmp_path, scenario)
