"""Attention alone: each type of the cache is measured, and rates fit times."""

from __future__ import annotations

import pytest

from benchmarks import attention as measuring
from tests.kernels.conftest import kernels  # noqa: F401  # a fixture

pytestmark = [pytest.mark.usefixtures("kernels"), pytest.mark.varies("measures the processor's kernels")]


def test_every_cache_is_measured_and_rates_fit_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_COLD_BYTES", 20_000)
    heads = measuring.Heads(4, 2, 16)
    for cache_type, size in (("f32", 4), ("bf16", 2), ("f16", 2), ("u8", 1)):
        for case in (measuring.Case(2, 1, 64), measuring.Case(1, 8, 40)):
            taken = measuring.measure(heads, cache_type, case, ["own"], 0)["own"]
            assert taken["ms"] > 0
            num_bytes = case.cache_bytes(heads, size)
            assert taken["gb_per_s"] == pytest.approx(num_bytes / taken["ms"] / 1e6), (cache_type, case)
