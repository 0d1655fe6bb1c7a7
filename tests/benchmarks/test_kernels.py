"""Products of one matrix: what is measured is a matrix of that format and shape, and the table shows all of it."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from benchmarks import kernels as measuring
from dragoman.kernels.native import Library
from tests.kernels.conftest import kernels  # noqa: F401  # a fixture

pytestmark = [pytest.mark.usefixtures("kernels"), pytest.mark.varies("measures the processor's kernels")]


def test_all_rows_are_measured_and_rates_fit_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_COLD_BYTES", 20_000)
    shape, rows = measuring.Shape(256, 48), [1, 2, 64]
    found = [row for name in ("int4", "int8", "Q4_0", "Q6_K") if (row := measuring.measure(name, shape, rows, 0))]
    assert ["openvino" in row for row in found] == [True, True, True, False]
    for row in found:
        for kind in ("own", "openvino") if "openvino" in row else ("own",):
            name, rates = row["format"], row[kind]
            bits = 8 * row[f"{kind}_bytes"] / (256 * 48)
            assert 4 <= bits < 9, (name, kind)
            assert rates["2_by_1"] == pytest.approx(rates["ms"][1] / rates["ms"][0]), (name, kind)
            for count, ms, gb_per_s, gop_per_s in zip(
                rows, rates["ms"], rates["gb_per_s"], rates["gop_per_s"], strict=True
            ):
                assert ms > 0
                assert gb_per_s * ms == pytest.approx(row[f"{kind}_bytes"] / 1e6), (name, kind)
                assert gop_per_s * ms == pytest.approx(2e-6 * 256 * 48 * count), (name, kind)
    lines = list(measuring.table(found, 10.0))
    assert sum(line.split()[1:2] == ["own"] for line in lines) == len(found)
    assert sum(line.split()[:1] == ["times"] for line in lines) == 3


def test_a_shape_that_a_format_does_not_have_is_left_out_and_one_that_is_none_is_named(kernels: Library) -> None:  # noqa: F811
    assert measuring.measure("Q4_K", measuring.Shape(896, 16), [1], 0) is None
    layout = measuring.layout_of("int8", measuring.Shape(64, 16))
    assert layout is not None
    assert kernels.packed_bytes(layout) >= 64 * 16
    for text in ("896", "896x0", "ax9"):
        with pytest.raises(ArgumentTypeError, match=f"'{text}' is no shape"):
            measuring._shape(text)
