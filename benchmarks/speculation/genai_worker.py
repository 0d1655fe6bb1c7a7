"""OpenVINO GenAI's prompt lookup on the same prompts, in a process of its own, without HTTP in its way.

Does: load the model once with prompt lookup, then answer each JSON line, requests (prompt, max_tokens) at once, with
their seconds and token ids. Does not: import anything of this project: it is run by the Python of the peer's own environment
(see benchmarks.serving.peers), from the repository's root:

    python -m benchmarks.speculation.genai_worker MODEL.gguf NUM_ASSISTANT_TOKENS MAX_NGRAM_SIZE
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


class Loop:
    """A loaded pipeline with the scheduler's defaults and a prefix cache."""

    def __init__(self, model: str, num_assistant_tokens: int, max_ngram_size: int) -> None:
        import openvino_genai as genai  # type: ignore[import-not-found]  # only the peer has it

        self._genai = genai
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = 2
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"prompt_lookup": True})
        self._lookup = {"num_assistant_tokens": num_assistant_tokens, "max_ngram_size": max_ngram_size}
        self._num_requests = 0

    def run(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """All requests at once: the seconds and each one's token ids."""
        begin_s = time.perf_counter()
        running = dict(enumerate([self._add(request) for request in requests]))
        answers: list[list[int]] = [[] for _ in requests]
        while running:
            self._pipeline.step()
            for number, handle in list(running.items()):
                if handle.get_status() != self._genai.GenerationStatus.RUNNING:
                    answers[number] = [int(i) for output in handle.read_all() for i in output.generated_ids]
                    del running[number]
        return {"seconds": time.perf_counter() - begin_s, "answers": answers}

    def _add(self, request: dict[str, Any]) -> Any:
        import numpy as np
        import openvino as ov

        self._num_requests += 1
        config = self._genai.GenerationConfig(max_new_tokens=request["max_tokens"], ignore_eos=True, **self._lookup)
        ids = ov.Tensor(np.array([request["prompt"]], dtype=np.int64))
        return self._pipeline.add_request(self._num_requests, ids, config)


def main() -> None:
    """Say when the model is loaded, then answer line by line until the input ends."""
    model, num_assistant_tokens, max_ngram_size = sys.argv[1:]
    loop = Loop(model, int(num_assistant_tokens), int(max_ngram_size))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(loop.run(json.loads(line)["requests"])), flush=True)


if __name__ == "__main__":
    main()
