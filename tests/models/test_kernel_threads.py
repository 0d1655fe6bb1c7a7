"""Models of one process share its cores: their threads may run anywhere. A model alone keeps its threads where they are."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import ModelOptions, load_model
from tests.support.forward import forward_batch
from tests.support.random_checkpoint import TIED, UNTIED, write_checkpoint
from tests.support.thread_affinity import are_tied

HAS_CORES = sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(UNTIED, tmp_path_factory.mktemp("model"))


@pytest.mark.skipif(not HAS_CORES, reason="Linux tells where threads may run, and there must be a choice")
def test_threads_are_tied_to_cores_only_without_neighbours(directory: Path, tmp_path: Path) -> None:
    assert are_tied(directory, has_neighbours=False, cache_dir=tmp_path)  # as the plugin does by itself
    assert not are_tied(directory, has_neighbours=True)


@pytest.mark.skipif(not HAS_CORES, reason="Linux tells where threads may run, and there must be a choice")
def test_a_kept_graph_serves_with_neighbours_and_without(directory: Path, tmp_path: Path) -> None:
    assert not are_tied(directory, has_neighbours=True, cache_dir=tmp_path)
    (kept,) = tmp_path.iterdir()
    written = kept.stat().st_ino
    assert are_tied(directory, has_neighbours=False, cache_dir=tmp_path)
    assert not are_tied(directory, has_neighbours=True, cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == [kept]
    assert kept.stat().st_ino == written  # it was mapped each time, and not written anew


def test_models_that_compute_at_once_compute_what_each_computes_alone(directory: Path, tmp_path: Path) -> None:
    other = write_checkpoint(TIED, tmp_path)
    batches = [forward_batch([([3 + n] * 40, 0, range(2))], logit_rows=[39]) for n in range(3)]
    runners = [
        OpenVinoRunner(load_model(path, ModelOptions("f32", has_neighbours=True)), num_blocks=4)
        for path in (directory, other, directory)
    ]
    expected = [[runner.forward(batch).copy() for batch in batches] for runner in runners]
    found: list[list[bool]] = [[] for _ in runners]

    def compute(number: int) -> None:
        for _ in range(20):
            for batch, logits in zip(batches, expected[number], strict=True):
                found[number].append(np.array_equal(runners[number].forward(batch), logits))

    threads = [threading.Thread(target=compute, args=(number,)) for number in range(len(runners))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[True] * 60] * len(runners)
