"""OpenVINO GenAI's continuous-batching pipeline on the same closed loop, in a process of its own, without HTTP in its way.

Does: load the model once, then answer each JSON line (clients, requests, prompt_tokens, output_tokens, seed) with the rate.
Does not: import anything of this project: it is run by the Python of the peer's own environment (see peers.py), from the
repository's root:

    python -m benchmarks.serving.genai_loop MODEL.gguf
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any

VOCAB_SIZE = 32_000  # as in model.py, which needs packages that this environment does not have


def prompt(seed: int, number: int, num_tokens: int) -> list[int]:
    """The token ids of request `number`; other for every seed."""
    stream = random.Random(f"{seed}/{number}")
    return [stream.randrange(1, VOCAB_SIZE) for _ in range(num_tokens)]


class Loop:
    """A loaded pipeline with the scheduler's defaults."""

    def __init__(self, model: str) -> None:
        import openvino_genai as genai  # type: ignore[import-not-found]  # only the peer has it

        self._genai = genai
        self._pipeline = genai.ContinuousBatchingPipeline(model, genai.SchedulerConfig(), "CPU")
        self._num_requests = 0

    def run(self, asked: dict[str, int]) -> dict[str, float]:
        """Keep `clients` requests in flight until `clients` * `requests` are done; output tokens per second."""
        config = self._genai.GenerationConfig(max_new_tokens=asked["output_tokens"], ignore_eos=True)
        in_all, sent, num_tokens = asked["clients"] * asked["requests"], 0, 0
        running: list[Any] = []
        begin_s = time.perf_counter()
        while running or sent < in_all:
            while len(running) < asked["clients"] and sent < in_all:
                running.append(self._add(prompt(asked["seed"], sent, asked["prompt_tokens"]), config))
                sent += 1
            self._pipeline.step()
            for handle in [one for one in running if one.get_status() != self._genai.GenerationStatus.RUNNING]:
                num_tokens += sum(len(output.generated_ids) for output in handle.read_all())
                running.remove(handle)
        elapsed_s = time.perf_counter() - begin_s
        if num_tokens != in_all * asked["output_tokens"]:
            raise RuntimeError(f"{num_tokens} tokens came, {in_all * asked['output_tokens']} were asked for")
        return {"tokens_per_s": round(num_tokens / elapsed_s, 1)}

    def _add(self, token_ids: list[int], config: Any) -> Any:
        import numpy as np
        import openvino as ov

        self._num_requests += 1
        return self._pipeline.add_request(self._num_requests, ov.Tensor(np.array([token_ids], dtype=np.int64)), config)


def main() -> None:
    """Say when the model is loaded, then answer line by line until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file")
    loop = Loop(parser.parse_args().model)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(loop.run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
