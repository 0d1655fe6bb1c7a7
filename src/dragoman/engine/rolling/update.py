"""Samples a step's logits, applies the result to the sequences, and makes the outputs. On the engine thread only."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from dragoman.engine.beams import Hypothesis
from dragoman.engine.rolling.beam_rows import BeamGroup, BeamRow, FinishedBeam, sample_with_beams
from dragoman.engine.rolling.forward.batch import ScheduledBatch, ScheduledSequence
from dragoman.engine.rolling.sample.sampler import Sampled, Sampler
from dragoman.engine.rolling.sample.sampler_state import FloatArray, SamplerState
from dragoman.engine.rolling.schedule.scheduler import Scheduler
from dragoman.engine.rolling.sequence import Sequence, SequenceGroup
from dragoman.engine.rolling.stats import RollingStats
from dragoman.errors import EngineFailed, ServerError
from dragoman.types import EngineOutput, FinishReason, PromptLogprob

logger = logging.getLogger(__name__)


# --- sampling ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StepResult:
    """`sampled` has a row per sampling row. `beams`: candidates by row. `prompt_logprobs`: by entry with such rows."""

    sampled: Sampled | None = None
    beams: dict[int, BeamRow] = field(default_factory=dict)
    prompt_logprobs: list[list[PromptLogprob]] = field(default_factory=list)


class BatchSampler:
    """Samples batches: `prepare` before a batch's forward, `sample` after it. Changes no sequence."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._states: list[SamplerState] = []  # of the rows to sample from, in order

    def prepare(self, batch: ScheduledBatch) -> None:
        self._states = [state for entry in batch.entries for state in _states_of(entry)]
        self._sampler.prefetch(self._states)

    def sample(self, batch: ScheduledBatch, logits: FloatArray) -> StepResult:
        """Shapes: logits [R, V], first the rows to sample from, then the prompt's. Mutates: logits."""
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
        """True if the sampler can sample the entry alone; does not change its states."""
        if not entry.num_sample_rows:
            return True
        try:
            states = _states_of(entry)
            self._sampler.sample(np.zeros((len(states), self._sampler.vocab_size), dtype=np.float32), states)
        except Exception:
            return False
        return True

    def _prompt_logprobs(self, batch: ScheduledBatch, logits: FloatArray) -> list[list[PromptLogprob]]:
        found, row = [], 0
        for entry in batch.entries:
            if not entry.num_prompt_rows:
                continue
            group = entry.sequence.group
            assert group.prompt_logprobs is not None
            first = len(group.prompt_logprobs)  # row p is about token p + 1, which is entry p + 1 of the list
            targets = group.request.prompt_ids[first : first + entry.num_prompt_rows]
            rows = logits[row : row + entry.num_prompt_rows]
            found.append(self._sampler.prompt_logprobs(rows, targets, group.request.sampling.prompt_logprobs or 0))
            row += entry.num_prompt_rows
        return found


def _states_of(entry: ScheduledSequence) -> list[SamplerState]:
    if not entry.num_sample_rows:
        return []
    group = entry.sequence.group
    if group.beams is not None:
        return [entry.sequence.sampler_state]
    if group.is_forked:
        return entry.sequence.sampler_state.ahead(entry.sequence.draft_ids)
    return [sequence.sampler_state for sequence in group.sequences]


def _beam_widths(batch: ScheduledBatch) -> list[int]:
    """The number of beam candidates for each sampled row; 0 = sample from the row."""
    widths: list[int] = []
    for entry in batch.entries:
        beams = entry.sequence.group.beams
        widths.extend([0 if beams is None else beams.num_candidates] * entry.num_sample_rows)
    return widths


# --- updating ---------------------------------------------------------------------------------------------------------


class Delivery(NamedTuple):
    """An output or error for the client of group `key`; an error is the last delivery."""

    key: int
    item: EngineOutput | ServerError


class Updater:
    def __init__(self, scheduler: Scheduler, stats: RollingStats) -> None:
        self._scheduler = scheduler
        self._beams = BeamUpdater(scheduler)
        self._stats = stats

    def update(self, batch: ScheduledBatch, result: StepResult) -> list[Delivery]:
        """Apply a step's result. A group whose own grammar or stop criterion fails here is removed alone."""
        self._scheduler.end_step(batch)
        deliveries: list[Delivery] = []
        prompt_logprobs = iter(result.prompt_logprobs)
        row = 0
        # The only loop over sequences in updating.
        for entry in batch.entries:
            group = entry.sequence.group
            if entry.num_prompt_rows:
                assert group.prompt_logprobs is not None
                group.prompt_logprobs.extend(next(prompt_logprobs))
            try:
                self._update_entry(entry, result, row, deliveries)
            except Exception as error:
                if not isinstance(error, ServerError):  # else the client gets the whole message
                    logger.exception("request %s failed while its tokens were taken in", group.request.request_id)
                self._scheduler.remove(group.key)
                deliveries.append(Delivery(group.key, failure_of(error)))
            row += entry.num_sample_rows
        return deliveries

    def _update_entry(self, entry: ScheduledSequence, result: StepResult, row: int, deliveries: list[Delivery]) -> None:
        sequence, group = entry.sequence, entry.sequence.group
        if group.key not in self._scheduler.groups:  # a sibling earlier in the batch failed
            return
        begin = sequence.num_computed_tokens
        sequence.num_computed_tokens += entry.num_new_tokens
        draft_ids = sequence.take_drafts()  # unverified tokens may not reach the prefix cache
        self._scheduler.commit(sequence, begin)
        if begin < sequence.num_prompt_tokens:
            self._stats.num_prompt_tokens += min(sequence.num_computed_tokens, sequence.num_prompt_tokens) - begin
        if sequence.num_computed_tokens < sequence.num_tokens:
            return
        if not entry.num_sample_rows:
            self._finish_without_tokens(group, deliveries)
            return
        if group.beams is not None:
            self._stats.num_generated_tokens += 1
            for output in self._beams.take(sequence, result.beams[row]):
                self._report(group, output, deliveries)
            return
        sampled = result.sampled
        assert sampled is not None
        if group.is_forked:
            self._append(sequence, sampled, row, deliveries, draft_ids)
            return
        self._scheduler.fork(group)
        for offset, forked in enumerate(group.sequences):
            self._append(forked, sampled, row + offset, deliveries)

    def _append(
        self,
        sequence: Sequence,
        sampled: Sampled,
        row: int,
        deliveries: list[Delivery],
        draft_ids: Rows[int] = (),
    ) -> None:
        """Append a row's token, and further rows' tokens while drafts are confirmed; finish and report the sequence."""
        group = sequence.group
        end = self._take_rows(sequence, sampled, row, draft_ids)
        logprobs = [logprob for logprob in sampled.logprobs[row:end] if logprob is not None]
        tops = [top for top in sampled.top_logprobs[row:end] if top is not None]
        if group.is_ranked:
            sequence.logprobs += logprobs
            sequence.top_logprobs += tops
        else:
            wants_logprobs = group.request.sampling.logprobs is not None
            output = EngineOutput(
                request_id=group.request.request_id,
                index=sequence.index,
                token_ids=sampled.token_ids[row:end].tolist(),
                finish_reason=sequence.finish_reason,
                logprobs=logprobs if wants_logprobs else None,
                top_logprobs=tops if wants_logprobs else None,
            )
            if draft_ids:
                output.num_draft_tokens = len(draft_ids)
                output.num_accepted_tokens = _num_equal(output.token_ids, draft_ids)
            if sequence.finish_reason is not None:
                output.num_preemptions = sequence.num_preemptions
                if wants_logprobs:
                    output.cumulative_logprob = sequence.cumulative_logprob
            self._report(group, output, deliveries)
        if sequence.finish_reason is not None:
            self._scheduler.finish(sequence)
            if group.is_ranked and group.is_finished:
                self._deliver_ranked(group, deliveries)
        elif sequence.is_full:
            self._scheduler.shift(sequence)

    def _take_rows(self, sequence: Sequence, sampled: Sampled, row: int, draft_ids: Rows[int]) -> int:
        """Append the rows' tokens up to the first that differs from its draft; returns the row after it.

        Row i was sampled as if the first i drafts were part of the sequence: valid only if all of these are confirmed.
        """
        first, num_known, max_tokens = row, sequence.num_computed_tokens, sequence.group.request.max_tokens
        while True:
            token_id, logprob = int(sampled.token_ids[row]), sampled.logprobs[row]
            reason = sequence.end_reason(token_id)
            sequence.token_ids.append(token_id)
            sequence.sampler_state.observe(token_id)
            if logprob is not None:
                sequence.cumulative_logprob += logprob
            if reason is None and sequence.num_generated_tokens >= max_tokens:
                reason = FinishReason.LENGTH  # the context never is the limit: it suffices, or is shifted
            sequence.finish_reason = reason
            draft = row - first
            row += 1
            if sequence.finish_reason is not None or draft == len(draft_ids) or token_id != draft_ids[draft]:
                break
        self._stats.num_generated_tokens += row - first
        if draft_ids:
            self._count_drafts(sequence, draft_ids, sampled.token_ids[first:row].tolist())
            sequence.num_computed_tokens = sequence.num_tokens - 1  # accepted drafts are in the cache
            self._scheduler.commit(sequence, num_known)
        return row

    def _count_drafts(self, sequence: Sequence, draft_ids: Rows[int], token_ids: Rows[int]) -> None:
        num_accepted = _num_equal(token_ids, draft_ids)
        sequence.num_verified_drafts += len(draft_ids)
        sequence.num_accepted_drafts += num_accepted
        self._stats.num_draft_tokens += len(draft_ids)
        self._stats.num_accepted_tokens += num_accepted

    def _finish_without_tokens(self, group: SequenceGroup, deliveries: list[Delivery]) -> None:
        """End a group that only computes its prompt (`max_tokens` 0)."""
        for sequence in group.sequences:
            sequence.finish_reason = FinishReason.LENGTH
            self._scheduler.finish(sequence)
        for index in range(group.request.sampling.n):
            self._report(group, EngineOutput(group.request.request_id, index, [], FinishReason.LENGTH), deliveries)

    def _deliver_ranked(self, group: SequenceGroup, deliveries: list[Delivery]) -> None:
        """Report the best n sequences whole, best first; of equal ones the one with the lower index first."""
        sampling = group.request.sampling
        ranked = sorted(group.sequences, key=lambda sequence: -sequence.cumulative_logprob)
        for index, sequence in enumerate(ranked[: sampling.n]):
            output = EngineOutput(
                request_id=group.request.request_id,
                index=index,
                token_ids=sequence.generated_ids.tolist(),
                finish_reason=sequence.finish_reason,
                logprobs=sequence.logprobs if sampling.logprobs is not None else None,
                top_logprobs=sequence.top_logprobs if sampling.logprobs is not None and sequence.top_logprobs else None,
                cumulative_logprob=sequence.cumulative_logprob,
                num_draft_tokens=sequence.num_verified_drafts,
                num_accepted_tokens=sequence.num_accepted_drafts,
                num_preemptions=sequence.num_preemptions,
            )
            self._report(group, output, deliveries)

    @staticmethod
    def _report(group: SequenceGroup, output: EngineOutput, deliveries: list[Delivery]) -> None:
        if not group.has_reported_prompt:
            group.has_reported_prompt = True
            output.prompt_logprobs = group.prompt_logprobs
            output.num_cached_tokens = group.num_cached_tokens
            output.num_stored_tokens = group.num_stored_tokens
            output.queue_s = group.queue_s
        deliveries.append(Delivery(group.key, output))


def _num_equal(token_ids: Rows[int], draft_ids: Rows[int]) -> int:
    """The number of drafts, from the front, that the tokens confirm."""
    pairs = zip(token_ids, draft_ids, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def failure_of(error: Exception) -> ServerError:
    if isinstance(error, ServerError):
        return error
    return EngineFailed(f"generation failed: {type(error).__name__}: {error}")


# --- beam search ------------------------------------------------------------------------------------------------------


class BeamUpdater:
    """Carries out the decisions of beam search once all live beams of a group have their candidates.

    A beam with candidates waits for its siblings. So the scheduler need not know about beams: they may run in different
    steps, or be preempted.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def take(self, sequence: Sequence, row: BeamRow) -> list[EngineOutput]:
        """Record a beam's candidates, and advance its group if no other beam is missing.

        Returns the request's outputs if it has ended, best first, else none.
        """
        group, beams = sequence.group, sequence.group.beams
        assert beams is not None
        beams.rows[sequence.index] = row
        sequence.is_held = True
        waited_for = beams.search.live_slots if group.is_forked else [0]
        if any(slot not in beams.rows for slot in waited_for):
            return []
        return self._advance(group, beams)

    def _advance(self, group: SequenceGroup, beams: BeamGroup) -> list[EngineOutput]:
        rows = beams.rows
        candidates = [rows[slot].candidates if slot in rows else None for slot in range(len(group.sequences))]
        step = beams.search.advance(candidates, lambda slot, token: group.sequences[slot].end_reason(token))
        for hypothesis in step.hypotheses:
            beams.finished[hypothesis.number] = _finished(group.sequences[hypothesis.parent], hypothesis, beams)
        if beams.search.is_finished:
            return self._finish(group, beams)
        if not group.is_forked:
            self._scheduler.fork(group)
        for slot, continuation in step.continuations.items():
            if continuation.parent != slot:
                self._scheduler.refork(group.sequences[continuation.parent], group.sequences[slot])
        for slot, continuation in step.continuations.items():
            _extend(group.sequences[slot], continuation.token_id, beams.rows[continuation.parent])
        for sequence in list(group.live_sequences()):
            if sequence.index not in step.continuations:  # its group of beams is done
                sequence.finish_reason = FinishReason.ABORT
                self._scheduler.finish(sequence)
        beams.rows.clear()
        return []

    def _finish(self, group: SequenceGroup, beams: BeamGroup) -> list[EngineOutput]:
        for sequence in list(group.live_sequences()):
            sequence.finish_reason = FinishReason.ABORT
            self._scheduler.finish(sequence)
        params = group.request.sampling
        best = [beams.finished[number] for _, number in beams.search.ranking[: params.n]]
        wants_logprobs = params.logprobs is not None
        return [
            EngineOutput(
                request_id=group.request.request_id,
                index=index,
                token_ids=beam.token_ids,
                finish_reason=beam.reason,
                logprobs=beam.logprobs if wants_logprobs else None,
                top_logprobs=beam.top_logprobs if wants_logprobs else None,
                cumulative_logprob=beam.cumulative_logprob,
            )
            for index, beam in enumerate(_filled(best, params.n))
        ]


def _filled(best: list[FinishedBeam], wanted: int) -> list[FinishedBeam]:
    """If a grammar allowed fewer results, the last one is repeated."""
    return best + [best[-1]] * (wanted - len(best))


def _finished(sequence: Sequence, hypothesis: Hypothesis, beams: BeamGroup) -> FinishedBeam:
    row = beams.rows[sequence.index]
    logprob = row.raw_logprobs[hypothesis.token_id]
    return FinishedBeam(
        token_ids=[*sequence.generated_ids, hypothesis.token_id],
        reason=hypothesis.reason,
        cumulative_logprob=sequence.cumulative_logprob + logprob,
        logprobs=[*sequence.logprobs, logprob],
        top_logprobs=[*sequence.top_logprobs, row.top_logprobs],
    )


def _extend(sequence: Sequence, token_id: int, row: BeamRow) -> None:
    logprob = row.raw_logprobs[token_id]
    sequence.is_held = False
    sequence.token_ids.append(token_id)
    sequence.sampler_state.observe(token_id)
    sequence.cumulative_logprob += logprob
    sequence.logprobs.append(logprob)
    sequence.top_logprobs.append(row.top_logprobs)
