"""A draft model: a smaller model guesses greedily how sequences go on, token by token. On the engine thread only.

Its cache uses the block tables of the model's layers without windows, with equally many blocks. The draft's progress is
known per sequence, and for full blocks by the hash of their whole prefix. So later requests reuse its blocks as they
reuse the model's. The draft does not copy shared blocks, but computes their tokens for each sibling.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.forward.runner import ForwardBatch, ModelRunner
from dragoman.engine.rolling.speculate.proposer import NUM_STRENGTHS, Basis, Proposal, Proposer, Wish, evidence

# Tokens computed per step to catch up with a sequence; longer prompts take several steps, without drafts.
_MAX_CATCH_UP_TOKENS = 512
_MAX_ROW_TOKENS = 32  # a sequence that is further behind catches up in a separate forward

FloatArray = npt.NDArray[np.float32]


@dataclass(slots=True)
class _Progress:
    """The draft's progress in one sequence: the first `num_computed` positions are in its cache.

    `draft_ids` were guessed after `num_base` tokens. Other sequences may share blocks with positions before
    `num_shared`.
    """

    num_computed: int
    num_shared: int
    num_base: int = 0
    draft_ids: array[int] = field(default_factory=lambda: array("q"))
    evidence: list[int] = field(default_factory=list)  # of each token

    def take_back(self, token_ids: array[int]) -> None:
        """Forget the computation of rejected drafts, and always of the last token, whose logits are needed."""
        num_held = 0
        for draft_id, token_id in zip(self.draft_ids, token_ids[self.num_base :], strict=False):
            if draft_id != token_id:
                break
            num_held += 1
        self.num_computed = min(self.num_computed, self.num_base + num_held, len(token_ids) - 1)


@dataclass(slots=True)
class _Row:
    wish: Wish
    token_ids: array[int]
    begin: int


class DraftModelProposer(Proposer):
    """Proposes the most likely tokens by `runner`'s model. Owns the runner: `close` closes it."""

    needs_slots = True

    def __init__(self, runner: ModelRunner, target: ModelRunner) -> None:
        """Raises: ValueError if vocabulary or blocks differ from `target`'s, or if all of its layers have windows."""
        for name in ("vocab_size", "block_size"):
            value, other = getattr(runner, name), getattr(target, name)
            if value != other:
                raise ValueError(f"{name} of the draft model is {value}, must be {other}, the model's value")
        full = target.pools[0]
        if full.window:
            raise ValueError(
                f"all layers of the model have windows (of {full.window} tokens): it cannot use a draft model"
            )
        for pool in runner.pools:
            if pool.num_blocks != full.num_blocks:
                raise ValueError(
                    f"num_blocks of the draft model is {pool.num_blocks}, must be {full.num_blocks}, the model's value"
                )
        self._runner = runner
        # It would have to start again beyond a boundary of its own; guesses are not worth that.
        boundary = runner.long_context_from
        self._longest = runner.max_model_len if boundary is None else min(runner.max_model_len, boundary)
        self._progress: dict[int, _Progress] = {}
        self._content: list[bytes | None] = [None] * full.num_blocks  # by block: the prefix that a full block completes

    def propose(self, wishes: Rows[Wish]) -> list[Proposal]:
        """While the draft is still computing a sequence's prompt, the sequence gets no drafts."""
        budget = _MAX_CATCH_UP_TOKENS
        rows = []
        for wish in wishes:
            progress = self._progress_of(wish)
            budget -= self._catch_up(wish, progress, budget)
            token_ids = wish.sequence.token_ids[progress.num_computed :]
            if self._limit(wish) and self._is_level(wish, progress):
                rows.append(_Row(wish, token_ids, progress.num_computed))
        self._guess(rows)
        found = [self._progress[wish.sequence.sequence_id] for wish in wishes]
        return [Proposal(progress.draft_ids, progress.evidence) for progress in found]

    def retain(self, sequence_ids: Collection[int]) -> None:
        """Forget all other sequences, but not the content of full blocks."""
        for sequence_id in [key for key in self._progress if key not in sequence_ids]:
            del self._progress[sequence_id]

    def close(self) -> None:
        self._runner.close()

    # --- getting level ------------------------------------------------------------------------------------------------

    def _progress_of(self, wish: Wish) -> _Progress:
        """The sequence's progress without rejected drafts; a new one starts from the draft's cached blocks."""
        sequence = wish.sequence
        progress = self._progress.get(sequence.sequence_id)
        if progress is None:
            num_shared = sequence.num_tokens - 1  # computed by the model so far, for any sequence
            progress = _Progress(self._num_cached(wish, num_shared), num_shared)
            self._progress[sequence.sequence_id] = progress
        else:
            progress.take_back(sequence.token_ids)
        progress.num_base, progress.draft_ids, progress.evidence = sequence.num_tokens, array("q"), []
        return progress

    def _num_cached(self, wish: Wish, num_tokens: int) -> int:
        sequence, table, size = wish.sequence, wish.block_table, self._runner.block_size
        num_full = num_tokens // size
        sequence.extend_digests(size, num_full)
        for index in range(num_full):
            if self._content[table[index]] != sequence.digests[index]:
                return index * size
        return num_full * size

    def _catch_up(self, wish: Wish, progress: _Progress, budget: int) -> int:
        """Compute at most `budget` tokens far behind, or in shared blocks; returns their number.

        In a separate forward, as two rows of one forward may not write to the same block.
        """
        sequence = wish.sequence
        if self._is_level(wish, progress):
            return 0
        end = min(sequence.num_tokens - 1, progress.num_computed + budget, self._longest)
        if end <= progress.num_computed:
            return 0
        num_new = end - progress.num_computed
        self._forward([_Row(wish, sequence.token_ids[progress.num_computed : end], progress.num_computed)], False)
        return num_new

    @staticmethod
    def _is_level(wish: Wish, progress: _Progress) -> bool:
        is_near = wish.sequence.num_tokens - progress.num_computed <= _MAX_ROW_TOKENS
        return is_near and progress.num_computed >= progress.num_shared

    def _limit(self, wish: Wish) -> int:
        """All drafts but the last must fit the draft's own context."""
        return max(min(wish.max_tokens, self._longest - wish.sequence.num_tokens + 1), 0)

    # --- guessing -----------------------------------------------------------------------------------------------------

    def _guess(self, rows: list[_Row]) -> None:
        """One forward per token, until each row has enough guesses or too little confidence."""
        while rows:
            logits = self._forward(rows, True)
            token_ids = logits.argmax(axis=1).tolist()
            following = []
            for row, token_id, row_logits in zip(rows, token_ids, logits, strict=True):
                progress = self._progress[row.wish.sequence.sequence_id]
                threshold, probability = row.wish.min_confidence, _probability(row_logits, token_id)
                if threshold is not None and probability < threshold:
                    continue
                progress.draft_ids.append(token_id)
                progress.evidence.append(evidence(Basis.DRAFT_MODEL, int(probability * (NUM_STRENGTHS - 1))))
                if len(progress.draft_ids) < self._limit(row.wish):
                    following.append(_Row(row.wish, array("q", [token_id]), progress.num_computed))
            rows = following

    def _forward(self, rows: Rows[_Row], wants_logits: bool) -> FloatArray:
        """Logits [R, V] after each row's last token, [0, V] if not needed."""
        logits = self._runner.forward(_pack(rows, self._runner.block_size, wants_logits))
        for row in rows:
            self._note(row)
        return logits

    def _note(self, row: _Row) -> None:
        """Record the content of a row's blocks. Blocks with guesses must not be found as a prefix."""
        sequence, table, size = row.wish.sequence, row.wish.block_table, self._runner.block_size
        end = row.begin + len(row.token_ids)
        self._progress[sequence.sequence_id].num_computed = end
        num_full = min(end, sequence.num_tokens) // size
        sequence.extend_digests(size, num_full)
        for index in range(row.begin // size, -(-end // size)):
            self._content[table[index]] = sequence.digests[index] if index < num_full else None


def _probability(logits: FloatArray, token_id: int) -> float:
    return 1.0 / float(np.exp(logits - logits[token_id]).sum())


def _pack(rows: Rows[_Row], block_size: int, wants_logits: bool) -> ForwardBatch:
    lens = [len(row.token_ids) for row in rows]
    ends = [row.begin + length for row, length in zip(rows, lens, strict=True)]
    cut = [row.wish.block_table[: -(-end // block_size)] for row, end in zip(rows, ends, strict=True)]
    token_begins = np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)
    return ForwardBatch(
        input_ids=np.concatenate([np.array(row.token_ids, dtype=np.int64) for row in rows]),
        position_ids=np.concatenate([np.arange(row.begin, end) for row, end in zip(rows, ends, strict=True)]),
        past_lens=np.array([row.begin for row in rows], dtype=np.int32),
        subsequence_begins=token_begins,
        block_indices=np.concatenate([np.array(table, dtype=np.int32) for table in cut]),
        block_indices_begins=np.concatenate([[0], np.cumsum([len(table) for table in cut])]).astype(np.int32),
        logit_indices=(token_begins[1:] - 1).astype(np.int64) if wants_logits else np.zeros(0, dtype=np.int64),
        max_context_len=max(ends),
    )
