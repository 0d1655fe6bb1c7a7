"""Records a schedule and replays it on the bare kernels, in a process of its own that is asked by JSON lines.

Does: load the model once with our server's defaults; `{"record": ...}` keeps a schedule, `{"replay": true}` times it.
Does not: HTTP, sampling beyond the largest logit. Started by rows.server_cost; see `recording`.

    python -m benchmarks.serving.kernel_worker MODEL_DIR --cache-dir DIR
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.serving.load import Workload
from benchmarks.serving.recording import Step, record, replay
from dragoman.config.resolve import Config, demo_model_dir, resolve
from dragoman.config.sources import Given
from dragoman.engine.rolling import RollingConfig
from dragoman.engine.rolling.openvino_runner import OpenVinoRunner
from dragoman.models import BLOCK_SIZE, ModelOptions, load_model


class Kernels:
    """The loaded model, and the schedule that was recorded last."""

    def __init__(self, model: Path, cache_dir: Path, num_tokens: int) -> None:
        """`num_tokens`: how many the KV cache holds."""
        engine = _defaults(model).engine
        self._config = RollingConfig(max_batch_tokens=engine.max_batch_tokens, max_num_seqs=engine.max_num_seqs)
        loaded = load_model(model, ModelOptions(cache_dir=cache_dir))
        self._runner = OpenVinoRunner(loaded, -(-num_tokens // BLOCK_SIZE))
        self._steps: list[Step] = []
        self._num_output_tokens = 0

    def answer(self, asked: dict[str, Any]) -> dict[str, float]:
        """Record, or replay what was recorded."""
        if "record" not in asked:
            return {"tokens_per_s": round(self._num_output_tokens / replay(self._runner, self._steps), 2)}
        told = asked["record"]
        workload = Workload(told["prompt_tokens"], told["output_tokens"], seed=told["seed"])
        self._steps = record(self._runner, self._config, workload, told["clients"], told["requests"])
        self._num_output_tokens = told["clients"] * told["requests"] * told["output_tokens"]
        num_tokens = sum(len(step.batch.input_ids) for step in self._steps)
        return {"steps": len(self._steps), "tokens": num_tokens}


def _defaults(model: Path) -> Config:
    return resolve([Given("model", "option.model_id", str(model), "benchmark")], {}, demo_model_dir())


def main() -> None:
    """Say when the model is loaded, then answer line by line until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--cache-dir", type=Path, required=True)
    parser.add_argument("--num-tokens", type=int, default=100_000, help="tokens that the KV cache holds")
    given = parser.parse_args()
    kernels = Kernels(given.model, given.cache_dir, given.num_tokens)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(kernels.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
