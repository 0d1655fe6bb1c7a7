"""Measurements, run by hand on an otherwise idle machine; never part of the tests."""

import sys

# Also in the environments of other projects, which lack dragoman: openvino reports to nobody (see dragoman/__init__.py).
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
