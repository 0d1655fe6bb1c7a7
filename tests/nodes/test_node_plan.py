"""What each memory node's engine is told: the model's options, with a part of the cache and files of its own."""

from __future__ import annotations

from pathlib import Path

from dragoman.config.resolve import demo_model_dir, resolve
from dragoman.config.sources import Given
from dragoman.cores import Placement
from dragoman.engine.base import MemoryNeeds
from dragoman.engine.factory import EngineFactory, EngineSetup, LoadedEngine
from dragoman.nodes.engine import NodesFactory
from dragoman.nodes.process import node_plan


def test_each_node_has_its_part_of_the_cache_and_files_of_its_own(tmp_path: Path) -> None:
    """All nodes wrote one step log, so that the second one ended with a message about other models."""
    options = {"kv_cache_gb": "3", "step_log": str(tmp_path / "steps"), "cache_dir": str(tmp_path / "graphs")}
    options |= {"prefix_store_gb": "2"}
    config = resolve(
        [Given(name, f"option.{name}", text, "a test") for name, text in options.items()], {}, demo_model_dir()
    )
    plans = [node_plan(config, Placement(), number, 2, shares=False) for number in range(2)]
    assert [plan.config.engine.kv_cache_gb for plan in plans] == [1.5, 1.5]
    assert [plan.config.engine.step_log for plan in plans] == [tmp_path / "steps.node0", tmp_path / "steps.node1"]
    assert [plan.config.model.cache_dir for plan in plans] == [tmp_path / "graphs/node0", tmp_path / "graphs/node1"]
    stores = {(plan.config.engine.prefix_store_dir, plan.config.engine.prefix_store_gb) for plan in plans}
    assert stores == {(tmp_path / "graphs/prefixes", 2.0)}, "they keep prompts in one place"


class Weighing(EngineFactory):
    """An engine that needs its cache, and half of the machine besides."""

    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        cache = int(setup.options["kv_cache_gb"] * 2**30)
        return MemoryNeeds((setup.machine_bytes or 0) // 2, 0, cache, cache)

    def load(self, setup: EngineSetup) -> LoadedEngine:
        raise NotImplementedError


def test_nodes_share_the_machines_memory_and_the_cache_that_was_asked_for() -> None:
    """Each was judged by all of the memory, and counted with the whole cache, so that a server that fits was refused."""
    config = resolve([], {}, demo_model_dir())
    setup = EngineSetup(demo_model_dir(), {"kv_cache_gb": 8.0}, machine_bytes=16 * 2**30)
    needs = NodesFactory(config, Weighing(), (Placement(), Placement())).needs(setup)
    assert needs.weights == 8 * 2**30, "of two engines, each half of its half"
    assert needs.least_cache == needs.useful_cache == 8 * 2**30
    assert node_plan(config, Placement(), 0, 2, shares=False).num_nodes == 2


def test_scarce_memory_of_a_node_is_told_by_its_part_of_the_machines() -> None:
    setup = EngineSetup(demo_model_dir(), machine_bytes=16 * 2**30)
    assert setup.of_one_in(4).machine_bytes == 4 * 2**30
    assert EngineSetup(demo_model_dir()).of_one_in(4).machine_bytes is None
