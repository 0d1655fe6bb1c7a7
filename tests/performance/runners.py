"""Model runners whose forward costs nothing that is counted, and the loop that a model would be driven by without an engine.

Does: answer with prepared logits, note every forward's rows; let a step run only when the last one's answers are out.
Does not: keep a cache: the logits after a token depend on that token alone. Used on engine threads and in plain loops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.forward.runner import ForwardBatch
from tests.support.byte_tokenizer import VOCAB_SIZE
from tests.support.patience import PATIENCE_S

BLOCK_SIZE = 32  # as on the CPU
MAX_MODEL_LEN = 4096

_LETTERS = slice(ord("a"), ord("z") + 1)


class Forward(NamedTuple):
    """What one forward computed: the number of new tokens of each sequence, in order, and of rows of logits."""

    row_sizes: tuple[int, ...]
    num_logit_rows: int


class TableRunner:
    """A ModelRunner that looks the logits up. After every token the letters are likely, each in its own degree."""

    def __init__(self, num_blocks: int = 8192) -> None:
        self.block_size = BLOCK_SIZE
        self.pools: tuple[CachePool, ...] = (CachePool(num_blocks),)
        self.vocab_size = VOCAB_SIZE
        self.max_model_len = MAX_MODEL_LEN
        self.long_context_from: int | None = None
        self.forwards: list[Forward] = []
        self._logits = np.full((VOCAB_SIZE, VOCAB_SIZE), -50.0, dtype=np.float32)
        shape = (VOCAB_SIZE, _LETTERS.stop - _LETTERS.start)
        self._logits[:, _LETTERS] = np.random.default_rng(5).normal(0, 2, shape)

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        """The logits of the wanted rows."""
        begins = batch.subsequence_begins.tolist()
        sizes = tuple([end - begin for begin, end in pairwise(begins)])
        self.forwards.append(Forward(sizes, len(batch.logit_indices)))
        logits: npt.NDArray[np.float32] = self._logits[batch.input_ids[batch.logit_indices]]
        return logits

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
        """There is no cache."""

    def close(self) -> None:
        """There is nothing to release."""


class LockStepRunner(TableRunner):
    """A TableRunner for an engine on its thread: it computes a step only when the last one's outputs have all been sent.

    So every step finds the event loop and the clients in the same state, however busy the machine is. `on_step_sent`
    is called with the number of the forward whose outputs are all out, by whoever calls `note_sent`.
    """

    def __init__(self, on_step_sent: Callable[[int], None]) -> None:
        super().__init__()
        self._on_step_sent = on_step_sent
        self._num_unsent = 0
        self._may_run = threading.Lock()  # not a Semaphore: that is Python code, whose instructions would be counted
        self._may_run.acquire()

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        """The logits, once they are wanted. Raises: RuntimeError if the last outputs are never sent."""
        if not self._may_run.acquire(timeout=PATIENCE_S):
            raise RuntimeError(f"step {len(self.forwards)} waited in vain: {self._num_unsent} outputs were not sent")
        self._num_unsent = len(batch.logit_indices)
        return super().forward(batch)

    def begin(self) -> None:
        """Let the first step run."""
        self._may_run.release()

    def note_sent(self) -> None:
        """An output of the last step has reached its client; with the last one the next step may run."""
        self._num_unsent -= 1
        if self._num_unsent == 0:
            self._on_step_sent(len(self.forwards) - 1)
            self._may_run.release()


def bare_loop(runner: TableRunner, prompts: Sequence[Sequence[int]], num_tokens: int, budget: int) -> list[list[int]]:
    """The greedy answers of all prompts by the least that can drive a model: no requests, no blocks, no outputs.

    `budget`: tokens per forward. Those who have their prompt behind them come first, then pieces of prompts in order,
    never cut to one token (a lone token's attention is another kernel).
    """
    answers: list[list[int]] = [[] for _ in prompts]
    num_computed = [0] * len(prompts)
    while any(len(answer) < num_tokens for answer in answers):
        rows: list[tuple[int, list[int]]] = []
        room = budget
        running = [i for i in range(len(prompts)) if len(answers[i]) < num_tokens]
        for i in sorted(running, key=lambda i: not answers[i]):
            new = [*prompts[i], *answers[i]][num_computed[i] :]
            if len(new) > room:
                new = new[: room if room > 1 else 0]
            if new:
                rows.append((i, new))
                room -= len(new)
        picked = runner.forward(_flat_batch(rows, num_computed)).argmax(axis=1).tolist()
        for (i, new), token in zip(rows, picked, strict=True):
            num_computed[i] += len(new)
            if num_computed[i] == len(prompts[i]) + len(answers[i]):
                answers[i].append(token)
    return answers


def _flat_batch(rows: Sequence[tuple[int, list[int]]], num_computed: Sequence[int]) -> ForwardBatch:
    """The rows as a runner takes them; the block tables are empty, a TableRunner looks at none."""
    begins = np.cumsum([0, *(len(new) for _, new in rows)]).astype(np.int32)
    past = [num_computed[i] for i, _ in rows]
    sizes = [len(new) for _, new in rows]
    return ForwardBatch(
        input_ids=np.concatenate([np.array(new, dtype=np.int64) for _, new in rows]),
        position_ids=np.concatenate([np.arange(p, p + size) for p, size in zip(past, sizes, strict=True)]),
        past_lens=np.array(past, dtype=np.int32),
        subsequence_begins=begins,
        block_indices=np.zeros(0, dtype=np.int32),
        block_indices_begins=np.zeros(len(rows) + 1, dtype=np.int32),
        logit_indices=(begins[1:] - 1).astype(np.int64),
        max_context_len=max(map(sum, zip(past, sizes, strict=True))),
    )
