"""The work of a forward pass, in a few numbers that determine its duration. Used where steps are logged or simulated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dragoman.engine.rolling.forward.runner import ForwardBatch


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of a step. `contexts`: by cache kind, the tokens that decoding sequences read.

    `pairs`: by cache kind, the (token, seen token) pairs of pieces of prompts.
    """

    num_tokens: int
    num_rows: int
    contexts: tuple[float, ...]
    pairs: tuple[float, ...]

    @classmethod
    def of(cls, batch: ForwardBatch) -> StepWork:
        lengths = np.diff(batch.subsequence_begins)
        decodes = lengths == 1
        contexts, pairs = [], []
        for tables in (batch, *batch.more_tables):
            contexts.append(float(tables.past_lens[decodes].sum() + decodes.sum()))
            seen = lengths * (tables.past_lens + (lengths + 1) / 2)
            pairs.append(float(seen[~decodes].sum()))
        return cls(len(batch.input_ids), len(batch.logit_indices), tuple(contexts), tuple(pairs))
