"""What this machine's processor can do, for tests whose expectation depends on it."""

from __future__ import annotations

import openvino as ov

HAS_BF16: bool = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
