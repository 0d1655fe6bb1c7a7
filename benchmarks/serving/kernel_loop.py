"""The bare kernel loop: the same schedule a server would run, without a server. What remains is the kernels' own time.

Does: run S sequences from prompts of random tokens through the compiled graph, greedy, with fixed block tables, refilled as
they finish. Does not: schedule, stream, or detokenise. The server's cost is its throughput divided by this one's.

    python -m benchmarks.serving.kernel_loop MODEL_DIR --clients 32 --requests 4
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from benchmarks.serving.load import Workload
from dragoman.engine.rolling.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.runner import ForwardBatch
from dragoman.models import BLOCK_SIZE, ModelOptions, load_model


class KernelLoop:
    """`num_slots` sequences side by side; slot i owns the same blocks for all the prompts it is given in turn."""

    def __init__(self, runner: OpenVinoRunner, workload: Workload, num_slots: int) -> None:
        self._runner = runner
        self._workload = workload
        self._blocks = -(-(workload.prompt_tokens + workload.output_tokens) // BLOCK_SIZE)
        self._tables = np.arange(num_slots * self._blocks, dtype=np.int32).reshape(num_slots, self._blocks)
        self._num_slots = num_slots

    def run(self, requests_per_slot: int, max_batch_tokens: int) -> float:
        """Output tokens per second over all requests. Prompts enter as slots become free, within the token budget."""
        waiting = [
            list(range(slot * requests_per_slot, (slot + 1) * requests_per_slot)) for slot in range(self._num_slots)
        ]
        lengths = np.zeros(self._num_slots, dtype=np.int64)  # tokens in the cache; 0 = the slot is free
        last = np.zeros(self._num_slots, dtype=np.int64)
        end = self._workload.prompt_tokens + self._workload.output_tokens - 1
        num_generated, begin_s = 0, time.perf_counter()
        while any(waiting) or lengths.any():
            decoding = np.flatnonzero(lengths)
            rows = [(int(slot), [int(last[slot])]) for slot in decoding]
            budget = max_batch_tokens - len(rows)
            for slot in range(self._num_slots):
                if not lengths[slot] and waiting[slot] and budget >= self._workload.prompt_tokens:
                    rows.append((slot, self._workload.prompt(waiting[slot].pop(0))))
                    budget -= self._workload.prompt_tokens
            tokens = self._step(rows, lengths)
            for (slot, new), token in zip(rows, tokens, strict=True):
                lengths[slot] += len(new)
                last[slot] = token
                num_generated += 1
                if lengths[slot] >= end:
                    lengths[slot] = 0
        return num_generated / (time.perf_counter() - begin_s)

    def _step(
        self, rows: list[tuple[int, list[int]]], lengths: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> list[int]:
        sizes = np.array([len(new) for _, new in rows])
        past = np.array([lengths[slot] for slot, _ in rows], dtype=np.int32)
        counts = -(-(past + sizes) // BLOCK_SIZE)
        begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        batch = ForwardBatch(
            input_ids=np.concatenate([np.array(new, dtype=np.int64) for _, new in rows]),
            position_ids=np.concatenate(
                [np.arange(p, p + n, dtype=np.int64) for p, n in zip(past, sizes, strict=True)]
            ),
            past_lens=past,
            subsequence_begins=begins,
            block_indices=np.concatenate([self._tables[s][:c] for (s, _), c in zip(rows, counts, strict=True)]),
            block_indices_begins=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            logit_indices=(begins[1:] - 1).astype(np.int64),
            max_context_len=int((past + sizes).max()),
        )
        picked: list[int] = self._runner.forward(batch).argmax(axis=1).tolist()
        return picked


def main() -> None:
    """Run the loop and print a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--max-batch-tokens", type=int, default=2048)
    parser.add_argument("--dtype", choices=("int8", "int4", "bf16", "f32"), default="int8")
    parser.add_argument("--cache-dir", type=Path)
    given = parser.parse_args()
    loaded = load_model(given.model_dir, ModelOptions(weight_type=given.dtype, cache_dir=given.cache_dir))
    workload = Workload(given.prompt_tokens, given.output_tokens)
    blocks = given.clients * -(-(given.prompt_tokens + given.output_tokens) // BLOCK_SIZE)
    loop = KernelLoop(OpenVinoRunner(loaded, num_blocks=blocks), workload, given.clients)
    loop.run(1, given.max_batch_tokens)  # warm-up
    rate = loop.run(given.requests, given.max_batch_tokens)
    print(json.dumps({"name": "kernel loop", "output_tokens_per_s": round(rate, 1)}))


if __name__ == "__main__":
    main()
