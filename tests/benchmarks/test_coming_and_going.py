"""The benchmark of models that come and go: it carries out what it was asked for, and every answer is as expected."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.coming_and_going import KINDS, PROMPTS, run, set_up
from dragoman.config.resolve import demo_model_dir


@pytest.mark.full("loads real models; tests/host has models come and go")
def test_it_counts_operations_and_reads_the_memory(tmp_path: Path) -> None:
    trial = set_up(tmp_path, demo_model_dir(), 2, "--dtype f32 --kv-cache-gb 0.01", seed=1)
    samples = asyncio.run(run(trial, 2, 6, 3))
    assert sum(trial.outcomes[kind] for kind in KINDS) >= 6
    assert len(trial.expected) == len(PROMPTS)
    assert samples[0]["operations"] == 0
    assert all(sample["resident_mib"] > 0 for sample in samples)
