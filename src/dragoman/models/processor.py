"""What this machine's processor can do, as far as it decides whether a model runs and how its weights and cache are stored.

Does: read what Linux tells of the processor. Does not: benchmark. Called by the loader, once per start.
"""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")

_AT_HWCAP, _HWCAP_SVE = 16, 1 << 22  # Linux, its arm64/elf_hwcaps


def is_arm() -> bool:
    """True on a 64-bit Arm processor."""
    return platform.machine() in ("aarch64", "arm64")


def lacks_scalable_vectors() -> bool:
    """True if this is surely an Arm processor without SVE, for which there are no kernels of paged attention."""
    getauxval = getattr(ctypes.CDLL(None), "getauxval", None) if is_arm() else None
    if getauxval is None:
        return False
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    return not getauxval(_AT_HWCAP) & _HWCAP_SVE


def lacks_integer_dot_products(cpu_info: Path = CPU_INFO) -> bool:
    """True if this is surely an x86 processor without VNNI, whose kernels therefore unpack int8 weights to f32."""
    try:
        with cpu_info.open(encoding="ascii", errors="replace") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")  # "Features" elsewhere than on x86
    except OSError:
        return False
    return bool(flags) and "vnni" not in flags
