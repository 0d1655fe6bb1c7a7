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

from dragoman.engine.rolling.forward.runner import ForwardBatch, ModelRunner


@dataclass(slots=True)
class Step:
    """One step's inputs: blocks to copy first, then the batch."""

    batch: ForwardBatch
    copies: list[tuple[int, int]] = field(default_factory=list)


class RecordingRunner:
    """A ModelRunner that passes everything on to `inner` and keeps what it was given. Closing it leaves `inner` open."""

    def __init__(self, inner: ModelRunner) -> None:
        self.block_size = inner.block_size
        self.num_blocks = inner.num_blocks
        self.vocab_size = inner.vocab_size
        self.max_model_len = inner.max_model_len
        self.steps: list[Step] = []
        self.inner = inner
        self._copies: list[tuple[int, int]] = []

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        """The inner runner's logits."""
        self.steps.append(Step(copied(batch), self._copies))
        self._copies = []
        return self.inner.forward(batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copied by the inner runner; kept with the step that follows."""
        self._copies.extend(pairs)
        self.inner.copy_blocks(pairs)

    def close(self) -> None:
        """Nothing: the replay needs the inner runner."""


def copied(batch: ForwardBatch) -> ForwardBatch:
    """The same batch in arrays of its own: an engine's buffers change with the next step."""
    values = {one.name: getattr(batch, one.name) for one in fields(batch)}
    own: Any = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in values.items()}
    return ForwardBatch(**own)


def replay(runner: ModelRunner, steps: Sequence[Step]) -> float:
    """Seconds to run the steps with nothing around them but the choice of each row's largest logit."""
    begin_s = time.perf_counter()
    for step in steps:
        if step.copies:
            runner.copy_blocks(step.copies)
        runner.forward(step.batch).argmax(axis=1)
    return time.perf_counter() - begin_s
