"""Speculative decoding: collects guesses, which the next forward pass of the model verifies all at once.

Called by the scheduler before and after each step, on the engine thread. Drafts are tokens that the scheduler plans
like others, and `update` accepts them. A proposal names one token per position. So rejection sampling equals "draw from
p and accept while the draw is the draft", and a position's random number depends only on the position: tokens are the
same as without speculation.

The number of verified guesses maximises the expected tokens per second. Source: Leviathan et al. 2023,
arXiv:2211.17192, section 2.3; which guesses of a batch to verify: Miao et al. 2023, arXiv:2305.09781; Liu et al. 2024,
arXiv:2406.14066.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace
from time import perf_counter

from dragoman.engine.rolling.blocks.block_pools import BlockPools
from dragoman.engine.rolling.config import SpeculationConfig
from dragoman.engine.rolling.forward.batch import ScheduledBatch
from dragoman.engine.rolling.forward.runner import ModelRunner
from dragoman.engine.rolling.sequence import Sequence
from dragoman.engine.rolling.speculate.estimates import Acceptance, DraftDepth, RowCosts
from dragoman.engine.rolling.speculate.proposer import NOTHING, NUM_STRENGTHS, Basis, Proposal, Proposer, Wish
from dragoman.types import Limits

logger = logging.getLogger(__name__)

MAX_DRAFT_TOKENS = Limits().max_assistant_tokens  # per step, whatever a request sets
MAX_CONFIDENT_TOKENS = 16  # per step if only a confidence threshold limits them
_LEAST_GAIN = 0.05  # of the tokens per second; less is noise
_WORTH = 1.5  # times the cost of guessing: guesses that save less only pay by the estimates
_WORTH_BESIDE_PROMPTS = 2.0  # times a row: prompts need the step anyway, so guesses save little of it
_PATIENCE = 6  # unprofitable attempts, after which guessing takes
_LOOKING = 0.005  # this part of the time at most,
_LONGEST_PAUSE = 256  # and is tried again after this many steps at the latest
_GUESSING_WEIGHT = 0.1  # weight of the newest measurement
_SAVED_WEIGHT = 0.2  # weight of the newest savings
_QUICKER_WEIGHT = 0.5  # weight of a lower measurement: an attempt takes longer when it reads prompts
_SHARE_WEIGHT = 0.1  # weight of the newest step
_LEAVE, _RETURN = 1.5, 0.5  # shares of the cost of a change of rows, charged for beginning and ending to verify guesses
_ROWS = frozenset((2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512))
_MOST_GUESSES = 128  # of all sequences, unless requests set more: beyond that every row costs time,
_FEWEST_GUESSES = 4  # but at least this many of each
_ENOUGH = 0.75  # share of the wished guesses; if it is expected to hold, no further proposer is called
_BY_GRAMMAR = (Basis.FORCED, Basis.GRAMMAR)  # their guesses are allowed by the grammar
_GOOD_COPY = 0.6  # with such a sure first guess of a copy, the draft model is not called


@dataclass(slots=True)
class _Candidate:
    """A wish and the best guesses for it; `survival[j]`: the probability that guess j and all before it hold."""

    wish: Wish
    proposal: Proposal
    survival: list[float]

    @property
    def expected(self) -> float:
        return sum(self.survival)


class Speculation:
    def __init__(
        self,
        proposers: Rows[Proposer],
        config: SpeculationConfig,
        blocks: BlockPools,
        runner: ModelRunner,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`runner`: the model's, for its properties only. `clock`: in seconds, times the draft model."""
        self._proposers = list(proposers)
        self._config = config
        self._blocks = blocks
        self._vocab_size = runner.vocab_size
        self._long_context_from = runner.long_context_from
        self._clock = clock
        self._acceptance = Acceptance()
        self._costs = RowCosts(config.context_share)
        self._depth = DraftDepth()
        # By sequence: its number of tokens at the time of these guesses.
        self._guessed: dict[int, tuple[int, Proposal]] = {}
        self._known_ids: set[int] = set()
        self._has_fixed = False  # a running request has set its number of guesses
        self._guessing_s = 0.0  # in a step right after another attempt
        self._returning_s = 0.0  # in any other step
        self._gain_s = 0.0  # the expected savings of verified guesses in a step; 0 without any
        self._saved_s = 0.0  # their mean
        self._guessing_share = 0.0  # share of recent decode steps with guesses
        self._num_steps = self._num_idle = 0  # unprofitable attempts in a row
        self._last_look, self._next_look = -1, 0  # steps so far
        self._begin_s = 0.0  # when planning of the last step began, without guessing
        self._computed: tuple[int, int] | None = None  # its rows and their context, if they are measured

    def set_drafts(self, running: Rows[Sequence], prompt_token_s: float | None = None) -> None:
        """Give drafts to the running sequences that speculate in the next step. Mutates: drafts, block tables.

        `prompt_token_s`: seconds per prompt token, 0 = unknown, if the step computes prompts. A proposer that fails is
        switched off for good; requests go on without it.
        """
        if not self._proposers:
            return
        self._measure(running)
        self._guess(running, prompt_token_s)
        self._begin_s = self._clock()

    def _measure(self, running: Rows[Sequence]) -> None:
        """Learn the cost of the last step's rows: the time from its planning to this one's, without guessing."""
        if self._computed is None:
            return
        (num_rows, num_context), self._computed = self._computed, None
        if running:
            self._costs.observe(num_rows, num_context, self._clock() - self._begin_s)

    def _guess(self, running: Rows[Sequence], prompt_token_s: float | None) -> None:
        self._retain(running)
        if self._guessed:
            for sequence in running:
                self._judge(sequence)
        self._num_steps += 1
        if self._num_steps < self._next_look and not self._has_fixed:
            return
        decoding = [sequence for sequence in running if sequence.is_decoding]
        if not decoding or not (self._has_fixed or self._can_compare(decoding, prompt_token_s)):
            return
        begin, self._gain_s = self._clock(), 0.0
        wishes = [wish for sequence in decoding if (wish := self._wish(sequence, len(running))) is not None]
        candidates = self._candidates(self._affordable(wishes, len(running)), decoding) if wishes else []
        if candidates:
            self._choose(candidates, decoding, prompt_token_s)
        self._plan_look(decoding, self._clock() - begin)
        for candidate in candidates:
            if candidate.survival:
                drafts = candidate.proposal.token_ids[: len(candidate.survival)]
                candidate.wish.sequence.set_drafts(drafts)

    def _can_compare(self, decoding: Rows[Sequence], prompt_token_s: float | None) -> bool:
        costs, num_rows = self._costs, len(decoding)
        if prompt_token_s is not None:
            return prompt_token_s > 0 and costs.further_row_s(num_rows) is not None
        return costs.seconds(num_rows) > 0 and not costs.is_doubtful(num_rows)

    def _plan_look(self, decoding: Rows[Sequence], guessing_s: float) -> None:
        """Choose the step of the next attempt at guessing; this one took `guessing_s`.

        An attempt right after another takes less than one that has to read all tokens since the last. So only the
        second shows whether guessing in every step pays; it follows if the first one gains anything.
        """
        follows = self._num_steps == self._last_look + 1
        self._last_look = self._num_steps
        if follows:
            self._guessing_s = _eased(self._guessing_s, guessing_s)
        else:
            self._returning_s = _eased(self._returning_s, guessing_s)
        self._saved_s += _SAVED_WEIGHT * (self._gain_s - self._saved_s)
        least_s = _WORTH * self._guessing_s
        self._num_idle = 0 if self._saved_s > least_s else self._num_idle + 1
        pays_now = self._gain_s > (least_s if follows else 0.0)
        self._next_look = self._num_steps + (1 if pays_now else self._pause(decoding))

    def _pause(self, decoding: Rows[Sequence]) -> int:
        """Steps to wait before testing again whether guessing pays, as testing costs time."""
        if self._num_idle < _PATIENCE:
            return 1
        num_context = sum([sequence.num_tokens for sequence in decoding])
        step_s = self._costs.seconds(len(decoding)) + self._costs.context_s * num_context
        if not step_s:
            return 1
        return min(int(max(self._guessing_s, self._returning_s) / (_LOOKING * step_s)) + 1, _LONGEST_PAUSE)

    def num_padding(self, batch: ScheduledBatch) -> int:
        """The number of dummy rows to add to the step: a step with as many rows as the last takes less time.

        Steps are padded while those with guesses are frequent, so that the next guesses need no other number of rows.
        """
        if not self._config.pads_steps or batch.num_prefill_tokens:
            return 0
        has_guesses = batch.num_tokens > len(batch.entries)
        self._guessing_share += _SHARE_WEIGHT * (has_guesses - self._guessing_share)
        costs, num_rows = self._costs, batch.num_tokens
        if max(num_rows, 2) >= costs.last_rows or not costs.is_known(num_rows) or costs.is_stale(num_rows):
            return 0
        excess_s = costs.seconds(costs.last_rows) - costs.seconds(num_rows)
        pays = excess_s < 2 * self._guessing_share * costs.change_s(num_rows)
        return costs.last_rows - num_rows if pays else 0

    def note_computed(self, batch: ScheduledBatch) -> None:
        if not self._proposers:
            return
        if batch.num_prefill_tokens:  # says nothing about rows
            self._costs.note_prompts()
            return
        num_rows, entries = batch.num_tokens + batch.num_padding, batch.entries
        if self._costs.skips(num_rows):
            return
        num_context = batch.num_tokens + sum([entry.sequence.num_computed_tokens for entry in entries])
        if batch.num_tokens > len(entries):  # a guess also sees the preceding tokens of the same step
            for entry in entries:
                num_guesses = entry.num_new_tokens - 1
                num_context += num_guesses * entry.sequence.num_computed_tokens + num_guesses * (num_guesses + 1) // 2
        self._computed = num_rows, num_context

    def note_finished(self, sequence: Sequence) -> None:
        for proposer in list(self._proposers):
            try:
                proposer.note_finished(sequence)
            except Exception:
                self._switch_off(proposer)

    def forget(self, sequence: Sequence) -> None:
        self._retain_ids(self._known_ids - {sequence.sequence_id})

    def _retain(self, running: Rows[Sequence]) -> None:
        """Forget sequences that have ended, and those with nothing computed, which will start in other blocks."""
        ids = {sequence.sequence_id for sequence in running if sequence.num_computed_tokens}
        if ids == self._known_ids:
            return
        self._has_fixed = self._config.num_assistant_tokens is not None or any(map(_says_how_many, running))
        self._retain_ids(ids)

    def _retain_ids(self, ids: set[int]) -> None:
        self._known_ids = ids
        self._acceptance.retain(ids)
        for sequence_id in [key for key in self._guessed if key not in ids]:
            del self._guessed[sequence_id]
        for proposer in list(self._proposers):
            try:
                proposer.retain(ids)
            except Exception:
                self._switch_off(proposer)

    def _switch_off(self, proposer: Proposer) -> None:
        logger.exception("%s failed and is switched off; answers do not change", type(proposer).__name__)
        self._proposers.remove(proposer)

    # --- who wants guesses --------------------------------------------------------------------------------------------

    def _wish(self, sequence: Sequence, num_running: int) -> Wish | None:
        """The sequence's wish for guesses, None if it does not speculate in this step.

        Only while decoding. Beams choose among each other's continuations, so they get no drafts.
        """
        group, sampling, config = sequence.group, sequence.group.request.sampling, self._config
        if not group.is_forked or group.beams is not None or sampling.prompt_logprobs is not None:
            return None
        if not sequence.num_generated_tokens or sequence.num_tokens - sequence.num_computed_tokens != 1:
            return None
        threshold, wanted = sampling.assistant_confidence_threshold, sampling.num_assistant_tokens
        if wanted is None and threshold is None:
            wanted = config.num_assistant_tokens
        most = MAX_DRAFT_TOKENS if threshold is None else MAX_CONFIDENT_TOKENS
        # The model adds one token to the accepted drafts, which may be the last one.
        most = min(most if wanted is None else wanted, MAX_DRAFT_TOKENS)
        is_fixed = (wanted is not None or threshold is not None) and num_running <= config.max_batch
        if not is_fixed:
            most = min(most, max(_MOST_GUESSES // num_running, _FEWEST_GUESSES))
        limit = min(most, sequence.num_left - 1)
        if self._long_context_from is not None and not sequence.is_long:  # the sequence must not outgrow its regime
            limit = min(limit, self._long_context_from - sequence.num_tokens)
        if limit < 1:
            return None
        size = sampling.max_ngram_size or config.max_ngram_size
        return Wish(sequence, limit, size, threshold, is_fixed=is_fixed)

    def _affordable(self, wishes: list[Wish], num_running: int) -> list[Wish]:
        """The wishes that leave a free block for every running sequence: guesses must not preempt any."""
        num_spare = self._blocks.num_free_blocks - num_running
        affordable = []
        for wish in wishes:
            num_spare -= -(-wish.max_tokens // self._blocks.block_size) + 1
            if num_spare >= 0:
                affordable.append(wish)
        return affordable

    # --- what is guessed ----------------------------------------------------------------------------------------------

    def _candidates(self, wishes: list[Wish], decoding: Rows[Sequence]) -> list[_Candidate]:
        best = [_Candidate(wish, NOTHING, []) for wish in wishes]
        for proposer in [proposer for proposer in self._proposers if not proposer.needs_slots]:
            asking = [candidate for candidate in best if candidate.expected < _ENOUGH * candidate.wish.max_tokens]
            self._improve(asking, self._ask(proposer, [candidate.wish for candidate in asking]))
        for proposer in [proposer for proposer in self._proposers if proposer.needs_slots]:
            self._ask_model(proposer, best, decoding)
        for candidate in best:
            if candidate.survival:
                sequence = candidate.wish.sequence
                self._guessed[sequence.sequence_id] = (sequence.num_tokens, candidate.proposal)
        return [candidate for candidate in best if candidate.survival]

    def _improve(self, best: list[_Candidate], proposals: Rows[Proposal]) -> None:
        """Replace guesses by these where more are expected to hold. Mutates: `best`."""
        for candidate, proposal in zip(best, proposals, strict=True):
            if not proposal.token_ids:
                continue
            legal = self._legal(candidate.wish, proposal)
            survival = self._survival(candidate.wish, legal)
            if sum(survival) > candidate.expected:
                candidate.proposal, candidate.survival = legal, survival

    def _ask(self, proposer: Proposer, wishes: Rows[Wish]) -> Rows[Proposal]:
        try:
            return proposer.propose(wishes)
        except Exception:
            self._switch_off(proposer)
            return [NOTHING] * len(wishes)

    def _ask_model(self, proposer: Proposer, best: list[_Candidate], decoding: Rows[Sequence]) -> None:
        """Let a draft model guess for wishes without a good copy, as far as its forward passes pay. Mutates: `best`."""
        asking = [candidate for candidate in best if not candidate.survival or candidate.survival[0] < _GOOD_COPY]
        if not asking:
            return
        num_free = sum(not candidate.wish.is_fixed for candidate in asking)
        depth = self._depth.choose(self._costs, len(decoding), num_free) if num_free else 0
        asking = [candidate for candidate in asking if candidate.wish.is_fixed or depth]
        wishes = [
            candidate.wish
            if candidate.wish.is_fixed
            else replace(candidate.wish, max_tokens=min(depth, candidate.wish.max_tokens))
            for candidate in asking
        ]
        served = self._with_slots(wishes)
        if not served:
            return
        begin = self._clock()
        proposals = self._ask(proposer, served)
        self._depth.observe(max((len(proposal.token_ids) for proposal in proposals), default=0), self._clock() - begin)
        by_id = {candidate.wish.sequence.sequence_id: candidate for candidate in asking}
        self._improve([by_id[wish.sequence.sequence_id] for wish in served], proposals)

    def _with_slots(self, wishes: list[Wish]) -> list[Wish]:
        """The wishes whose slots could be allocated. Mutates: block tables."""
        served = []
        for wish in wishes:
            sequence = wish.sequence
            end = sequence.num_tokens + wish.max_tokens
            if self._blocks.append(sequence.sequence_id, sequence.num_computed_tokens, end):
                served.append(replace(wish, block_table=self._blocks.table(sequence.sequence_id)))
        return served

    def _legal(self, wish: Wish, proposal: Proposal) -> Proposal:
        """The front part of a proposal that the vocabulary, the wish, and the sequence's budget and grammar allow."""
        kept = proposal.token_ids[: wish.max_tokens]
        if kept and not (min(kept) >= 0 and max(kept) < self._vocab_size):
            kept = kept[: next(place for place, token_id in enumerate(kept) if not 0 <= token_id < self._vocab_size)]
        watch, masker = wish.sequence.sampler_state.watch, wish.sequence.sampler_state.masker
        if watch is not None and kept:
            kept = kept[: watch.num_possible(kept)]
        is_foreseen = bool(kept) and proposal.evidence[0] // NUM_STRENGTHS in _BY_GRAMMAR
        if masker is not None and kept and not is_foreseen:
            try:
                kept = kept[: masker.validate(kept.tolist())]
            except Exception:  # a broken grammar: sampling finds it next, and fails this request alone
                kept = array("q")
        return proposal if len(kept) == len(proposal.token_ids) else Proposal(kept, proposal.evidence[: len(kept)])

    def _survival(self, wish: Wish, proposal: Proposal) -> list[float]:
        """The probability that each guess and all before it hold, up to the first one below the wish's confidence."""
        acceptance, sequence_id = self._acceptance, wish.sequence.sequence_id
        survival: list[float] = []
        left, basis, factor = 1.0, -1, 1.0
        for evidence in proposal.evidence:
            if evidence // NUM_STRENGTHS != basis:
                basis, factor = evidence // NUM_STRENGTHS, acceptance.factor(sequence_id, evidence)
            share = acceptance.share(evidence, factor)
            # A draft model has already stopped where its own probability was too small.
            if wish.min_confidence is not None and share < wish.min_confidence and basis != Basis.DRAFT_MODEL:
                break
            left *= share
            survival.append(left)
        return survival

    def _judge(self, sequence: Sequence) -> None:
        guessed = self._guessed.pop(sequence.sequence_id, None)
        if guessed is None or sequence.num_draft_tokens:
            return
        num_before, proposal = guessed
        found = sequence.token_ids[num_before : num_before + len(proposal.token_ids)]
        for token_id, guess, evidence in zip(found, proposal.token_ids, proposal.evidence, strict=False):
            holds = token_id == guess
            self._acceptance.judge(sequence.sequence_id, evidence, holds=holds)
            self._depth.judge(evidence, holds=holds)
            if not holds:
                break

    # --- how many are verified ----------------------------------------------------------------------------------------

    def _choose(self, candidates: list[_Candidate], decoding: Rows[Sequence], prompt_token_s: float | None) -> None:
        free = [candidate for candidate in candidates if not candidate.wish.is_fixed]
        if not free:
            return
        contexts = [candidate.wish.sequence.num_tokens for candidate in free]
        guesses = sorted(
            [
                (-probability, place, index, contexts[index])
                for index, candidate in enumerate(free)
                for place, probability in enumerate(candidate.survival)
            ]
        )
        num_fixed = sum(len(candidate.survival) for candidate in candidates if candidate.wish.is_fixed)
        num_context = sum([sequence.num_tokens for sequence in decoding])
        if prompt_token_s is None:
            num_taken = self._num_paying(guesses, len(decoding), num_fixed, num_context)
        else:
            num_taken = self._num_beside_prompts(guesses, len(decoding), num_context, prompt_token_s)
        counts = [0] * len(free)
        for _, _, index, _ in guesses[:num_taken]:
            counts[index] += 1
        for candidate, count in zip(free, counts, strict=True):
            del candidate.survival[count:]

    def _num_beside_prompts(
        self, guesses: Rows[tuple[float, int, int, int]], num_decoding: int, num_context: int, prompt_token_s: float
    ) -> int:
        """The number of guesses, surest first, that pay in a step with prompts.

        A token that holds saves its sequence a step, whose cost others would have shared. A row displaces a prompt
        token, and costs at least as much as a further row of a decode step.
        """
        costs = self._costs
        further_s = costs.further_row_s(num_decoding)
        if further_s is None:
            return 0
        token_s = (costs.seconds(num_decoding) + costs.context_s * num_context) / num_decoding
        row_s = _WORTH_BESIDE_PROMPTS * max(prompt_token_s, further_s)
        taken = [-guess[0] for guess in guesses if -guess[0] * token_s >= row_s]
        self._gain_s = sum(taken) * token_s - len(taken) * row_s
        return len(taken)

    def _num_paying(
        self, guesses: Rows[tuple[float, int, int, int]], num_decoding: int, num_fixed: int, num_context: int
    ) -> int:
        """The number of guesses, surest first, that gives the most tokens per second.

        `guesses`: minus the probability to hold, place, candidate, context.
        """
        costs = self._costs
        context_s = costs.context_s
        num_rows, expected, seconds = num_decoding + num_fixed, float(num_decoding), context_s * num_context
        plain_s = costs.seconds(num_rows)
        if not plain_s or costs.is_doubtful(num_rows):  # fixed guesses of other sequences add rows
            return 0
        is_plain = costs.last_rows == max(num_rows, 2)
        plain_s += seconds
        token_s = plain_s / expected  # if no step has guesses
        best, best_rate = 0, (1 + _LEAST_GAIN) * expected / (plain_s + self._change_s(num_rows, _RETURN))
        for number, (probability, _, _, context) in enumerate(guesses, 1):
            expected -= probability
            seconds += context_s * context
            num_rows += 1
            if num_rows > costs.most_rows:
                break
            if num_rows not in _ROWS and num_rows != costs.last_rows and number < len(guesses):
                continue  # every other number of rows has to prepare its own kernels
            change_s = self._change_s(num_rows, _LEAVE if is_plain else 1.0)
            step_s = costs.seconds(num_rows) + seconds + change_s
            if expected / step_s > best_rate:
                best, best_rate = number, expected / step_s
                self._gain_s = expected * token_s - step_s
        return best

    def _change_s(self, num_rows: int, share: float) -> float:
        costs = self._costs
        change_s = share * costs.change_s(num_rows)
        if self._config.pads_steps and num_rows < costs.last_rows:
            change_s = min(change_s, costs.seconds(costs.last_rows) - costs.seconds(num_rows))
        return max(change_s, 0.0)  # measured at different times, more rows may have taken less


def _eased(known_s: float, measured_s: float) -> float:
    more_s = measured_s - known_s
    return known_s + (_GUESSING_WEIGHT if more_s > 0 else _QUICKER_WEIGHT) * more_s


def _says_how_many(sequence: Sequence) -> bool:
    sampling = sequence.group.request.sampling
    return bool(sampling.num_assistant_tokens) or sampling.assistant_confidence_threshold is not None
