"""Chooses the tokens that run in the next forward pass. Called by `core` and `update`, on the engine thread only.

There are no prefill and decode phases: a sequence has tokens and computed tokens, and a step computes some of the
difference. Sequences are ranked by priority, then by the order in which their requests began; `fair_queue` orders the
others. The first sequence is never preempted, so it always advances. The background ranks last and uses what
`pacing` leaves of each step.

Source: iteration-level scheduling, Orca (OSDI 2022); chunked prefill, arXiv:2403.02310.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable
from itertools import chain, count
from operator import attrgetter
from time import perf_counter

from dragoman.engine.rolling.blocks.block_pools import BlockPools, Prefix
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.forward.batch import ScheduledBatch, ScheduledSequence
from dragoman.engine.rolling.pacing import BackgroundAccount, Pacer
from dragoman.engine.rolling.schedule.capacity import Admission
from dragoman.engine.rolling.schedule.exclusions import MaskTurns, Suspects
from dragoman.engine.rolling.schedule.fair_queue import FairQueue
from dragoman.engine.rolling.schedule.outlook import Outlook, ProgressBoard
from dragoman.engine.rolling.schedule.prompts import Pieces, Prefixes
from dragoman.engine.rolling.sequence import Sequence, SequenceGroup, SequenceStatus
from dragoman.engine.rolling.speculate.speculation import Speculation
from dragoman.engine.rolling.stats import RollingStats
from dragoman.engine.rolling.stored_prefixes.stored import StoredPrefixes

_RANK = attrgetter("rank")


class Scheduler:
    """Plans steps over its sequences. Only the scheduler allocates and frees blocks."""

    def __init__(
        self,
        config: RollingConfig,
        blocks: BlockPools,
        stats: RollingStats,
        speculation: Speculation | None = None,
        pacer: Pacer | None = None,
        clock: Callable[[], float] = perf_counter,
        *,
        long_context_from: int | None = None,
        stored: StoredPrefixes | None = None,
    ) -> None:
        """`pacer` None = prompts are not paced. `clock`, in seconds, times the steps."""
        self._config = config
        self._speculation = speculation
        self._computes_prompts = False  # whether the last step decoded
        self._num_prompts = 0  # prompts to compute when the last step was planned
        self._pacer = pacer or Pacer(max_slowdown=0)
        self._clock = clock
        self._mask_turns = MaskTurns(clock)
        self._has_grammars = False  # once there was a grammar, masks may take turns
        self._background = BackgroundAccount()
        self._has_background = False  # once there was a request in the background
        self._long_context_from = long_context_from
        self._blocks = blocks
        self._stats = stats
        self._admission = Admission(config, blocks)
        self.pieces = Pieces(config, blocks)
        self._prefixes = Prefixes(config, blocks, self.pieces, None if stored is None else stored.loads)
        self.groups: dict[int, SequenceGroup] = {}
        self.running: list[Sequence] = []
        # Of requests that have begun: preempted, forked without a place, or waiting for blocks from disk.
        self.returning: deque[Sequence] = deque()
        self.queue = FairQueue(self._pending)
        self._stored = stored
        self._is_stalled = False  # no sequence can run before a load has ended
        self._beginnings = count()
        match_stored = None if stored is None else stored.loads.match
        self._outlook = Outlook(config, blocks, self.running, self.queue, match_stored)
        self.progress = ProgressBoard(
            config.max_num_seqs, self.running, self.queue, self._admission, self._pacer, clock
        )
        self._suspects = Suspects()
        self._has_suspects = False  # the first one's group alone runs, and no other begins

    def note_progress(self) -> None:
        if self.progress.is_asked:
            self.progress.look(self.returning)

    @property
    def has_work(self) -> bool:
        """True while there is an unfinished group, unless all that could run wait for loads."""
        return bool(self.groups) and not self._is_stalled

    # --- groups come and go -------------------------------------------------------------------------------------------

    def add(self, group: SequenceGroup) -> None:
        """Queue a group with a new key behind all others of its caller. The cache must be large enough for it alone."""
        group.arrival_s = self._clock()
        self._has_grammars |= group.sequences[0].sampler_state.masker is not None
        self._has_background |= group.is_background
        self.groups[group.key] = group
        self.queue.add(group)

    def least_wait_s(self, group: SequenceGroup, most_s: float) -> float | None:
        """The least seconds until a waiting group's first token, if surely more than `most_s`; else None."""
        token_s = self._pacer.least_prompt_token_s
        if token_s is None:
            return None
        if self._long_context_from is not None:
            for waiting in self.queue:
                self._settle_regime(waiting.sequences[0])  # prefixes are found within a regime only
        num_tokens = self._outlook.tokens_beyond(group, most_s / token_s)
        return None if num_tokens is None else num_tokens * token_s

    def remove(self, key: int) -> SequenceGroup | None:
        group = self.groups.pop(key, None)
        if group is None:
            return None
        if self._has_suspects:
            self._suspects.note_removed(key)
        for sequence in group.live_sequences():
            self._dequeue(sequence)
        return group

    def finish(self, sequence: Sequence) -> None:
        self._dequeue(sequence)
        self._admission.note(sequence.num_generated_tokens)
        if self._speculation is not None:
            self._speculation.note_finished(sequence)
        if sequence.group.is_finished:
            del self.groups[sequence.group.key]

    def _enqueue(self, sequence: Sequence) -> None:
        insort(self.returning, sequence, key=_RANK)

    def _dequeue(self, sequence: Sequence) -> None:
        group = sequence.group
        if self._stored is not None:
            self._stored.loads.leave(sequence)
        if sequence.status is SequenceStatus.RUNNING:
            if self._stored is not None and self._config.prefix_cache == "all":
                num_full = sequence.num_computed_tokens // self._blocks.block_size
                self._stored.keeper.note_answer(sequence.digests, num_full, group.request.cache_keep_s)
            self.running.remove(sequence)
            self._blocks.free(sequence.sequence_id)
        elif sequence.status is SequenceStatus.WAITING and group.has_begun:
            self.returning.remove(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.queue.remove(group)
        if group.has_begun:
            self.queue.shares.charge(group.request.caller, num_generated=sequence.num_generated_tokens)
        sequence.status = SequenceStatus.FINISHED

    def _pending(self) -> Counter[str]:
        tally: Counter[str] = Counter()
        for sequence in chain(self.running, self.returning):
            tally[sequence.group.request.caller] += sequence.num_generated_tokens
        return tally

    # --- after a step that failed -------------------------------------------------------------------------------------

    def isolate(self, groups: list[SequenceGroup]) -> bool:
        """Compute the groups of a failed step alone, one after the other; False if it would find nothing."""
        if not self._suspects.begin(groups, self._stats.num_steps):
            return False
        self._has_suspects = True
        self._preempt_all()
        return True

    def _clear_suspects(self) -> None:
        while self._suspects and self._suspects.is_cleared(self._suspects.current_key in self.groups):
            self._suspects.go_on(self._stats.num_steps)
            self._has_suspects = bool(self._suspects)
            self._preempt_all()

    def _preempt_all(self) -> None:
        for sequence in reversed(self.running):
            self.preempt(sequence)

    def fork(self, group: SequenceGroup) -> None:
        """Start the group's other sequences, which share the prompt's blocks; those without a place are queued."""
        group.is_forked = True
        parent, *children = group.sequences
        position = self.running.index(parent) + 1
        num_free = max(self._config.max_num_seqs - len(self.running), 0)
        for child in children[:num_free]:
            self._blocks.fork(parent.sequence_id, child.sequence_id)
            child.num_computed_tokens = parent.num_computed_tokens
            child.digests = parent.digests.copy()
            child.status = SequenceStatus.RUNNING
        self.running[position:position] = children[:num_free]
        for child in children[num_free:]:
            child.status = SequenceStatus.WAITING
            self._enqueue(child)

    def refork(self, parent: Sequence, child: Sequence) -> None:
        """Make `child` a copy of its sibling `parent`, whatever its state, with shared blocks if both run.

        Otherwise it computes its tokens again, after the prompt's blocks, or from the beginning if these were passed.
        """
        size, num_computed = self._blocks.block_size, child.num_computed_tokens
        child.copy_progress(parent)
        if child.status is not SequenceStatus.RUNNING:
            child.num_computed_tokens = 0
        elif parent.status is SequenceStatus.RUNNING:
            self._blocks.free(child.sequence_id)
            self._blocks.fork(parent.sequence_id, child.sequence_id)
        else:
            num_prompt_blocks = self.pieces.num_cuttable(child, min(num_computed, child.num_prompt_tokens) // size)
            child.num_computed_tokens = self._blocks.truncate(child.sequence_id, num_prompt_blocks) * size

    def commit(self, sequence: Sequence, begin: int) -> None:
        """Make the tokens computed since `begin` final: cache their blocks, free blocks behind windows."""
        end, mode, size = sequence.num_computed_tokens, self._config.prefix_cache, self._blocks.block_size
        num_full = (min(end, sequence.num_prompt_tokens) if mode == "prompt" else end) // size
        if mode != "off" and num_full > begin // size:
            sequence.extend_digests(size, num_full)
            if self._stored is not None:
                keep_s = sequence.group.request.cache_keep_s
                self._stored.keeper.note_computed(sequence.digests[begin // size : num_full], keep_s)
            self._blocks.commit(sequence.sequence_id, sequence.digests[:num_full])
        if self._stored is not None and begin < sequence.num_prompt_tokens <= end and not sequence.is_shifted:
            request = sequence.group.request
            num_full = sequence.num_prompt_tokens // size
            self._stored.keeper.note_prompt(sequence.digests, num_full, request.cache_keep_s, request.caller)
        if self._blocks.have_windows:
            self._blocks.pass_blocks(sequence.sequence_id, end)

    # --- planning a step ----------------------------------------------------------------------------------------------

    def schedule(self) -> ScheduledBatch:
        """The next step: running sequences first, then as many waiting ones as fit. Empty only if there is no work.

        Mutates: drafts, block tables, queues. Call `end_step` after the step.
        """
        self._is_stalled = False
        if self._has_suspects:
            self._clear_suspects()
        if self._long_context_from is not None:
            for sequence in self.running:
                self._settle_regime(sequence)
        if self._has_grammars:
            self._mask_turns.choose(self.running)
        num_decoding, num_prompts = self._count_kinds()
        num_rows = num_decoding
        if self._speculation is not None:
            # As the last step decoded; or the step is for a new request that will hardly have to wait.
            computes_prompts = self._computes_prompts or num_prompts > self._num_prompts
            self._num_prompts = num_prompts
            self._speculation.set_drafts(self.running, self._pacer.prompt_token_s if computes_prompts else None)
            if num_prompts:
                num_rows += sum([sequence.num_draft_tokens for sequence in self.running])
        prefill_budget = self._pacer.prompt_budget(num_rows, num_prompts)
        batch = self._schedule(prefill_budget)
        if not batch and prefill_budget is not None:  # the decoding sequences were preempted
            batch = self._schedule(None)
        if not batch and self._has_grammars and self._mask_turns.release():
            batch = self._schedule(None)
        while not batch and self._give_back_loaded():
            batch = self._schedule(None)
        while not batch and self._can_yield():
            self.preempt(self.running[-1])
            batch = self._schedule(None)
        if not batch and self.groups:
            self._is_stalled = self._is_reading
        if not batch and self.has_work:
            raise RuntimeError(f"{len(self.running)} running and {self._num_waiting} waiting sequences, none can run")
        if self._speculation is not None:
            batch.num_padding = self._speculation.num_padding(batch)
        batch.begin_s = self._clock()
        return batch

    def end_step(self, batch: ScheduledBatch) -> None:
        """Record the step's duration, which paces the next ones; call this right after sampling."""
        duration_s = self._clock() - batch.begin_s
        self._pacer.observe(batch.num_decode_rows, batch.num_prefill_tokens, duration_s)
        if self._has_background:
            is_wanted = any(group.is_background for group in self.groups.values())
            self._background.observe(batch.parts, self._pacer.prompt_token_s, duration_s, is_wanted=is_wanted)
        self._computes_prompts = batch.num_prefill_tokens > 0
        if self._speculation is not None:
            self._speculation.note_computed(batch)
        self._stats.step_s.add(duration_s)
        self._stats.step_tokens.add(batch.num_tokens)
        self._stats.step_sequences.add(len(batch.entries))

    def _settle_regime(self, sequence: Sequence) -> None:
        boundary = self._long_context_from
        if boundary is not None and sequence.num_tokens > boundary and not sequence.is_long:
            sequence.become_long()
            if sequence.status is SequenceStatus.RUNNING:
                self._blocks.truncate(sequence.sequence_id, 0)

    def _count_kinds(self) -> tuple[int, int]:
        """(decoding sequences, sequences with a prompt to compute); the background counts only if there are no others."""
        running, num_waiting = self.running, self._num_waiting
        if self._has_background:
            waiting = chain(self._begun, (group.sequences[0] for group in self._beginners))
            others = [sequence for sequence in running if not sequence.group.is_background]
            num_others = sum(not sequence.group.is_background for sequence in waiting)
            if others or num_others:
                running, num_waiting = others, num_others
        num_decoding = sum([sequence.is_decoding for sequence in running])
        num_held = sum([sequence.is_held for sequence in running])
        return num_decoding, len(running) + num_waiting - num_decoding - num_held

    @property
    def _num_waiting(self) -> int:
        return len(self._begun) + len(self._beginners)

    @property
    def _begun(self) -> deque[Sequence] | list[Sequence]:
        """The waiting sequences of requests that have begun, and may run now."""
        if not self._has_suspects and not self._is_reading:
            return self.returning
        return [sequence for sequence in self.returning if self._may_run(sequence)]

    def _may_run(self, sequence: Sequence) -> bool:
        if self._has_suspects and sequence.group.key != self._suspects.current_key:
            return False
        return self._stored is None or not self._stored.loads.is_loading(sequence)

    @property
    def _is_reading(self) -> bool:
        return self._stored is not None and self._stored.loads.is_reading

    @property
    def _beginners(self) -> FairQueue | tuple[()]:
        return () if self._has_suspects else self.queue

    def _can_yield(self) -> bool:
        """True if the last running sequence ranks behind a waiting one: beams may have to yield to other beams."""
        return bool(self.running and self._num_waiting) and self.running[-1].rank > self._next_waiting().rank

    def _next_waiting(self) -> Sequence:
        """The first that has begun before, unless another is more urgent."""
        begun = self._begun
        if self._beginners and not (begun and -begun[0].rank[0] >= self.queue.priority):
            return self.queue.head().sequences[0]
        return begun[0]

    def _schedule(self, prefill_budget: int | None) -> ScheduledBatch:
        batch = ScheduledBatch(prefill_budget=prefill_budget)
        self._schedule_part(batch, is_background=False)
        if self._has_background:
            self._make_room_for_background(batch)
            self._schedule_part(batch, is_background=True)
        batch.copies = self._blocks.take_copies()
        return batch

    def _schedule_part(self, batch: ScheduledBatch, *, is_background: bool) -> None:
        self._schedule_running(batch, is_background=is_background)
        if not batch.num_preempted:  # blocks taken from one sequence are not given to another in the same step
            self._admit_waiting(batch, is_background=is_background)

    def _make_room_for_background(self, batch: ScheduledBatch) -> None:
        token_s = self._pacer.prompt_token_s
        if batch:
            batch.background = self._background.room_beside(batch.num_decode_rows, token_s)
            batch.prefill_budget = None  # they get what other prompts leave
        else:
            batch.background = self._background.room_alone(token_s)

    def _schedule_running(self, batch: ScheduledBatch, *, is_background: bool) -> None:
        """Plan running sequences by rank; one that lacks a block preempts the last one, if need be itself."""
        position = 0
        while position < len(self.running):
            sequence = self.running[position]
            if sequence.group.is_background is not is_background:
                position += 1
                continue
            if is_background and batch.background is not None and sequence.num_draft_tokens:
                sequence.drop_drafts()
            if self._has_grammars and self._mask_turns.sits_out(sequence):
                position += 1
                continue
            if sequence.num_draft_tokens:
                self._drop_costly_drafts(sequence, batch)
            num_new = self.pieces.num_schedulable(sequence, sequence.num_computed_tokens, batch)
            position += 1
            if not num_new:
                continue
            begin = sequence.num_computed_tokens
            while not self._blocks.append(sequence.sequence_id, begin, begin + num_new):
                if self._give_back_loaded():
                    continue
                victim = self.running[-1]
                self.preempt(victim)
                batch.num_preempted += 1
                if victim is sequence:
                    return
            batch.add(self._plan(sequence, num_new))

    def _drop_costly_drafts(self, sequence: Sequence, batch: ScheduledBatch) -> None:
        """Drop the drafts unless all of them fit, together with a token of every other sequence."""
        begin, end = sequence.num_computed_tokens, sequence.num_tokens
        has_budget = end - begin + len(self.running) <= self._config.max_batch_tokens - batch.num_tokens
        if not has_budget or not self._blocks.append(sequence.sequence_id, begin, end):
            sequence.drop_drafts()

    def preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._blocks.free(sequence.sequence_id)
        sequence.reset()
        self._enqueue(sequence)
        self._stats.num_preemptions += 1
        sequence.num_preemptions += 1

    def shift(self, sequence: Sequence) -> None:
        """Continue a sequence whose context is full with fewer tokens; a running one keeps its place.

        Its caller is charged for the recomputed tokens: all but the front of its prompt, if that is cached.
        """
        num_same, size = sequence.shift(), self._blocks.block_size
        self._stats.num_context_shifts += 1
        if sequence.status is not SequenceStatus.RUNNING:  # it was forked from a prompt that nearly fills the context
            sequence.digests = []
            return
        num_blocks = self.pieces.num_cuttable(sequence, num_same // size)
        num_blocks = self._blocks.truncate(sequence.sequence_id, num_blocks)
        sequence.num_computed_tokens = num_blocks * size
        del sequence.digests[num_blocks:]
        num_new = sequence.num_tokens - sequence.num_computed_tokens
        self.queue.shares.charge(sequence.group.request.caller, num_prompt=num_new)
        if self._speculation is not None:
            self._speculation.forget(sequence)

    def _admit_waiting(self, batch: ScheduledBatch, *, is_background: bool) -> None:
        """Admit waiting sequences, one after the other; none overtakes one that does not fit."""
        while self._num_waiting and self._may_admit(is_background=is_background):
            sequence = self._next_waiting()
            if sequence.group.is_background is not is_background:
                return
            if not self._has_room_for(sequence.group):
                if self._push_back(sequence):
                    continue
                return
            self._settle_regime(sequence)
            shared = self._prefixes.shared_prompt(sequence)
            if shared is None:
                return
            prefix = self._prefixes.match(sequence, shared)
            if self._stored is not None and self._waits_for_load(sequence, prefix, shared):
                continue
            begin = prefix.length * self._blocks.block_size
            num_new = self.pieces.num_schedulable(sequence, begin, batch)
            if not num_new:
                return
            if not self._admission.can_stay(sequence, prefix, begin + num_new, self.running):
                if self._push_back(sequence):
                    continue
                return
            self._take_out(sequence)
            self._charge(sequence, begin)
            self._blocks.allocate(sequence.sequence_id, sequence.num_tokens, prefix, begin + num_new)
            self._start(sequence, begin)
            batch.add(self._plan(sequence, num_new))

    def _may_admit(self, *, is_background: bool) -> bool:
        """False if all places are taken: the choice can wait, as a more urgent request may come."""
        num_holders = len(self.running) + len(self._loading)
        if not num_holders or num_holders < self._config.max_num_seqs:
            return True
        return not is_background and bool(self.running) and self.running[-1].group.is_background

    def _push_back(self, sequence: Sequence) -> bool:
        """Preempt the last background sequence, not yet part of the step, for another request; False if there is none."""
        if sequence.group.is_background or not self.running or not self.running[-1].group.is_background:
            return False
        self.preempt(self.running[-1])
        return True

    def _take_out(self, sequence: Sequence) -> None:
        group = sequence.group
        if group.has_begun:
            self.returning.remove(sequence)
            return
        self.queue.remove(group)
        group.begin(next(self._beginnings))

    def _charge(self, sequence: Sequence, num_computed: int) -> None:
        """Charge its caller for the prompt, once: not again after a preemption."""
        group = sequence.group
        if not group.is_charged:
            group.is_charged = True
            self.queue.shares.charge(group.request.caller, num_prompt=sequence.num_prompt_tokens - num_computed)

    def _has_room_for(self, group: SequenceGroup) -> bool:
        holders = [*self.running, *self._loading]
        num_promised = len(holders) + sum(sequence.group.num_unforked for sequence in holders)
        return not holders or num_promised + 1 + group.num_unforked <= self._config.max_num_seqs

    # --- prefixes on disk ---------------------------------------------------------------------------------------------

    def _waits_for_load(self, sequence: Sequence, prefix: Prefix, shared: Prefix) -> bool:
        """Start or join a load of more of a waiting sequence's prefix; False if there is no more, no room, or no gain."""
        assert self._stored is not None
        loads = self._stored.loads
        if shared.length or self._config.prefix_cache == "off" or sequence.group.needs_prompt_logprobs:
            return False
        if sequence.has_joined or not loads.join(sequence, prefix):
            length = 0 if sequence.has_loaded else self._prefixes.num_loadable(sequence)
            end = prefix.length * self._blocks.block_size + 1
            if length <= prefix.length or not self._admission.can_stay(sequence, prefix, end, self.running):
                return False
            if not loads.begin(sequence, prefix, length, self._pacer.prompt_token_s):
                return False
        if not sequence.group.has_begun:
            self._take_out(sequence)
            self._enqueue(sequence)
        return True

    @property
    def _loading(self) -> list[Sequence]:
        """Waiting sequences whose blocks are being read: they keep their places."""
        if self._stored is None or not self._is_reading:
            return []
        return [sequence for sequence in self.returning if self._stored.loads.is_loading(sequence)]

    def _give_back_loaded(self) -> bool:
        return self._stored is not None and self._stored.loads.give_back()

    def _note_found(self, sequence: Sequence, num_cached: int) -> None:
        assert self._stored is not None
        self._stored.loads.leave(sequence)
        if num_cached:
            num_blocks = num_cached // self._blocks.block_size
            self._stored.keeper.note_found(sequence.digests, num_blocks, sequence.group.request.cache_keep_s)
        if sequence.num_in_memory is None or num_cached <= sequence.num_in_memory:
            return
        num_loaded = num_cached - sequence.num_in_memory
        self._stored.loads.note_found(num_loaded, self._pacer.prompt_token_s)
        if not sequence.num_generated_tokens:
            sequence.group.num_stored_tokens = num_loaded

    # --- inside -------------------------------------------------------------------------------------------------------

    def _start(self, sequence: Sequence, num_cached: int) -> None:
        sequence.num_computed_tokens = num_cached
        sequence.status = SequenceStatus.RUNNING
        insort(self.running, sequence, key=_RANK)
        if not sequence.num_generated_tokens:  # it begins; otherwise it was preempted
            sequence.group.num_cached_tokens = num_cached
        if sequence.group.queue_s is None:
            sequence.group.queue_s = self._clock() - sequence.group.arrival_s
        if self._stored is not None:
            self._note_found(sequence, num_cached)
        if self._config.prefix_cache != "off":
            self._stats.num_prefix_queries += sequence.num_tokens
            self._stats.num_prefix_hits += num_cached

    def _plan(self, sequence: Sequence, num_new: int) -> ScheduledSequence:
        group = sequence.group
        end = sequence.num_computed_tokens + num_new
        num_sample_rows = 0
        if end == sequence.num_tokens and group.request.max_tokens:
            num_sample_rows = sequence.num_draft_tokens + 1 if group.is_forked else group.num_prompt_end_rows
        if group.prompt_logprobs is None or not group.needs_prompt_logprobs:
            return ScheduledSequence(sequence, num_new, num_sample_rows)
        # Row p holds the log-probability of token p + 1; those collected before a preemption stay.
        num_wanted = min(end, sequence.num_prompt_tokens - 1) - (len(group.prompt_logprobs) - 1)
        return ScheduledSequence(sequence, num_new, num_sample_rows, max(num_wanted, 0))
