"""Replacing without a gap, and making what is served equal to what is wanted."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dragoman.errors import (
    Conflict,
    InvalidRequest,
    NoMemory,
    NotFound,
)
from dragoman.models import ModelError
from dragoman.server.hosting import ModelSource, ModelState
from tests.support.fake_models import SIZE, Hosting, answer, calling, held, load, needs, play, refusal, write_models
from tests.support.patience import until
from tests.support.tiers import examples

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


def test_calls_are_answered_during_all_replacements(tmp_path: Path) -> None:
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
        for _ in range(examples(20)):
            await found.host.replace(ModelSource("a"))
            # those before it leave when their calls have ended
            await until(lambda: found.ledger.available_bytes() >= SIZE)
        is_over = True
        await asyncio.gather(*clients)
        assert num_answers > examples(20)
        await until(lambda: held(found.ledger) == {"a": SIZE} and found.ledger.held_bytes == SIZE)

    play(tmp_path, scenario)


# --- reconciliation ---------------------------------------------------------------------------------------------------


def test_sync_unloads_missing_replaces_changed_and_loads_new_models(tmp_path: Path) -> None:
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


def test_sync_reports_its_failures_and_does_the_rest(tmp_path: Path) -> None:
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


def test_a_sync_that_does_not_fit_as_a_whole_changes_nothing(tmp_path: Path) -> None:
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
