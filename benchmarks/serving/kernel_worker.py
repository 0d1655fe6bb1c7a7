"""Serves a model as `dragoman serve` does, keeps the steps it runs, and runs them again on the bare kernels when asked.

Does: the command line's own server on the main thread, with a recording runner below the engine; a thread that answers
JSON lines: `{"forget": true}` drops what was recorded, `{"replay": true}` times it. Does not: send load. The server must be
idle while it is asked: the replay uses the runner that the engine would use. Started by rows.server_cost; see `recording`.

    python -m benchmarks.serving.kernel_worker MODEL_DIR --port 18080 [any option of dragoman serve]
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any
from unittest.mock import patch

from benchmarks.serving.recording import RecordingRunner, replay
from dragoman.cli import main as dragoman_main
from dragoman.engine.rolling import assembly
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner


class Recorder:
    """Builds the runner that records, and answers for it."""

    def __init__(self) -> None:
        self._runner: RecordingRunner | None = None

    def build(self, *arguments: Any) -> RecordingRunner:
        """What stands in for OpenVinoRunner, once."""
        assert self._runner is None, "only one model is served"
        self._runner = RecordingRunner(OpenVinoRunner(*arguments))
        return self._runner

    def answer(self, asked: dict[str, Any]) -> dict[str, float]:
        """The number of recorded steps and the tokens they computed; for a replay also its seconds."""
        assert self._runner is not None, "asked before the model is loaded"
        steps = self._runner.steps
        told: dict[str, float] = {"steps": len(steps), "tokens": sum(len(step.batch.input_ids) for step in steps)}
        if "replay" in asked:
            told["seconds"] = replay(self._runner.inner, steps)
        self._runner.steps = []
        return told

    def answer_all(self) -> None:
        """Answer line by line until the input ends; runs on a thread of its own."""
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            print(json.dumps(self.answer(json.loads(line))), flush=True)


def main() -> int:
    """Serve until SIGTERM; the server's exit code."""
    recorder = Recorder()
    threading.Thread(target=recorder.answer_all, name="recorder", daemon=True).start()
    # The engine's assembly offers no way in between engine and runner, and only benchmarks want one: serving exactly as the
    # command does, with every default of its own, is worth the patch.
    with patch.object(assembly, "OpenVinoRunner", recorder.build):
        return dragoman_main(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
