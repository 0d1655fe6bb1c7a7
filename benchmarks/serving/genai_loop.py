"""OpenVINO GenAI's continuous-batching pipeline on the same workload, in a process of its own, without HTTP in its way.

Run with the Python of the peer's own environment (openvino-genai; see peers.py), from the repository's root:

    python -m benchmarks.serving.genai_loop MODEL.gguf --clients 32 --requests 4
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import Any

VOCAB_SIZE = 32_000  # as in model.py, which needs packages that this environment does not have


def prompt(number: int, num_tokens: int) -> list[int]:
    """The token ids of request `number`."""
    stream = random.Random(f"0/{number}")
    return [stream.randrange(1, VOCAB_SIZE) for _ in range(num_tokens)]


def main() -> None:
    """Keep `clients` requests in flight until all are done; print a JSON line."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    given = parser.parse_args()
    scheduler = genai.SchedulerConfig()  # its defaults
    pipeline = genai.ContinuousBatchingPipeline(given.model, scheduler, "CPU")
    config = genai.GenerationConfig(max_new_tokens=given.output_tokens, ignore_eos=True)

    def run(num_requests: int, first_id: int) -> float:
        begin_s, sent, done = time.perf_counter(), 0, 0
        running: list[Any] = []
        while done < num_requests:
            while len(running) < given.clients and sent < num_requests:
                ids = np.array([prompt(sent, given.prompt_tokens)], dtype=np.int64)
                running.append(pipeline.add_request(first_id + sent, ov.Tensor(ids), config))
                sent += 1
            pipeline.step()
            still = [h for h in running if h.get_status() == genai.GenerationStatus.RUNNING]
            done += len(running) - len(still)
            running = still
        return float(num_requests * given.output_tokens) / (time.perf_counter() - begin_s)

    run(given.clients, 1_000_000)  # warm-up
    rate = run(given.clients * given.requests, 0)
    print(json.dumps({"name": "OpenVINO GenAI", "output_tokens_per_s": round(rate, 1)}))


if __name__ == "__main__":
    main()
