"""A directory whose models any call may name: the host loads them, makes room, and takes memory back from idle ones."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import pytest

from dragoman.errors import EngineFailed, NoMemory, NotFound, NotLoaded
from tests.support.fake_models import LIMIT, MIB, Hosting, calling, needs, play, refusal, start, write_models
from tests.support.patience import until


async def use(found: Hosting, name: str) -> str:
    """The name of the model that answers a call for `name`."""
    async with found.host.get_or_load(name) as model:
        return model.name


def away(found: Hosting) -> list[str]:
    """The models that are listed, and loaded for whoever names them."""
    return [one.name for one in found.registry.unloaded]


def test_models_of_the_directory_are_listed_and_loaded_once(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await found.host.look()
        assert away(found) == ["a", "org/b"]
        with pytest.raises(NotLoaded):
            found.registry.find("org/b")
        assert await asyncio.gather(*(use(found, "org/b") for _ in range(5))) == ["org/b"] * 5
        assert found.builder.started == ["org/b"]
        assert (away(found), found.names) == (["a"], ["org/b"])
        assert isinstance(await refusal(use(found, "b")), NotFound)
        write_models(found.store, "late")
        assert isinstance(await refusal(use(found, "never")), NotFound)
        await asyncio.gather(found.host.look(), found.host.look())
        assert away(found) == ["a", "late"]

    play(tmp_path, scenario, "a", "org/b", is_named=True)


def test_callers_get_the_failure_and_the_next_call_tries_again(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await found.host.look()
        found.builder.failures["a"] = RuntimeError("the disk\nis gone")
        failures = await asyncio.gather(*(use(found, "a") for _ in range(3)), return_exceptions=True)
        assert [type(one) for one in failures] == [EngineFailed] * 3
        assert found.builder.started == ["a"]
        with pytest.raises(NotLoaded):
            found.registry.find("a")
        del found.builder.failures["a"]
        assert await use(found, "a") == "a"

    play(tmp_path, scenario, is_named=True)


def test_a_load_waits_for_models_in_use_if_that_makes_room(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.needs_by_name.update(a=needs(60), b=needs(60), c=needs(101))
        await use(found, "a")
        with calling(found.registry.find("a")):
            waiting = [asyncio.create_task(use(found, "b")) for _ in range(2)]
            await until(lambda: "b" in found.host._operations)
            assert isinstance(await refusal(use(found, "c")), NoMemory), "no waiting helps it"
            assert found.names == ["a"]
        assert await asyncio.gather(*waiting) == ["b", "b"]
        assert (found.names, found.builder.started) == (["b"], ["a", "b"])

    play(tmp_path, scenario, is_named=True)


def test_idle_models_are_unloaded_and_calls_load_them_again(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await found.host.look()
        await use(found, "a")
        model = found.registry.find("a")
        expires_s = found.host.status("a").expires_s
        assert expires_s is not None
        with calling(model):
            await until(lambda: time.time() > expires_s + 0.01)
            assert found.names == ["a"]
        await until(lambda: not found.host.statuses())
        assert (found.ledger.held_bytes, away(found)) == (0, ["a", "b", "c"])
        assert await use(found, "a") == "a"

    play(tmp_path, scenario, is_named=True, idle_s=0.05)


def test_a_call_can_set_how_long_its_model_stays(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        for name in "abc":
            await use(found, name)
        assert {one.expires_s for one in found.host.statuses()} == {None}
        a, b, c = (found.registry.find(name) for name in "abc")
        found.host.keep(a, 3600.0)
        found.host.keep(b, math.inf)
        found.host.pin("c")
        found.host.keep(c, 0.0)
        assert found.host.status("b").expires_s is None
        with calling(a):
            found.host.keep(a, 0.0)
            await asyncio.sleep(0)
            assert found.names == ["a", "b", "c"]
        await until(lambda: found.names == ["b", "c"])
        found.host.unpin("c")
        await until(lambda: found.names == ["b"])
        await use(found, "a")
        assert found.host.status("a").expires_s is None, "what a call said is over when its model has left"

    play(tmp_path, scenario, is_named=True)


def test_the_default_model_stays_the_default_while_unloaded(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await start(found, "a", "b")
        found.host.keep(found.registry.find("a"), 0.0)
        await until(lambda: found.names == ["b"])
        for name in (None, "default", "a"):
            with pytest.raises(NotLoaded) as told:
                found.registry.find(name)
            assert told.value.name == "a"
        assert await use(found, "a") == "a"
        assert (found.names, found.registry.find(None).name) == (["a", "b"], "a")
        await found.host.unload("a")  # an operator's word
        assert found.registry.find(None).name == "b"

    play(tmp_path, scenario, is_ready=False)


def test_a_server_of_one_model_still_has_one_while_it_is_unloaded(tmp_path: Path) -> None:
    """APIs that take any name where there is but one model go on doing so."""

    async def scenario(found: Hosting) -> None:
        await start(found, "a")
        found.host.keep(found.registry.find("a"), 0.0)
        await until(lambda: not found.names)
        assert found.registry.is_single
        with pytest.raises(NotLoaded):
            found.registry.find(None)

    play(tmp_path, scenario, is_ready=False)


def test_a_limit_of_memory_holds_for_the_only_model_of_the_start(tmp_path: Path) -> None:
    """Without one it may count on what is free once it is there."""

    async def scenario(found: Hosting) -> None:
        await start(found, "a")
        rooms.append(found.builder.rooms)

    rooms: list[list[int | None]] = []
    for number, line in enumerate(("--memory-gb 1", "")):
        play(tmp_path / str(number), scenario, is_ready=False, line=line)
    assert rooms == [[LIMIT - 15 * MIB], [None]]
