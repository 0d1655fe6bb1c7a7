"""Adapters for vLLM: what it is started with, which files are refused, and who may use which. Needs no vllm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.config.bundled import BUNDLED
from dragoman.engine.factory import EngineOptionError, EngineSetup
from dragoman.engine.vllm.adapters import VllmAdapters, plan_adapters
from dragoman.engine.vllm.worker import AdapterWitness
from dragoman.errors import Conflict, EngineDead, InvalidRequest, NoMemory, NotFound, Overloaded, UnsupportedFeature
from dragoman.models import ModelError
from tests.support.adapters import matrices_of, write_adapter

DEMO = BUNDLED["demo"]
MODULES = matrices_of(DEMO, ("q_proj", "down_proj"))
Check = Callable[["FakeVllm", VllmAdapters], Coroutine[Any, Any, None]]


class FakeVllm:
    """Keeps adapters as vLLM does. `problem`: what it says of the next one; `left_out`: what its workers do."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[str, str]] = {}
        self.errored = False
        self.renderer = None
        self.problem = ""
        self.left_out: list[list[str]] = [[], []]

    def generate(self, *arguments: Any, **options: Any) -> AsyncGenerator[Any, None]:
        raise NotImplementedError

    async def add_lora(self, lora_request: Any) -> bool:
        if self.problem:
            raise Exception(self.problem)
        name, number, directory = lora_request
        self.held[number] = (name, directory)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        return self.held.pop(lora_id, None) is not None

    async def collective_rpc(self, method: str, *, args: tuple[Any, ...]) -> list[Any]:
        assert method in dir(AdapterWitness)
        assert args[0] in self.held
        return self.left_out

    def shutdown(self) -> None:
        raise NotImplementedError


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("one", "two", "three")):
        write_adapter(root / name, MODULES, seed=seed)
    write_adapter(root / "large", MODULES, rank=20)
    write_adapter(root / "huge", MODULES, rank=600)
    write_adapter(root / "embeddings", matrices_of(DEMO, ("embed_tokens",)))
    write_adapter(root / "foreign", {"model.layers.99.self_attn.q_proj": (64, 64)})
    write_adapter(root / "misshapen", {module: (shape[0], shape[1] // 2) for module, shape in MODULES.items()})
    return root


def setup_of(**options: Any) -> EngineSetup:
    return EngineSetup(DEMO, options)


def named(store: Path, *names: str) -> tuple[str, ...]:
    return tuple(f"{name}={store / name}" for name in names)


@pytest.mark.parametrize(
    ("names", "options", "expected"),
    [
        (("one", "two"), {}, (2, 8)),
        (("one", "large"), {}, (2, 32)),
        (("one",), {"enable_lora": True}, (4, 16)),
        ((), {"enable_lora": True, "max_loras": 3}, (3, 16)),
        (("large",), {"enable_lora": True, "max_loras": 3}, (3, 32)),
        ((), {"enable_lora": True, "max_loras": 2, "max_lora_rank": 100}, (2, 128)),
    ],
)
def test_vllm_is_started_with_room_for_them(
    store: Path, names: tuple[str, ...], options: Mapping[str, Any], expected: tuple[int, int]
) -> None:
    plan = plan_adapters(setup_of(lora=named(store, *names), **options))
    assert plan is not None
    num_slots, rank = expected
    arguments = plan.arguments()
    assert (arguments["enable_lora"], arguments["max_loras"], arguments["max_lora_rank"]) == (True, num_slots, rank)
    assert plan.num_bytes > num_slots * rank * 4 * sum(map(sum, MODULES.values()))
    assert plan.takes_more is bool(options)


def test_without_the_options_vllm_is_started_as_ever() -> None:
    assert plan_adapters(setup_of(max_loras=4, lora=(), enable_lora=False)) is None


@pytest.mark.parametrize(
    ("names", "options", "error", "says"),
    [
        (("one", "two"), {"enable_lora": True, "max_loras": 1}, EngineOptionError, "must be at least 2"),
        (("one",), {"enable_lora": True, "max_lora_rank": 2}, EngineOptionError, "must be at least 4"),
        (("huge",), {}, EngineOptionError, "rank 512 at most with engine=vllm, got 600"),
        ((), {"enable_lora": True, "max_lora_rank": 1000}, EngineOptionError, "rank 512 at most"),
        (("foreign",), {}, ModelError, "layers.99"),
        (("embeddings",), {}, ModelError, "embed_tokens"),
        (("misshapen",), {}, ModelError, "allowed: "),
        (("missing",), {}, ModelError, "is not a directory"),
    ],
)
def test_what_vllm_would_not_take_or_ignore_is_refused_before_it_starts(
    store: Path, names: tuple[str, ...], options: Mapping[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        plan_adapters(setup_of(lora=named(store, *names), **options))


def run(store: Path, check: Check, **options: Any) -> None:
    """Ask `check` of adapters that begin with one, and have room for two."""
    plan = plan_adapters(setup_of(lora=named(store, "one"), enable_lora=True, max_loras=2, **options))
    assert plan is not None
    vllm = FakeVllm()
    adapters = VllmAdapters(plan, vllm, lambda *words: words)

    async def test() -> None:
        await adapters.load_first()
        await check(vllm, adapters)

    asyncio.run(test())


def test_adapters_come_and_go_within_their_room(store: Path) -> None:
    async def check(vllm: FakeVllm, adapters: VllmAdapters) -> None:
        assert "one" in adapters.names
        await adapters.load("two", store / "two", is_replacing=False)
        assert adapters.names == ("one", "two")
        with pytest.raises(Conflict):
            await adapters.load("two", store / "two", is_replacing=False)
        with pytest.raises(NoMemory, match="max_loras is 2, loaded: one, two"):
            await adapters.load("three", store / "three", is_replacing=False)
        await adapters.unload("one")
        with pytest.raises(NotFound):
            await adapters.unload("one")
        with pytest.raises(UnsupportedFeature):
            adapters.use("one")
        await adapters.load("three", store / "three", is_replacing=False)
        assert [name for name, _ in vllm.held.values()] == ["two#2", "three#3"]

    run(store, check)


def test_requests_go_on_with_the_adapter_that_they_began_with(store: Path) -> None:
    async def check(vllm: FakeVllm, adapters: VllmAdapters) -> None:
        used = adapters.use("one")
        await adapters.load("one", store / "two", is_replacing=True)
        assert vllm.held[used.number] == ("one#1", str(store / "one"))
        assert adapters.use("one").words[2] == str(store / "two")
        with pytest.raises(Overloaded, match="still use"):
            await adapters.load("three", store / "three", is_replacing=False)
        adapters.release(used)
        await adapters.load("three", store / "three", is_replacing=False)
        assert used.number not in vllm.held

    run(store, check)


@pytest.mark.parametrize(("name", "says"), [("foreign", "layers.99"), ("large", "at most max_lora_rank 16")])
def test_what_is_no_adapter_of_the_model_never_reaches_vllm(store: Path, name: str, says: str) -> None:
    async def check(vllm: FakeVllm, adapters: VllmAdapters) -> None:
        with pytest.raises(InvalidRequest, match=says):
            await adapters.load("more", store / name, is_replacing=False)
        assert len(vllm.held) == 1

    run(store, check)


def test_what_vllm_says_is_told_and_takes_no_room(store: Path) -> None:
    async def check(vllm: FakeVllm, adapters: VllmAdapters) -> None:
        vllm.problem = "this one not"
        with pytest.raises(InvalidRequest, match="vLLM says this one not"):
            await adapters.load("two", store / "two", is_replacing=False)
        vllm.errored = True
        with pytest.raises(EngineDead):
            await adapters.load("two", store / "two", is_replacing=False)
        with pytest.raises(ModelError, match="this one not"):
            await adapters.load_first()
        vllm.problem = ""
        await adapters.load("two", store / "two", is_replacing=False)
        assert adapters.names == ("one", "two")

    run(store, check)


def test_an_adapter_of_which_vllm_leaves_out_a_part_is_refused(store: Path) -> None:
    async def check(vllm: FakeVllm, adapters: VllmAdapters) -> None:
        vllm.left_out = [["a", "b"], ["b"]]
        with pytest.raises(InvalidRequest, match=r"has no place for b$"):
            await adapters.load("two", store / "two", is_replacing=False)
        assert len(vllm.held) == 1
        vllm.left_out = [["a"], ["b"]]  # each has the layer that the other one lacks
        await adapters.load("two", store / "two", is_replacing=False)

    run(store, check)


def test_what_a_worker_leaves_out_is_what_it_has_no_module_for() -> None:
    class Worker(AdapterWitness):
        """As far as it is looked at."""

        def __init__(self) -> None:
            adapter = SimpleNamespace(loras={"x.qkv_proj": 1, "tower.fc1": 1})
            manager = SimpleNamespace(get_adapter={7: adapter}.get, modules={"x.qkv_proj": 1, "x.down_proj": 1})
            self.model_runner = SimpleNamespace(lora_manager=SimpleNamespace(_adapter_manager=manager))

    assert Worker().unapplied_adapter_modules(7) == ["tower.fc1"]
