"""Adapters that come and go in a running engine: room, uses, replacement, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.engine.rolling.adapters import AdapterBank, AdapterTable
from dragoman.errors import Conflict, InvalidRequest, NoMemory, NotFound, Overloaded, UnsupportedFeature
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.models.profile import AdapterOptions
from tests.support.adapters import matrices_of, write_adapter, write_gguf_adapter
from tests.support.family_checkpoint import write_family_checkpoint


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    base = write_family_checkpoint("qwen3", root / "base")
    modules = matrices_of(base, ("q_proj",))
    for name, rank in (("a", 4), ("b", 8), ("c", 4), ("large", 16)):
        write_adapter(root / name, modules, rank=rank)
    write_gguf_adapter(root / "a", root / "base", root / "a.gguf")
    return root


@pytest.fixture(scope="module")
def loaded(files: Path) -> LoadedModel:
    adapters = AdapterOptions((("a", files / "a"),), takes_more=True)
    return load_model(files / "base", replace(ModelOptions("f32", num_threads=1), adapters=adapters))


@pytest.fixture
def table(loaded: LoadedModel) -> AdapterTable:
    assert loaded.adapters is not None
    return AdapterTable(loaded.adapters, AdapterBank(loaded.adapters, 2, 8), takes_more=True)


def at_once(action: Callable[[], None]) -> Future[None]:
    """As an engine whose thread has nothing to do."""
    done: Future[None] = Future()
    action()
    done.set_result(None)
    return done


def load(table: AdapterTable, name: str, directory: Path, *, is_replacing: bool = False) -> None:
    asyncio.run(table.load(name, directory, at_once, is_replacing=is_replacing))


def test_an_adapter_is_known_by_what_is_in_it_in_every_process(
    table: AdapterTable, loaded: LoadedModel, files: Path
) -> None:
    first = table.use("a").key
    load(table, "b", files / "b")
    assert table.use("b").key != first
    assert loaded.adapters is not None
    again = AdapterTable(loaded.adapters, AdapterBank(loaded.adapters, 2, 8), takes_more=True)
    load(again, "by another name", files / "a.gguf")
    assert again.use("by another name").key == first
    with pytest.raises(InvalidRequest, match=r"Adapter no cannot be loaded: .*adapter_config\.json"):
        load(again, "no", files / "base")


def test_there_is_room_for_so_many_and_no_name_comes_twice(table: AdapterTable, files: Path) -> None:
    load(table, "b", files / "b")
    assert table.names == ("a", "b")
    with pytest.raises(Conflict, match="already loaded"):
        load(table, "b", files / "c")
    with pytest.raises(NoMemory, match="max_loras is 2, loaded: a, b"):
        load(table, "c", files / "c")
    asyncio.run(table.unload("a"))
    load(table, "c", files / "c")
    assert table.names == ("b", "c")
    with pytest.raises(NotFound):
        asyncio.run(table.unload("a"))


def test_a_slot_is_free_when_the_last_request_has_ended(table: AdapterTable, files: Path) -> None:
    load(table, "b", files / "b")
    uses = [table.use("a"), table.use("a")]
    asyncio.run(table.unload("a"))
    with pytest.raises(UnsupportedFeature):
        table.use("a")
    for use in uses:
        with pytest.raises(Overloaded, match="has to wait"):
            load(table, "c", files / "c")
        table.release(use)
    load(table, "c", files / "c")
    assert table.use("c").slot == uses[0].slot


def test_another_adapter_of_the_same_name_is_another_one(table: AdapterTable, files: Path) -> None:
    before = table.use("a")
    load(table, "a", files / "b", is_replacing=True)
    after = table.use("a")
    assert (before.slot, before.key) != (after.slot, after.key)
    assert before.key != after.key


@pytest.mark.parametrize(
    ("name", "said"), [("large", "max_lora_rank 8"), ("base", "adapter_config.json"), ("x", "x is no")]
)
def test_what_cannot_be_loaded_takes_no_room(table: AdapterTable, files: Path, name: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        load(table, "new", files / name)
    load(table, "new", files / "b")


def test_an_engine_that_ends_meanwhile_leaves_the_room_free(table: AdapterTable, files: Path) -> None:
    def never(action: Callable[[], None]) -> Future[None]:
        done: Future[None] = Future()
        done.set_exception(RuntimeError("over"))
        return done

    with pytest.raises(RuntimeError, match="over"):
        asyncio.run(table.load("b", files / "b", never))
    assert table.names == ("a",)
    load(table, "b", files / "b")
