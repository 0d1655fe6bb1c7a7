"""The benchmark of a start tells what a load took, cold and from the kept graph."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks.start import drop_from_page_cache, measure, tell
from tests.support.random_checkpoint import UNTIED, write_checkpoint


@pytest.mark.full("measures starts in processes of their own; only the benchmark would tell wrong numbers")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_start_is_told_by_stages(tmp_path: Path) -> None:
    directory = write_checkpoint(UNTIED, tmp_path)
    result = measure(directory, "int8", rounds=1)
    assert result["bytes"] == os.path.getsize(directory / "model.safetensors")
    cold, kept = result["cold"], result["kept"]
    assert (cold["is_from_cache"], kept["is_from_cache"]) == (False, True)
    assert {"building the graph", "compiling", "warming up"} < cold["seconds"].keys()
    assert {"mapping weights", "warming up"} < kept["seconds"].keys()
    for run in (cold, kept):
        assert run["seconds"].keys() == run["processor_s"].keys()
        assert max(run["peaks_mib"].values()) > 0 < run["mapped_mib"]
    lines = "\n".join(tell(result))
    assert "times reading the files" in lines
    assert ("nothing here is cold" in lines) == (not result["is_cold"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_that_is_dropped_can_still_be_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1_000_000)
    drop_from_page_cache([path])
    assert path.read_bytes() == b"x" * 1_000_000
