"""Samples what one step computed: the rows of a scheduled batch, of sampled sequences, beams and prompts alike.

Does: find the sampler state of each row, have rows sampled, beams' rows reduced to candidates, prompts' rows scored. Does
not: change sequences (`update` does). Called by `core` around every forward, on the engine thread only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dragoman.engine.rolling.beams.beam_rows import BeamRow, sample_with_beams
from dragoman.engine.rolling.sample.sampler import Sampled, Sampler
from dragoman.engine.rolling.sample.sampler_state import FloatArray, SamplerState
from dragoman.engine.rolling.scheduled_batch import ScheduledBatch, ScheduledSequence
from dragoman.types import PromptLogprob


@dataclass(slots=True)
class StepResult:
    """The results of the model and the sampler in a step.

    `sampled` has a row per sampling row, None if there was none; `beams` what the rows of beams were reduced to, by row;
    `prompt_logprobs` a list per entry with prompt rows.
    """

    sampled: Sampled | None = None
    beams: dict[int, BeamRow] = field(default_factory=dict)
    prompt_logprobs: list[list[PromptLogprob]] = field(default_factory=list)


class BatchSampler:
    """Samples batches: `prepare` before a batch's forward, `sample` after it. Changes no sequence."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._states: list[SamplerState] = []  # of the rows to sample from, in their order

    def prepare(self, batch: ScheduledBatch) -> None:
        """Begin what sampling this batch will need while its forward runs."""
        self._states = [state for entry in batch.entries for state in _states_of(entry)]
        self._sampler.prefetch(self._states)

    def sample(self, batch: ScheduledBatch, logits: FloatArray) -> StepResult:
        """Tokens, candidates and log-probabilities of the batch that was prepared.

        Shapes: logits [R, V], first the rows to sample from, then those for prompt log-probabilities. Mutates: logits.
        """
        states, self._states = self._states, []
        result = StepResult()
        if batch.num_prompt_rows:
            result.prompt_logprobs = self._prompt_logprobs(batch, logits[len(states) :])
        if not states:
            return result
        widths = _beam_widths(batch)
        if any(widths):
            result.sampled, result.beams = sample_with_beams(self._sampler, logits[: len(states)], states, widths)
        else:
            result.sampled = self._sampler.sample(logits[: len(states)], states)
        return result

    def can_sample(self, entry: ScheduledSequence) -> bool:
        """True if the sampler can handle the entry's states by themselves; sampling does not change them."""
        if not entry.num_sample_rows:
            return True
        try:
            states = _states_of(entry)
            self._sampler.sample(np.zeros((len(states), self._sampler.vocab_size), dtype=np.float32), states)
        except Exception:
            return False
        return True

    def _prompt_logprobs(self, batch: ScheduledBatch, logits: FloatArray) -> list[list[PromptLogprob]]:
        """The log-probabilities for the rows that `batch` placed behind the sampled ones, a list per entry with rows."""
        found, row = [], 0
        for entry in batch.entries:
            if not entry.num_prompt_rows:
                continue
            group = entry.sequence.group
            assert group.prompt_logprobs is not None
            first = len(group.prompt_logprobs)  # row p is about token p + 1, and entry p + 1 of the list
            targets = group.request.prompt_ids[first : first + entry.num_prompt_rows]
            rows = logits[row : row + entry.num_prompt_rows]
            found.append(self._sampler.prompt_logprobs(rows, targets, group.request.sampling.prompt_logprobs or 0))
            row += entry.num_prompt_rows
        return found


def _states_of(entry: ScheduledSequence) -> list[SamplerState]:
    """The sampler state for each of the entry's sampled rows."""
    if not entry.num_sample_rows:
        return []
    group = entry.sequence.group
    if group.beams is not None:
        return [entry.sequence.sampler_state]
    if group.is_forked:
        return entry.sequence.sampler_state.ahead(entry.sequence.draft_ids)
    return [one.sampler_state for one in group.sequences]


def _beam_widths(batch: ScheduledBatch) -> list[int]:
    """For each sampled row the number of beam candidates it is reduced to, 0 for a row to sample from."""
    widths: list[int] = []
    for entry in batch.entries:
        beams = entry.sequence.group.beams
        widths.extend([0 if beams is None else beams.num_candidates] * entry.num_sample_rows)
    return widths
