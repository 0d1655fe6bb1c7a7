"""Carries out what beam search decides: keeps hypotheses, copies beams, lets dying ones go, delivers the best.

Does: reduce a beam's logits to candidates, advance a group when all its live beams have theirs. Does not: decide which
beams live (`beam_search`), or own blocks (the scheduler forks them). Called by `core` (rows) and `update` (advance), on
the engine thread only.

A beam whose candidates are known has nothing to compute and waits for its siblings, so the scheduler needs to know
nothing about beams: they may run in different steps, or be preempted and computed again.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dragoman.engine.rolling.beam_search import BeamCandidates, BeamSearch, Hypothesis, num_candidates
from dragoman.engine.rolling.logits_filters import ranked
from dragoman.engine.rolling.sampler import RawLogprobs, Sampled, Sampler
from dragoman.engine.rolling.sampler_state import FloatArray, SamplerState
from dragoman.types import EngineOutput, FinishReason, Logprob

if TYPE_CHECKING:
    from dragoman.engine.rolling.scheduler import Scheduler
    from dragoman.engine.rolling.sequence import Sequence, SequenceGroup


@dataclass(frozen=True, slots=True)
class BeamRow:
    """What one row of logits said: candidates by processed scores, their raw log-probabilities, the raw top list."""

    candidates: BeamCandidates
    raw_logprobs: dict[int, float]
    top_logprobs: list[Logprob]


@dataclass(frozen=True, slots=True)
class FinishedBeam:
    """A hypothesis with its tokens. `cumulative_logprob` is the sum of raw log-probabilities, as for sampled sequences."""

    token_ids: list[int]
    reason: FinishReason
    cumulative_logprob: float
    logprobs: list[float]
    top_logprobs: list[list[Logprob]]


@dataclass(slots=True)
class BeamGroup:
    """The beams' side of a sequence group."""

    search: BeamSearch
    num_candidates: int
    finished: dict[int, FinishedBeam] = field(default_factory=dict)  # by the hypothesis' number
    rows: dict[int, BeamRow] = field(default_factory=dict)  # by slot, of beams that wait for their siblings

    @classmethod
    def for_group(cls, group: SequenceGroup) -> BeamGroup | None:
        """The beams of a group; None if it does not search."""
        params = group.request.sampling
        if params.num_beams == 1:
            return None
        num_ends = len(group.end_reasons)
        return cls(BeamSearch(params, num_ends, group.request.max_tokens), num_candidates(params, num_ends))


def sample_with_beams(
    sampler: Sampler, logits: FloatArray, states: Rows[SamplerState], widths: Rows[int]
) -> tuple[Sampled, dict[int, BeamRow]]:
    """Sample the rows whose width is 0 and reduce the others to that many candidates; both by row number.

    Shapes: logits [R, V], states [R], widths [R]. Mutates: logits. The sampled part has zeros in the beams' rows.
    """
    plain = [row for row, width in enumerate(widths) if not width]
    sampled = Sampled(np.zeros(len(states), dtype=np.int64), [None] * len(states), [None] * len(states))
    if plain:
        part = sampler.sample(logits[plain], [states[row] for row in plain])
        sampled.token_ids[plain] = part.token_ids
        for position, row in enumerate(plain):
            sampled.logprobs[row] = part.logprobs[position]
            sampled.top_logprobs[row] = part.top_logprobs[position]
    searched = [row for row, width in enumerate(widths) if width]
    processed = sampler.process(logits[searched], [states[row] for row in searched])
    beams: dict[int, BeamRow] = {}
    for position, row in enumerate(searched):
        raw = sampler.raw_logprobs(logits[row])
        beams[row] = _beam_row(raw, processed[position], states[row], widths[row])
    return sampled, beams


def _beam_row(raw: RawLogprobs, processed: FloatArray, state: SamplerState, width: int) -> BeamRow:
    best = ranked(processed, width)
    return BeamRow(
        candidates=BeamCandidates(best.astype(np.int64), processed[best]),
        raw_logprobs={token_id: raw.of(token_id) for token_id in best.tolist()},
        top_logprobs=raw.top(state.plan.params.logprobs or 0),
    )


class BeamUpdater:
    """Advances the beams of sequence groups."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def take(self, sequence: Sequence, row: BeamRow) -> list[EngineOutput]:
        """Note a beam's candidates, and advance its group if it was the last to wait for.

        Returns the outputs of the request if that ended it, best first, else none.
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
        candidates = _by_slot(beams.rows, len(group.sequences))
        step = beams.search.advance(candidates, lambda slot, token: _end_reason(group.sequences[slot], token))
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
        """End the group; the best n hypotheses, whole, best first."""
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
    """At least `wanted` results: a search that a grammar leaves fewer ways than that repeats its last one."""
    return best + [best[-1]] * (wanted - len(best))


def _by_slot(rows: dict[int, BeamRow], num_slots: int) -> list[BeamCandidates | None]:
    return [rows[slot].candidates if slot in rows else None for slot in range(num_slots)]


def _end_reason(sequence: Sequence, token_id: int) -> FinishReason | None:
    """Why a beam extended by a token would be finished, None if it goes on."""
    group = sequence.group
    reason = group.end_reasons.get(token_id)
    num_generated = sequence.num_generated_tokens + 1
    if reason is not None and (num_generated >= group.request.sampling.min_tokens or group.request.masker is not None):
        return reason
    criterion = group.request.stop_criterion
    if criterion is not None and criterion([*sequence.generated_ids, token_id]):
        return FinishReason.STOP_STRING
    return None


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
    """Append a chosen token. `row` is the parent's, of which the sequence is a copy by now."""
    logprob = row.raw_logprobs[token_id]
    sequence.is_held = False
    sequence.token_ids.append(token_id)
    sequence.sampler_state.observe(token_id)
    sequence.cumulative_logprob += logprob
    sequence.logprobs.append(logprob)
    sequence.top_logprobs.append(row.top_logprobs)
