"""What each memory node's engine is told: the model's options, with a part of the cache and files of its own."""

from __future__ import annotations

from pathlib import Path

from dragoman.config.resolve import demo_model_dir, resolve
from dragoman.config.sources import Given
from dragoman.cores.placement import Placement
from dragoman.nodes.process import node_plan


def test_each_node_has_its_part_of_the_cache_and_files_of_its_own(tmp_path: Path) -> None:
    """All nodes wrote one step log, so that the second one ended with a message about other models."""
    options = {"kv_cache_gb": "3", "step_log": str(tmp_path / "steps"), "cache_dir": str(tmp_path / "graphs")}
    config = resolve(
        [Given(name, f"option.{name}", text, "a test") for name, text in options.items()], {}, demo_model_dir()
    )
    plans = [node_plan(config, Placement(), number, 2, shares=False) for number in range(2)]
    assert [plan.config.engine.kv_cache_gb for plan in plans] == [1.5, 1.5]
    assert [plan.config.engine.step_log for plan in plans] == [tmp_path / "steps.node0", tmp_path / "steps.node1"]
    assert [plan.config.model.cache_dir for plan in plans] == [tmp_path / "graphs/node0", tmp_path / "graphs/node1"]
