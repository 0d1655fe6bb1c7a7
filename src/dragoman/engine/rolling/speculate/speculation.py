"""Speculative decoding: lets a proposer guess tokens, which the next forward pass of the model then verifies at once.

Does: decide which sequences speculate and how far, keep proposals legal, contain a proposer's failures. Does not: guess
(`prompt_lookup`, `draft_model`), compute or verify: drafts are tokens that the scheduler plans like others, and
`update` accepts them. Called by the scheduler before it plans a step, on the engine thread only.

A proposal is certain (its proposer names one token per position), so the acceptance rule of rejection sampling, "accept
draft x with probability p(x), else draw from the rest", is the same as "draw from p and accept while the draw is the
draft". A position's random number depends on nothing but the position, so the draw is also the one that decoding without
speculation makes: the tokens are the same, for greedy and for sampled requests alike.
Source: Leviathan et al. 2023, arXiv:2211.17192, section 2.3; prompt lookup as in Saxena 2023.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence as Rows
from dataclasses import replace

from dragoman.engine.rolling.blocks.block_pools import BlockPools
from dragoman.engine.rolling.forward.runner import ModelRunner
from dragoman.engine.rolling.sequence import Sequence
from dragoman.engine.rolling.speculate.proposer import Proposer, SpeculationConfig, Wish
from dragoman.types import Limits

logger = logging.getLogger(__name__)

MAX_DRAFT_TOKENS = Limits().max_assistant_tokens  # per step, whatever a request asks for
MAX_CONFIDENT_TOKENS = 16  # per step while a confidence threshold alone decides


class Speculation:
    """Runs a proposer for the engine's sequences; without one it does nothing."""

    def __init__(self, proposer: Proposer | None, blocks: BlockPools, max_model_len: int, runner: ModelRunner) -> None:
        """`runner`: the model's, which is only asked what it is."""
        self._proposer = proposer
        self._blocks = blocks
        self._max_model_len = max_model_len
        self._vocab_size = runner.vocab_size
        self._long_context_from = runner.long_context_from

    def set_drafts(self, running: Rows[Sequence]) -> None:
        """Give drafts to those of the running sequences that speculate in the next step.

        Mutates: the sequences' drafts, and block tables if the proposer needs slots. A proposer that fails is switched
        off for good; requests go on without it.
        """
        proposer = self._proposer
        if proposer is None:
            return
        try:
            # Whoever has nothing computed begins anew, in other blocks.
            proposer.retain({sequence.sequence_id for sequence in running if sequence.num_computed_tokens})
            if len(running) > proposer.config.max_batch:
                return
            wishes = [wish for sequence in running if (wish := self._wish(sequence, proposer.config)) is not None]
            wishes = self._affordable(wishes, len(running))
            if proposer.needs_slots:
                wishes = self._with_slots(wishes)
            proposals = proposer.propose(wishes) if wishes else []
        except Exception:
            logger.exception("speculative decoding failed and is switched off; answers do not change")
            self._proposer = None
            return
        for wish, draft_ids in zip(wishes, proposals, strict=True):
            wish.sequence.set_drafts(self._legal(wish, draft_ids))

    def _wish(self, sequence: Sequence, config: SpeculationConfig) -> Wish | None:
        """What the sequence wants drafted, None if it does not speculate in this step.

        Only while decoding: everything but the last token is computed. Beams choose among each other's continuations, so
        nothing of theirs can be drafted, and a request that also scores its prompt is decoded plainly.
        """
        group, sampling = sequence.group, sequence.group.request.sampling
        if not group.is_forked or group.beams is not None or sampling.prompt_logprobs is not None:
            return None
        if not sequence.num_generated_tokens or sequence.num_tokens - sequence.num_computed_tokens != 1:
            return None
        threshold, wanted = sampling.assistant_confidence_threshold, sampling.num_assistant_tokens
        if not config.is_default and threshold is None and wanted is None and sampling.max_ngram_size is None:
            return None
        if wanted is None:
            wanted = config.num_assistant_tokens if threshold is None else MAX_CONFIDENT_TOKENS
        # The model adds one token to the accepted drafts, and that may be the last.
        num_left = group.request.max_tokens - sequence.num_generated_tokens
        limit = min(wanted, MAX_DRAFT_TOKENS, num_left - 1, self._max_model_len - sequence.num_tokens - 1)
        if self._long_context_from is not None and not sequence.is_long:  # the sequence must not outgrow its regime
            limit = min(limit, self._long_context_from - sequence.num_tokens)
        if limit < 1:
            return None
        return Wish(sequence, limit, sampling.max_ngram_size or config.max_ngram_size, threshold)

    def _affordable(self, wishes: list[Wish], num_running: int) -> list[Wish]:
        """The wishes that leave a free block for every running sequence: guesses must not cost anybody its place."""
        num_spare = self._blocks.num_free_blocks - num_running
        affordable = []
        for wish in wishes:
            num_spare -= -(-wish.max_tokens // self._blocks.block_size) + 1
            if num_spare >= 0:
                affordable.append(wish)
        return affordable

    def _with_slots(self, wishes: list[Wish]) -> list[Wish]:
        """The wishes whose slots could be had. Mutates: block tables."""
        served = []
        for wish in wishes:
            sequence = wish.sequence
            end = sequence.num_tokens + wish.max_tokens
            if self._blocks.append(sequence.sequence_id, sequence.num_computed_tokens, end):
                served.append(replace(wish, block_table=self._blocks.table(sequence.sequence_id)))
        return served

    def _legal(self, wish: Wish, draft_ids: array[int]) -> array[int]:
        """The front part of a proposal that the vocabulary, the wish and the sequence's grammar allow."""
        kept = draft_ids[: wish.max_tokens]
        for position, token_id in enumerate(kept):
            if not 0 <= token_id < self._vocab_size:
                kept = kept[:position]
                break
        masker = wish.sequence.sampler_state.masker
        if masker is None or not kept:
            return kept
        try:
            return kept[: masker.validate(kept.tolist())]
        except Exception:  # a broken grammar: sampling meets it next, and fails this request alone
            return array("q")
