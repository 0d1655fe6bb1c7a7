"""What this machine's processor can do, for tests whose expectation depends on it (docs/testing.md lists them).

The kernels honour OV_CPU_MAX_ISA, so that another x86 processor can be tried here: what is told here follows it.
"""

from __future__ import annotations

from pathlib import Path

from dragoman.models import ModelOptions
from dragoman.models.profile import kernel_profile, this_processor

_CPU_INFO = Path("/proc/cpuinfo")

HAS_BF16: bool = this_processor().has_bf16
HAS_MATRIX_TILES: bool = "amx_tile" in (_CPU_INFO.read_text(errors="replace") if _CPU_INFO.exists() else "")

# Whether a row of logits has the same bits alone, among others, and however its prompt was cut: with f32 weights, and with
# packed ones. True where that was measured; elsewhere it holds but for rounding, as with packed weights on OpenVINO's
# kernels where these have no integer dot products.
EXACT_F32: bool = not this_processor().is_arm
_KEEPS_ORDER: bool = kernel_profile(ModelOptions()).kernels == "own" or this_processor().has_integer_dot_products
EXACT_PACKED: bool = EXACT_F32 and not HAS_MATRIX_TILES and _KEEPS_ORDER
