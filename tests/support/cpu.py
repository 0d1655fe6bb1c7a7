"""What this machine's processor can do, for tests whose expectation depends on it (docs/testing.md lists them).

The kernels honour OV_CPU_MAX_ISA, so that another x86 processor can be tried here: what is told here follows it.
"""

from __future__ import annotations

from pathlib import Path

import openvino as ov

from dragoman.models.processor import is_arm

_CPU_INFO = Path("/proc/cpuinfo")

HAS_BF16: bool = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
HAS_MATRIX_TILES: bool = "amx_tile" in (_CPU_INFO.read_text(errors="replace") if _CPU_INFO.exists() else "")

# Whether a row of logits has the same bits alone, among others, and however its prompt was cut: with f32 weights, and with
# packed ones. True where that was measured; elsewhere it holds but for rounding.
EXACT_F32: bool = not is_arm()
EXACT_PACKED: bool = HAS_BF16 and not HAS_MATRIX_TILES
