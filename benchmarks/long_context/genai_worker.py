"""OpenVINO GenAI's continuous-batching pipeline behind long contexts, in a process of its own.

Does: answer each JSON line: `{"prompt": n}` with milliseconds per token of a new prompt; `{"streams": s, "context": c,
"steps": n}` with those of a step in which s sequences decode behind the same c tokens, which its prefix cache keeps: they
share their blocks, whatever "shares" says. Does not: import anything of this project: it is run by the Python of the peer's
own environment:

    python -m benchmarks.long_context.genai_worker MODEL.gguf [TYPE_OF_THE_CACHE]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from typing import Any

_VOCAB_SIZE = 32_000
_WARM_UP_STEPS = 2
_CACHE_GB = 2


class Pipeline:
    """A loaded pipeline with a prefix cache, and else the scheduler's defaults."""

    def __init__(self, model: str, cache_type: str | None) -> None:
        import openvino_genai as genai  # type: ignore[import-not-found]  # only the peer has it

        self._genai = genai
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching, scheduler.cache_size = True, _CACHE_GB
        properties = {"KV_CACHE_PRECISION": cache_type} if cache_type else {}
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self._num_requests = 0
        self._shared = [random.Random(0).randrange(1, _VOCAB_SIZE) for _ in range(65_536)]

    def prompt_ms(self, num_tokens: int) -> float:
        """Of each token."""
        stream = random.Random(f"{num_tokens}/{self._num_requests}")
        handle = self._add([stream.randrange(1, _VOCAB_SIZE) for _ in range(num_tokens)], 1)
        begin = time.perf_counter()
        self._finish([handle])
        return 1000 * (time.perf_counter() - begin) / num_tokens

    def step_ms(self, streams: int, context: int, num_steps: int) -> float:
        """The median."""
        prompt = self._shared[: context // 32 * 32 + 1]  # one token is left of it, so that all begin in one step
        self._finish([self._add(prompt, 1)])
        handles = [self._add(prompt, _WARM_UP_STEPS + num_steps) for _ in range(streams)]
        times = []
        while any(handle.get_status() == self._genai.GenerationStatus.RUNNING for handle in handles):
            begin = time.perf_counter()
            self._pipeline.step()
            times.append(1000 * (time.perf_counter() - begin))
        if len(times) != _WARM_UP_STEPS + num_steps:
            raise RuntimeError(f"{streams} streams took {len(times)} steps, not {_WARM_UP_STEPS + num_steps}")
        self._finish(handles)
        return statistics.median(times[_WARM_UP_STEPS:])

    def _finish(self, handles: list[Any]) -> None:
        while any(handle.get_status() == self._genai.GenerationStatus.RUNNING for handle in handles):
            self._pipeline.step()
        for handle in handles:
            handle.read_all()

    def _add(self, token_ids: list[int], num_tokens: int) -> Any:
        import numpy as np
        import openvino as ov

        self._num_requests += 1
        config = self._genai.GenerationConfig(max_new_tokens=num_tokens, ignore_eos=True)
        return self._pipeline.add_request(self._num_requests, ov.Tensor(np.array([token_ids], dtype=np.int64)), config)


def main() -> None:
    """Say when the model is loaded, then answer line by line until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("cache_type", nargs="?", help="bf16, u8, ...; the pipeline's own if it is left out")
    asked = parser.parse_args()
    pipeline = Pipeline(asked.model, asked.cache_type)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if "prompt" in question:
            found = pipeline.prompt_ms(question["prompt"])
        else:
            found = pipeline.step_ms(question["streams"], question["context"], question["steps"])
        print(json.dumps({"ms": round(found, 3)}), flush=True)


if __name__ == "__main__":
    main()
