"""Records a schedule and replays it on the bare kernels, in a process of its own that is asked by JSON lines.

Does: load the model once, composed as the server composes it; `{"record": ...}` keeps a schedule, `{"replay": true}` times
it. Does not: HTTP, sampling beyond the largest logit. Started by rows.server_cost; see `recording`.

    python -m benchmarks.serving.kernel_worker MODEL_DIR kv_cache_gb=4
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any
from unittest.mock import patch

from benchmarks.serving.load import Workload
from benchmarks.serving.recording import RecordingRunner, Step, record, replay
from dragoman import compose
from dragoman.config.resolve import demo_model_dir, resolve
from dragoman.config.sources import Given
from dragoman.engine.rolling import RollingEngine
from dragoman.engine.rolling.openvino_runner import OpenVinoRunner


class Kernels:
    """A served model whose steps can be recorded, without the HTTP server; and the schedule that was recorded last."""

    def __init__(self, options: dict[str, str]) -> None:
        """`options`: those that the server is given, by their names in docs/options.md, with underscores."""
        givens = [Given(name, name, value, "benchmark") for name, value in options.items()]
        self._loop = asyncio.Runner()
        recorders: list[RecordingRunner] = []

        def recording_runner(*arguments: Any) -> RecordingRunner:
            self._runner = OpenVinoRunner(*arguments)
            recorders.append(RecordingRunner(self._runner))
            return recorders[-1]

        # The composition root offers no way in between engine and runner, and only benchmarks want one: building the model
        # as the server does, with every default of its own, is worth the patch.
        with patch.object(compose, "OpenVinoRunner", recording_runner):
            config = resolve(givens, {}, demo_model_dir())
            built = self._loop.run(compose.build_served_model(config, lambda _stage, _fraction: None))
        [self._recorder] = recorders
        engine = built.served.engine
        assert isinstance(engine, RollingEngine)
        self._engine = engine
        self._steps: list[Step] = []
        self._num_output_tokens = 0

    def answer(self, asked: dict[str, Any]) -> dict[str, float]:
        """Record, or replay what was recorded. The engine is idle while the replay has its runner."""
        if "record" not in asked:
            return {"tokens_per_s": round(self._num_output_tokens / replay(self._runner, self._steps), 2)}
        told = asked["record"]
        workload = Workload(told["prompt_tokens"], told["output_tokens"], seed=told["seed"])
        recording = record(self._engine, self._recorder, workload, told["clients"], told["requests"])
        self._steps = self._loop.run(recording)
        self._num_output_tokens = told["clients"] * told["requests"] * told["output_tokens"]
        num_tokens = sum(len(step.batch.input_ids) for step in self._steps)
        return {"steps": len(self._steps), "tokens": num_tokens}


def main() -> None:
    """Say when the model is loaded, then answer line by line until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("options", nargs="*", help="NAME=VALUE as in docs/options.md, such as kv_cache_gb=4")
    given = parser.parse_args()
    kernels = Kernels({"model_id": given.model, **dict(option.split("=", 1) for option in given.options)})
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(kernels.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
