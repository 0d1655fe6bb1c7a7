"""Applies what a step computed to its sequences, and makes the outputs.

Does: advance computed tokens, append sampled tokens, decide what has finished and why, fork groups at the prompt's end,
rank sequences. Does not: schedule or sample. Called by `core` after every forward, on the engine thread only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import NamedTuple

from dragoman.engine.rolling.beam_update import BeamRow, BeamUpdater
from dragoman.engine.rolling.sampler import Sampled
from dragoman.engine.rolling.scheduler import EngineStats, ScheduledBatch, ScheduledSequence, Scheduler
from dragoman.engine.rolling.sequence import Sequence, SequenceGroup
from dragoman.errors import EngineFailed, ServerError
from dragoman.types import EngineOutput, FinishReason, PromptLogprob

logger = logging.getLogger(__name__)


class Delivery(NamedTuple):
    """Something for the client of group `key`; an error is the last thing it gets."""

    key: int
    item: EngineOutput | ServerError


@dataclass(slots=True)
class StepResult:
    """What the model and the sampler said in a step.

    `sampled` has a row per sampling row, None if there was none; `beams` what the rows of beams were reduced to, by row;
    `prompt_logprobs` a list per entry with prompt rows.
    """

    sampled: Sampled | None = None
    beams: dict[int, BeamRow] = field(default_factory=dict)
    prompt_logprobs: list[list[PromptLogprob]] = field(default_factory=list)


class Updater:
    """Changes sequences after a step, through the scheduler where blocks or queues are concerned."""

    def __init__(self, scheduler: Scheduler, stats: EngineStats, max_model_len: int) -> None:
        self._scheduler = scheduler
        self._beams = BeamUpdater(scheduler)
        self._stats = stats
        self._max_model_len = max_model_len

    def update(self, batch: ScheduledBatch, result: StepResult) -> list[Delivery]:
        """Take in a step's result; returns what the clients get from it.

        A group whose own parts fail here (its grammar, its stop criterion) is removed and gets EngineFailed, no other.
        """
        deliveries: list[Delivery] = []
        prompt_logprobs = iter(result.prompt_logprobs)
        row = 0
        # The one loop over sequences of updating.
        for entry in batch.entries:
            group = entry.sequence.group
            if entry.num_prompt_rows:
                assert group.prompt_logprobs is not None
                group.prompt_logprobs.extend(next(prompt_logprobs))
            try:
                self._update_entry(entry, result, row, deliveries)
            except Exception as error:
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
            self._append(sequence, sampled, row, deliveries)
            return
        self._scheduler.fork(group)
        for offset, forked in enumerate(group.sequences):
            self._append(forked, sampled, row + offset, deliveries)

    def _append(self, sequence: Sequence, sampled: Sampled, row: int, deliveries: list[Delivery]) -> None:
        """Append the token of a row to the sequence, finish it if that was its last, and report it."""
        group = sequence.group
        token_id = int(sampled.token_ids[row])
        logprob, top = sampled.logprobs[row], sampled.top_logprobs[row]
        sequence.token_ids.append(token_id)
        sequence.sampler_state.observe(token_id)
        self._stats.num_generated_tokens += 1
        if logprob is not None:
            sequence.cumulative_logprob += logprob
        sequence.finish_reason = self._finish_reason(sequence, token_id)
        if group.is_ranked:
            if logprob is not None:
                sequence.logprobs.append(logprob)
            if top is not None:
                sequence.top_logprobs.append(top)
        else:
            wants_logprobs = group.request.sampling.logprobs is not None
            output = EngineOutput(
                request_id=group.request.request_id,
                index=sequence.index,
                token_ids=[token_id],
                finish_reason=sequence.finish_reason,
                logprobs=[logprob] if wants_logprobs and logprob is not None else None,
                top_logprobs=[top] if wants_logprobs and top is not None else None,
            )
            if sequence.finish_reason is not None and wants_logprobs:
                output.cumulative_logprob = sequence.cumulative_logprob
            self._report(group, output, deliveries)
        if sequence.finish_reason is not None:
            self._scheduler.finish(sequence)
            if group.is_ranked and group.is_finished:
                self._deliver_ranked(group, deliveries)

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        """Why the sequence ends with this token, None if it goes on."""
        request = sequence.group.request
        num_generated = sequence.num_generated_tokens
        reason = sequence.group.end_reasons.get(token_id)
        # The sampler bans end tokens before `min_tokens`; one that still comes was all that a grammar left.
        if reason is not None and (num_generated >= request.sampling.min_tokens or request.masker is not None):
            return reason
        if request.stop_criterion is not None and request.stop_criterion(sequence.generated_ids):
            return FinishReason.STOP_STRING
        if num_generated >= request.max_tokens or sequence.num_tokens >= self._max_model_len:
            return FinishReason.LENGTH
        return None

    def _finish_without_tokens(self, group: SequenceGroup, deliveries: list[Delivery]) -> None:
        """End a group that wanted nothing but its prompt computed (`max_tokens` 0)."""
        for sequence in group.sequences:
            sequence.finish_reason = FinishReason.LENGTH
            self._scheduler.finish(sequence)
        for index in range(group.request.sampling.n):
            self._report(group, EngineOutput(group.request.request_id, index, [], FinishReason.LENGTH), deliveries)

    def _deliver_ranked(self, group: SequenceGroup, deliveries: list[Delivery]) -> None:
        """Report the best n sequences whole, best first; the earlier drawn one of equals first."""
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
            )
            self._report(group, output, deliveries)

    @staticmethod
    def _report(group: SequenceGroup, output: EngineOutput, deliveries: list[Delivery]) -> None:
        if not group.has_reported_prompt:
            group.has_reported_prompt = True
            output.prompt_logprobs = group.prompt_logprobs
            output.num_cached_tokens = group.num_cached_tokens
        deliveries.append(Delivery(group.key, output))


def failure_of(error: Exception) -> ServerError:
    """What the client of a failed request gets: the error itself if it is one of ours, else EngineFailed."""
    if isinstance(error, ServerError):
        return error
    return EngineFailed(f"generation failed: {type(error).__name__}: {error}")
