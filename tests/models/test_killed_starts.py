"""A start that is killed while it keeps its graph leaves nothing that a later start would take for whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.models import ModelOptions, load_model
from tests.support.random_checkpoint import TIED, write_checkpoint
from tests.support.tiers import width

# Loads a model, and waits to be killed where the graph has been written, is about to be moved, or has been moved.
WORKER = """
import glob, sys
from pathlib import Path
from dragoman.models import ModelOptions, load_model
from dragoman.models import kept_files

def stop(*values, **named):
    print("here", flush=True)
    sys.stdin.read()

place, name = {
    "written": (kept_files, "append_seal"), "sealed": (Path, "replace"), "moved": (glob, "escape"),
}[sys.argv[3]]
setattr(place, name, stop)
load_model(Path(sys.argv[1]), ModelOptions(cache_dir=Path(sys.argv[2])))
"""


@pytest.mark.parametrize(
    ("stage", "is_kept"), width([("written", False), ("sealed", False), ("moved", True)], [("sealed", False)])
)
def test_the_next_start_finds_a_whole_graph_or_none(stage: str, is_kept: bool, tmp_path: Path) -> None:
    directory, cache = write_checkpoint(TIED, tmp_path / "model"), tmp_path / "cache"
    cache.mkdir()
    words = [sys.executable, "-c", WORKER, str(directory), str(cache), stage]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.kill()
    process.communicate(timeout=30)
    assert len(list(cache.glob("*.blob"))) == is_kept
    options = ModelOptions(cache_dir=cache)
    assert load_model(directory, options).from_cache is is_kept
    assert load_model(directory, options).from_cache is True
    assert len(list(cache.glob("*.blob"))) == 1
    if not is_kept:  # what was left is gone; a start that has nothing to keep does not look for any
        assert len(list(cache.iterdir())) == 1
