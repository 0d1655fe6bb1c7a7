"""Records the steps an engine runs, and runs exactly those steps again without the engine.

Does: a ModelRunner that keeps a copy of every step's inputs; the replay. Does not: serve or send load. What a replay takes
is the kernels' own time for the schedule that the server ran: the same mixed batches, prompt chunks and block tables, then
nothing but the choice of the largest logit. Recorded on the engine's thread, replayed on any other while the engine is idle.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.blocks.block_pools import Copies
from dragoman.engine.rolling.forward.runner import BlockTables, ForwardBatch, ModelRunner


@dataclass(slots=True)
class Step:
    """One step's inputs: blocks to copy first, by their kind, then the batch."""

    batch: ForwardBatch
    copies: Copies = field(default_factory=list)


class RecordingRunner:
    """A ModelRunner that passes everything on to `inner` and keeps what it was given. Closing it leaves `inner` open."""

    def __init__(self, inner: ModelRunner) -> None:
        self.block_size = inner.block_size
        self.pools = inner.pools
        self.vocab_size = inner.vocab_size
        self.max_model_len = inner.max_model_len
        self.long_context_from = inner.long_context_from
        self.steps: list[Step] = []
        self.inner = inner
        self._copies: Copies = []

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        """The inner runner's logits."""
        self.steps.append(Step(copied(batch), self._copies))
        self._copies = []
        return self.inner.forward(batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
        """Copied by the inner runner; kept with the step that follows."""
        self._copies.append((kind, list(pairs)))
        self.inner.copy_blocks(pairs, kind)

    def close(self) -> None:
        """Nothing: the replay needs the inner runner."""


def copied(batch: ForwardBatch) -> ForwardBatch:
    """The same batch in arrays of its own: an engine's buffers change with the next step."""
    values = {one.name: _copied(getattr(batch, one.name)) for one in fields(batch)}
    return ForwardBatch(**values)


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        return tuple(BlockTables(*(_copied(getattr(one, part.name)) for part in fields(one))) for one in value)
    return value


def replay(runner: ModelRunner, steps: Sequence[Step]) -> float:
    """Seconds to run the steps with nothing around them but the choice of each row's largest logit."""
    begin_s = time.perf_counter()
    for step in steps:
        for kind, pairs in step.copies:
            runner.copy_blocks(pairs, kind)
        runner.forward(step.batch).argmax(axis=1)
    return time.perf_counter() - begin_s
