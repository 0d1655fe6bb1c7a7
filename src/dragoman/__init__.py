"""dragoman: one LLM inference server that speaks LMI, OpenVINO Model Server, OpenAI, TGI and plain text."""

import os
import sys

__version__ = "0.1.0"

# Nothing reports to anybody. Whatever else is imported comes behind this: openvino sends an identifier and writes into the
# home directory wherever it finds this package; with None in its place, it is as if it was not installed.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
os.environ.update(DO_NOT_TRACK="1", VLLM_NO_USAGE_STATS="1", RAY_USAGE_STATS_ENABLED="0")

# A thread of numpy's linear algebra, which is hardly used here, sleeps at once. Otherwise it keeps a core busy for a tenth
# of a second after numpy is imported, waiting for work.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
