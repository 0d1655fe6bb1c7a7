"""What this machine's processor can do, as far as it decides how weights are stored.

Does: read Linux's description of the processor. Does not: benchmark. Called by the loader, once per start.
"""

from __future__ import annotations

from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def lacks_integer_dot_products(cpu_info: Path = CPU_INFO) -> bool:
    """True if this is surely an x86 processor without VNNI, whose kernels therefore unpack int8 weights to f32."""
    try:
        with cpu_info.open(encoding="ascii", errors="replace") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")  # "Features" elsewhere than on x86
    except OSError:
        return False
    return bool(flags) and "vnni" not in flags
