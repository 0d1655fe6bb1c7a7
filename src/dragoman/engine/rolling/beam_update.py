"""Carries out the decisions of beam search once all live beams of a group have their candidates. On the engine thread.

A beam with candidates waits for its siblings. So the scheduler need not know about beams: they may run in different
steps, or be preempted.
"""

from __future__ import annotations

from dragoman.engine.beams import Hypothesis
from dragoman.engine.rolling.beam_rows import BeamGroup, BeamRow, FinishedBeam
from dragoman.engine.rolling.schedule.scheduler import Scheduler
from dragoman.engine.rolling.sequence import Sequence, SequenceGroup
from dragoman.types import EngineOutput, FinishReason


class BeamUpdater:
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
