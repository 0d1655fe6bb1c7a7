"""One step of the rolling engine: the loop's body, without the thread.

Does: take in new and aborted requests, schedule, run the model, sample, apply the result, make outputs; contain failures
to the requests they touch. Does not: own a thread, know asyncio, or decide anything that its parts decide. Called by
`engine.RollingEngine` on the engine thread, or by a test in a plain loop.
"""

from __future__ import annotations

import logging
from itertools import count
from time import perf_counter

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.beams.beam_group import BeamGroup
from dragoman.engine.rolling.beams.beam_rows import sample_with_beams
from dragoman.engine.rolling.blocks.block_manager import BlockManager
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.forward.batch import BatchBuffers, build_forward_batch
from dragoman.engine.rolling.forward.runner import ModelRunner
from dragoman.engine.rolling.inbox import AbortRequest, AddRequest, Inbox
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sample.sampler_state import SamplerState
from dragoman.engine.rolling.schedule.pacer import Pacer
from dragoman.engine.rolling.schedule.scheduled_batch import ScheduledBatch, ScheduledSequence
from dragoman.engine.rolling.schedule.scheduler import Scheduler
from dragoman.engine.rolling.sequence import SequenceGroup, end_reasons
from dragoman.engine.rolling.speculate.proposer import Proposer
from dragoman.engine.rolling.speculate.speculation import Speculation
from dragoman.engine.rolling.stats import EngineStats
from dragoman.engine.rolling.update import Delivery, StepResult, Updater, failure_of
from dragoman.errors import CapacityError, EngineFailed, InvalidRequest
from dragoman.types import EngineRequest, PromptLogprob

logger = logging.getLogger(__name__)


class EngineCore:
    """The step loop's state. `inbox` is the only part that other threads may touch."""

    def __init__(
        self, runner: ModelRunner, sampler: Sampler, config: RollingConfig, proposer: Proposer | None = None
    ) -> None:
        """`proposer` None = no speculative decoding."""
        self.inbox = Inbox()
        self.stats = EngineStats()
        self._config = config
        self._runner = runner
        self._sampler = sampler
        self._blocks = BlockManager(runner.num_blocks, runner.block_size)
        self._scheduler = Scheduler(config, self._blocks, self.stats)
        self._pacer = Pacer(config.max_slowdown, config.best_step_tokens)
        self._speculation = Speculation(proposer, self._blocks, runner.max_model_len, runner.vocab_size)
        self._updater = Updater(self._scheduler, self.stats, runner.max_model_len)
        self._buffers = BatchBuffers(config.max_batch_tokens, runner.max_model_len)
        self._arrivals = count()

    def step(self) -> list[Delivery]:
        """Run one forward pass over what is scheduled; returns what clients get from it, [] if nothing."""
        deliveries = self._drain_inbox()
        self._speculation.set_drafts(self._scheduler.running)
        num_decoding, num_prompts = self._scheduler.count_kinds()
        batch = self._scheduler.schedule(self._pacer.prompt_budget(num_decoding, num_prompts))
        if batch:
            begin_s = perf_counter()
            try:
                result = self._run(batch)
            except Exception as error:  # the runtime or the sampler: whoever was part of it is lost, nobody else
                deliveries += self._fail(batch, error)
            else:
                self._pacer.observe(num_decoding, batch.num_prefill_tokens, perf_counter() - begin_s)
                deliveries += self._updater.update(batch, result)
            self.stats.num_steps += 1
        self._publish()
        return deliveries

    def has_work(self) -> bool:
        """True if the next step would run something even if no command comes in."""
        return self._scheduler.has_work

    def close(self) -> None:
        """Stop what the step loop started; nothing runs afterwards."""
        self._sampler.close()

    def check_integrity(self) -> None:
        """Raises AssertionError if the scheduler's and the block manager's books contradict each other; for tests."""
        self._scheduler.check_integrity()

    # --- in -----------------------------------------------------------------------------------------------------------

    def _drain_inbox(self) -> list[Delivery]:
        deliveries = []
        for command in self.inbox.drain():
            match command:
                case AddRequest(key, request):
                    try:
                        self._add(key, request)
                    except Exception as error:  # only this request is wrong, or its grammar
                        deliveries.append(Delivery(key, failure_of(error)))
                case AbortRequest(key):
                    self._scheduler.remove(key)
        return deliveries

    def _add(self, key: int, request: EngineRequest) -> None:
        if not request.prompt_ids:
            raise InvalidRequest("prompt_ids is empty, must hold at least 1 token", param="prompt")
        self._check_capacity(request)
        beams = BeamGroup.for_request(request, len(end_reasons(request)))
        self._scheduler.add(SequenceGroup(key, next(self._arrivals), request, self._sampler, beams))

    def _check_capacity(self, request: EngineRequest) -> None:
        """Raises CapacityError if the request could not run even with the whole cache to itself."""
        num_prompt, num_max = len(request.prompt_ids), request.max_tokens
        cache = self._runner.num_blocks * self._runner.block_size
        for limit, what in ((cache, "the KV cache holds"), (self._runner.max_model_len, "the model's context is")):
            if num_prompt > limit:
                raise CapacityError(f"the prompt has {num_prompt} tokens, {what} {limit}", param="prompt")
            if num_prompt + num_max > limit:
                needed = f"{num_prompt} prompt tokens + max_tokens {num_max} = {num_prompt + num_max} tokens"
                raise CapacityError(f"{needed}, {what} {limit}", param="max_tokens")
        if request.sampling.num_beams > 1:
            self._check_beams(request.sampling.num_beams, num_prompt + num_max)

    def _check_beams(self, num_beams: int, num_tokens: int) -> None:
        """Raises CapacityError unless all beams can run side by side: each waits for the others."""
        if num_beams > self._config.max_num_seqs:
            message = (
                f"num_beams is {num_beams}, at most {self._config.max_num_seqs} sequences run at once (max_num_seqs)"
            )
            raise CapacityError(message, param="num_beams")
        num_reserve = -(-num_beams // 4)  # as the scheduler keeps when it admits
        num_needed = num_beams * -(-num_tokens // self._runner.block_size) + num_reserve
        if num_needed > self._runner.num_blocks:
            message = f"num_beams {num_beams} with {num_tokens} tokens each needs {num_needed} KV blocks"
            raise CapacityError(f"{message}, the cache holds {self._runner.num_blocks}", param="num_beams")

    # --- run ----------------------------------------------------------------------------------------------------------

    def _run(self, batch: ScheduledBatch) -> StepResult:
        """Copy, forward, sample. Changes no sequence."""
        if batch.copies:
            self._runner.copy_blocks(batch.copies)
        states = [state for entry in batch.entries for state in _states_of(entry)]
        self._sampler.prefetch(states)
        logits = self._runner.forward(build_forward_batch(batch, self._blocks, self._buffers))
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

    def _prompt_logprobs(self, batch: ScheduledBatch, logits: npt.NDArray[np.float32]) -> list[list[PromptLogprob]]:
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

    # --- out ----------------------------------------------------------------------------------------------------------

    def _fail(self, batch: ScheduledBatch, error: Exception) -> list[Delivery]:
        """Remove the groups that the failure of a step touches; their clients get it.

        If a group fails when it is sampled alone (its grammar is broken), only such groups are removed: the others were not
        updated, so their tokens are scheduled and computed again. Otherwise it is every group in the batch.
        """
        broken = [entry for entry in batch.entries if not self._can_sample(entry)]
        keys = list(dict.fromkeys(entry.sequence.group.key for entry in broken or batch.entries))
        logger.error("a step failed, and with it %d of its requests", len(keys), exc_info=error)
        for key in keys:
            self._scheduler.remove(key)
        reason = f"generation failed: {type(error).__name__}: {error}"
        return [Delivery(key, EngineFailed(reason)) for key in keys]  # one each: raising an error changes it

    def _can_sample(self, entry: ScheduledSequence) -> bool:
        """True if the sampler can handle the entry's states by themselves; sampling does not change them."""
        if not entry.num_sample_rows:
            return True
        try:
            states = _states_of(entry)
            self._sampler.sample(np.zeros((len(states), self._runner.vocab_size), dtype=np.float32), states)
        except Exception:
            return False
        return True

    def _publish(self) -> None:
        """Set the gauges that other threads read."""
        stats, scheduler = self.stats, self._scheduler
        stats.num_running_requests = len({sequence.group.key for sequence in scheduler.running})
        stats.num_waiting_requests = len(scheduler.groups) - stats.num_running_requests
        stats.num_used_blocks = self._blocks.num_used_blocks


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
