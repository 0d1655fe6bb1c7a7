"""One step of the rolling engine: schedule, run the model, sample, update; lets a failure reach only its requests.

Called on the engine thread, or by a test in a plain loop. Any thread may put commands into the inbox.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from collections.abc import Sequence as Rows
from contextlib import nullcontext
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from time import perf_counter, time

import msgspec

from dragoman.engine.rolling.beam_rows import BeamGroup
from dragoman.engine.rolling.blocks.block_pools import BlockPools
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.forward.batch import BatchBuffers, ScheduledBatch, ScheduledSequence, build_forward_batch
from dragoman.engine.rolling.forward.runner import ModelRunner, StepWork
from dragoman.engine.rolling.pacing import Pacer
from dragoman.engine.rolling.pictures import PictureEmbedder
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sample.sampler_state import FloatArray
from dragoman.engine.rolling.schedule.capacity import check_capacity, context_length
from dragoman.engine.rolling.schedule.outlook import ProgressBoard
from dragoman.engine.rolling.schedule.scheduler import Scheduler
from dragoman.engine.rolling.sequence import AddRequest, Due, SequenceGroup, SequenceStatus
from dragoman.engine.rolling.speculate.proposer import Proposer
from dragoman.engine.rolling.speculate.speculation import Speculation
from dragoman.engine.rolling.stats import RollingStats
from dragoman.engine.rolling.step_log import StepLog
from dragoman.engine.rolling.stored_prefixes.store import Storage
from dragoman.engine.rolling.stored_prefixes.stored import StoredPrefixes
from dragoman.engine.rolling.update import BatchSampler, Delivery, StepResult, Updater, failure_of
from dragoman.errors import DeadlineTooShort, EngineFailed, QueueTimeout, RequestTimeout
from dragoman.types import EngineRequest

logger = logging.getLogger(__name__)


# --- the way in -------------------------------------------------------------------------------------------------------


def due_on(clock: Callable[[], float], request: EngineRequest) -> Due:
    """The request's times by `clock`: unlike the wall clock, it is never set."""
    if request.deadline_s is None and request.start_by_s is None:
        return None, None
    ahead_s = clock() - time()
    return (
        None if request.deadline_s is None else request.deadline_s + ahead_s,
        None if request.start_by_s is None else request.start_by_s + ahead_s,
    )


class AbortRequest(msgspec.Struct, frozen=True):
    key: int


@dataclass(frozen=True, slots=True)
class RunBetween:
    """Call `action`, which must not raise, on the engine thread between two steps."""

    action: Callable[[], None]


Command = AddRequest | AbortRequest | RunBetween


class Inbox:
    """A queue of commands that can be closed. `put` and `close` are for any thread, the rest for the engine thread."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._commands: list[Command] = []
        self._is_closed = False

    def put(self, command: Command) -> bool:
        with self._condition:
            if self._is_closed:
                return False
            self._commands.append(command)
            self._condition.notify()
            return True

    def drain(self) -> list[Command]:
        if not self._commands:  # without the lock: the next step finds a command that is missed here
            return []
        with self._condition:
            commands, self._commands = self._commands, []
            return commands

    def wait(self, has_work: Callable[[], bool]) -> bool:
        """Block until there are commands or `has_work()`; False once the inbox is closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._is_closed or bool(self._commands) or has_work())
            return not self._is_closed

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    @property
    def num_pending_requests(self) -> int:
        with self._condition:
            return sum(isinstance(command, AddRequest) for command in self._commands)


# --- the step ---------------------------------------------------------------------------------------------------------


class EngineCore:
    """The step loop's state. Other threads may use `inbox` only."""

    def __init__(
        self,
        runner: ModelRunner,
        sampler: Sampler,
        config: RollingConfig,
        proposers: Rows[Proposer] = (),
        clock: Callable[[], float] = perf_counter,
        embedder: PictureEmbedder | None = None,
        storage: Storage | None = None,
    ) -> None:
        """`clock`, in seconds, times the steps and the requests' deadlines.

        `embedder`: computes in turn with the steps, which it slows down.
        """
        self.inbox = Inbox()
        self.stats = RollingStats()
        self.step_log: StepLog | None = None
        self._config = config
        self._runner = runner
        self._sampler = sampler
        self._blocks = BlockPools(runner.pools, runner.block_size)
        max_model_len = context_length(runner, config)
        guessing = None
        if proposers:
            guessing = Speculation(proposers, config.speculation, self._blocks, runner, clock)
        self._turn = nullcontext() if embedder is None else embedder.turns.steps
        is_disturbed = (lambda: False) if embedder is None else (lambda: embedder.num_waiting > 0)
        pacer = Pacer(config.max_slowdown, is_disturbed, full_step_tokens=config.max_batch_tokens)
        self._stored = None
        if storage is not None and config.prefix_cache != "off":
            self._stored = StoredPrefixes(storage, self._blocks, self._post, self._computes, clock)
            self.stats.stored = self._stored.counts
        self._scheduler = Scheduler(
            config,
            self._blocks,
            self.stats,
            guessing,
            pacer,
            clock,
            long_context_from=runner.long_context_from,
            stored=self._stored,
        )
        self._batch_sampler = BatchSampler(sampler)
        self._updater = Updater(self._scheduler, self.stats)
        has_regimes = runner.long_context_from is not None
        num_kinds = len(runner.pools)
        self._buffers = BatchBuffers(config.max_batch_tokens, max_model_len, num_kinds, has_regimes=has_regimes)
        self._clock = clock
        # A heap of (time on `clock`, key, True for a deadline to begin); may name requests that have ended.
        self._deadlines: list[tuple[float, int, bool]] = []
        self._arrivals = count()
        self._deliveries: list[Delivery] = []  # of the current step

    def step(self) -> list[Delivery]:
        """Run one forward pass over the scheduled tokens; returns the outputs for clients."""
        self._drain_inbox()
        if self._deadlines:
            self._end_overdue()
        with self._turn:
            batch = self._scheduler.schedule()
            logits = self._forward(batch)
        result = self._sample(batch, logits)
        if result is not None:  # else they are scheduled again
            self._deliveries += self._updater.update(batch, result)
        if self._stored is not None:
            self._stored.keeper.work(is_idle=not self._scheduler.groups)
        return self._publish()

    def has_work(self) -> bool:
        return self._scheduler.has_work

    def has_chores(self) -> bool:
        """True if there are no requests, but a step would still do useful work."""
        return self._stored is not None and not self._scheduler.groups and self._stored.keeper.has_work

    @property
    def is_reading(self) -> bool:
        return self._stored is not None and self._stored.loads.is_reading

    def close(self, *, is_whole: bool = True) -> None:
        """Stop everything that the step loop started. `is_whole`: no step was interrupted halfway."""
        self._sampler.close()
        if self._stored is not None:
            self._stored.close(is_whole=is_whole)

    def _computes(self) -> bool:
        return bool(self._scheduler.running)

    def _post(self, action: Callable[[], None]) -> bool:
        """Run `action` on the engine thread, and wake it for this; any thread. False if the inbox is closed."""
        return self.inbox.put(RunBetween(action))

    @property
    def progress(self) -> ProgressBoard:
        return self._scheduler.progress

    # --- in -----------------------------------------------------------------------------------------------------------

    def _drain_inbox(self) -> None:
        for command in self.inbox.drain():
            match command:
                case AddRequest():
                    try:
                        self._add(command)
                    except Exception as error:  # only this request or its grammar is wrong
                        self._deliveries.append(Delivery(command.key, failure_of(error)))
                case AbortRequest(key):
                    self._scheduler.remove(key)
                case RunBetween(action):
                    action()

    def _add(self, command: AddRequest) -> None:
        request = command.request
        check_capacity(request, self._runner, self._config)
        if command.pictures is not None:
            self._scheduler.pieces.check_pictures(command.pictures)
        beams = None
        if request.sampling.num_beams > 1:
            beams = BeamGroup.for_request(request, len(request.end_reasons()))
        group = SequenceGroup(command, next(self._arrivals), self._sampler, beams)
        self._buffers.may_have_extras |= group.pictures is not None or group.adapter is not None
        self._scheduler.add(group)
        due_s, begin_by_s = command.due or due_on(self._clock, request)
        if due_s is not None:
            self._check_deadline(group, due_s - self._clock())
            heappush(self._deadlines, (due_s, command.key, False))
        if begin_by_s is not None:
            heappush(self._deadlines, (begin_by_s, command.key, True))

    def _check_deadline(self, group: SequenceGroup, left_s: float) -> None:
        """Raises: DeadlineTooShort, after removing the group, if its first token would surely be late."""
        needed_s = self._scheduler.least_wait_s(group, left_s) if left_s > 0 else None
        if needed_s is not None:
            self._scheduler.remove(group.key)
            raise DeadlineTooShort(f"the request's deadline is {left_s:.3g} s away", needed_s=needed_s)

    def _end_overdue(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            _, key, concerns_beginning = heappop(self._deadlines)
            group = self._scheduler.groups.get(key)
            if group is None or (concerns_beginning and group.has_begun):
                continue
            self._scheduler.remove(key)
            late: RequestTimeout | QueueTimeout = RequestTimeout("the request's deadline has passed")
            if concerns_beginning:
                late = QueueTimeout("the request has not begun in time")
            self._deliveries.append(Delivery(key, late))

    # --- run ----------------------------------------------------------------------------------------------------------

    def _forward(self, batch: ScheduledBatch) -> FloatArray | None:
        """Logits [R, V]; None if the batch is empty, or failed and the errors have been reported."""
        if not batch:
            return None
        self.stats.num_steps += 1
        is_copied = False
        try:
            for kind, pairs in batch.copies:
                self._runner.copy_blocks(pairs, kind)
            is_copied = True
            self._batch_sampler.prepare(batch)
            forward = build_forward_batch(batch, self._blocks, self._buffers)
            work = None if self.step_log is None else StepWork.of(forward)  # now: the pass may change the arrays
            logits = self._runner.forward(forward)
            if self.step_log is not None and work is not None:
                self.step_log.note(work)
            return logits
        except Exception as error:
            self._fail(batch, error, is_copied=is_copied)
            return None

    def _sample(self, batch: ScheduledBatch, logits: FloatArray | None) -> StepResult | None:
        if logits is None:
            return None
        try:
            return self._batch_sampler.sample(batch, logits)
        except Exception as error:
            self._fail(batch, error)
            return None

    def _fail(self, batch: ScheduledBatch, error: Exception, *, is_copied: bool = True) -> None:
        """Remove the groups that caused a step's failure, and report the error to their clients.

        Groups that fail even alone are removed. If there are none, all groups are computed again, each alone. If none
        fails then, the next such failure removes every group of the batch. `is_copied`: the batch's block copies were
        made.
        """
        broken = [entry for entry in batch.entries if not self._batch_sampler.can_sample(entry)]
        if not is_copied:
            broken += [entry for entry in batch.entries if not self._can_copy(batch, entry)]
        groups = {entry.sequence.group.key: entry.sequence.group for entry in broken or batch.entries}
        if not broken and self._scheduler.isolate(list(groups.values())):
            logger.warning("a step failed; its %d requests are computed again, each alone", len(groups), exc_info=error)
            return
        logger.error("a step failed, and with it %d of its requests", len(groups), exc_info=error)
        for key in groups:
            self._scheduler.remove(key)
            failure = EngineFailed(f"generation failed: {type(error).__name__}: {error}")
            self._deliveries.append(Delivery(key, failure))  # one error per group: raising an error changes it
        if not self._config.repeats_steps or not is_copied:
            for entry in batch.entries:
                if entry.sequence.status is SequenceStatus.RUNNING:
                    self._scheduler.preempt(entry.sequence)

    def _can_copy(self, batch: ScheduledBatch, entry: ScheduledSequence) -> bool:
        """False if one of the sequence's block copies fails alone, too. The caller computes everything again."""
        try:
            for kind, pairs in batch.copies:
                held = set(self._blocks.table(entry.sequence.sequence_id, kind))
                self._runner.copy_blocks([pair for pair in pairs if pair[1] in held], kind)
        except Exception:
            return False
        return True

    # --- out ----------------------------------------------------------------------------------------------------------

    def _publish(self) -> list[Delivery]:
        """Set the gauges that other threads read; returns the step's outputs."""
        stats, scheduler = self.stats, self._scheduler
        stats.num_running_requests = len({sequence.group.key for sequence in scheduler.running})
        stats.num_waiting_requests = len(scheduler.groups) - stats.num_running_requests
        stats.num_used_blocks = self._blocks.num_used_blocks
        scheduler.note_progress()
        deliveries, self._deliveries = self._deliveries, []
        return deliveries
