"""Processors that change logits in place: penalties, DRY, bias and masks. Called by the sampler on the engine thread.

A processor gets only the rows that use it, so an unused one costs nothing. Grammars' masks are computed during the
forward pass, on a worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import perf_counter
from typing import NamedTuple

import numpy as np

from dragoman.engine.rolling.sample.sampler_state import FloatArray, IdArray, SamplerState, TokenCounts
from dragoman.engine.rolling.sample.temperature_and_top_p import keep_only
from dragoman.grammar.bitmask import MaskWords, ids_of
from dragoman.histogram import SECONDS, Histogram
from dragoman.types import TokenMasker

NEG_INF = np.float32(-np.inf)
_NO_IDS = np.zeros(0, dtype=np.int64)
_LARGEST_PENALTY = 1e30  # of DRY; with a greater one no token might be left
_FEW_WORDS = 32  # of a mask that allows any token


class LogitsProcessor(NamedTuple):
    """One edit of the logits [R, V], C-contiguous: `apply` edits `logits[rows[i]]` according to `states[i]`."""

    is_needed: Callable[[SamplerState], bool]
    apply: Callable[[FloatArray, Sequence[int], Sequence[SamplerState]], None]


def _locate(logits: FloatArray, rows: Sequence[int], ids: Sequence[IdArray]) -> tuple[FloatArray, IdArray, IdArray]:
    """The logits as one flat view, the place of every id of every row in it, and the number of ids per row."""
    sizes = np.array([row_ids.size for row_ids in ids], dtype=np.int64)
    places = np.repeat(np.asarray(rows, dtype=np.int64) * logits.shape[1], sizes)
    places += np.concatenate(ids)
    return logits.reshape(-1), places, sizes


def _per_id(values: Sequence[float], sizes: IdArray) -> FloatArray:
    return np.repeat(np.array(values, dtype=np.float32), sizes)


def _counts(state: SamplerState) -> TokenCounts:
    assert state.counts is not None  # kept whenever a penalty is used
    return state.counts


def _ban(logits: FloatArray, rows: Sequence[int], ids: Sequence[IdArray]) -> None:
    flat, places, _ = _locate(logits, rows, ids)
    flat[places] = NEG_INF


def _repetition_penalty(logits: FloatArray, rows: Sequence[int], states: Sequence[SamplerState]) -> None:
    """Source: CTRL, arXiv:1909.05858, section 4.1, with the usual treatment of negative logits."""
    flat, places, sizes = _locate(logits, rows, [_counts(state).ids for state in states])
    # Bounded so that f32 logits stay finite: infinite ones would have no order.
    factors = [min(max(state.plan.params.repetition_penalty, 1e-30), 1e30) for state in states]
    penalties = _per_id(factors, sizes)
    values = flat[places]
    flat[places] = np.where(values > 0, values / penalties, values * penalties)


def _frequency_penalty(logits: FloatArray, rows: Sequence[int], states: Sequence[SamplerState]) -> None:
    """Source: OpenAI API reference, frequency_penalty."""
    flat, places, sizes = _locate(logits, rows, [_counts(state).ids for state in states])
    counts = np.concatenate([_counts(state).counts for state in states])
    flat[places] -= counts * _per_id([s.plan.params.frequency_penalty for s in states], sizes)


def _presence_penalty(logits: FloatArray, rows: Sequence[int], states: Sequence[SamplerState]) -> None:
    """Source: OpenAI API reference, presence_penalty."""
    counts = [_counts(state) for state in states]
    generated = [row.ids[row.counts > 0] for row in counts]
    flat, places, sizes = _locate(logits, rows, generated)
    flat[places] -= _per_id([s.plan.params.presence_penalty for s in states], sizes)


def _dry(logits: FloatArray, rows: Sequence[int], states: Sequence[SamplerState]) -> None:
    """Source: DRY, text-generation-webui's pull request 5677: multiplier * base ** (length - allowed length)."""
    for row, state in zip(rows, states, strict=True):
        assert state.repeats is not None  # `is_needed`
        params = state.plan.params
        ids, lengths = state.repeats.continued(params.dry_allowed_length)
        if ids.size:
            exponents = (lengths - params.dry_allowed_length).astype(np.float64)
            with np.errstate(over="ignore"):
                penalties = np.minimum(params.dry_multiplier * params.dry_base**exponents, _LARGEST_PENALTY)
            # Of a token's penalties the last applies, which is the largest.
            logits[row, ids] = logits[row, ids] - penalties.astype(np.float32)


def _logit_bias(logits: FloatArray, rows: Sequence[int], states: Sequence[SamplerState]) -> None:
    flat, places, _ = _locate(logits, rows, [state.plan.bias_ids for state in states])
    flat[places] += np.concatenate([state.plan.bias_values for state in states])


def _allowed_tokens(logits: FloatArray, rows: Sequence[int], states: Sequence[SamplerState]) -> None:
    for row, state in zip(rows, states, strict=True):
        allowed = state.plan.allowed_ids
        kept = logits[row, allowed]
        logits[row] = NEG_INF
        logits[row, allowed] = kept


def _bad_words(logits: FloatArray, rows: Sequence[int], states: Sequence[SamplerState]) -> None:
    """Masks the token that would complete a forbidden token sequence, which may have begun in the prompt."""
    _ban(logits, rows, [state.plan.bad_words.single_ids for state in states])
    completing = [np.array(s.plan.bad_words.completing_ids(s.history), dtype=np.int64) for s in states]
    _ban(logits, rows, completing)


def _min_tokens(logits: FloatArray, rows: Sequence[int], states: Sequence[SamplerState]) -> None:
    too_short = [s.num_generated < s.plan.params.min_tokens for s in states]
    _ban(logits, rows, [s.plan.ending_ids if short else _NO_IDS for s, short in zip(states, too_short, strict=True)])


PROCESSORS: Mapping[str, LogitsProcessor] = {
    "repetition_penalty": LogitsProcessor(
        lambda state: state.plan.params.repetition_penalty != 1.0, _repetition_penalty
    ),
    "frequency_penalty": LogitsProcessor(lambda state: state.plan.params.frequency_penalty != 0.0, _frequency_penalty),
    "presence_penalty": LogitsProcessor(lambda state: state.plan.params.presence_penalty != 0.0, _presence_penalty),
    "dry": LogitsProcessor(lambda state: state.repeats is not None, _dry),
    "logit_bias": LogitsProcessor(lambda state: state.plan.bias_ids.size > 0, _logit_bias),
    "allowed_tokens": LogitsProcessor(lambda state: state.plan.allowed_ids is not None, _allowed_tokens),
    "bad_words": LogitsProcessor(
        lambda state: state.plan.bad_words.single_ids.size > 0 or state.plan.bad_words.max_context > 0, _bad_words
    ),
    "min_tokens": LogitsProcessor(
        lambda state: state.plan.params.min_tokens > 0 and state.plan.ending_ids.size > 0, _min_tokens
    ),
}
"""The processors in the order they are applied; a grammar's mask follows."""


# --- grammars' masks --------------------------------------------------------------------------------------------------


def compute_masks(masker: TokenMasker, ids_ahead: Sequence[int], vocab_size: int) -> MaskWords:
    """The tokens a grammar allows next, and after each of these tokens, as bits [1 + len(ids), ceil(V / 32)]."""
    words = np.zeros((1 + len(ids_ahead), -(-vocab_size // 32)), dtype="<u4")
    if ids_ahead:
        masker.fill_masks(words, ids_ahead)
    else:
        masker.fill_mask(words[0])
    return words


class MaskPrefetcher:
    """The masks for the next sampling. `wait_s`: seconds that sampling waited for each mask.

    Between `start` and `take` only the worker uses a state's grammar: no tokens are appended during a forward. The
    states after a sequence's guesses share one grammar state: copying it for each takes longer with the answer's length.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._worker: ThreadPoolExecutor | None = None
        self._pending: dict[int, Future[MaskWords]] = {}  # by the state's identity
        self.wait_s = Histogram(SECONDS)

    def start(self, states: Sequence[SamplerState]) -> None:
        """Start computing the masks; drops those of a failed step. States ahead of another one follow it, in order."""
        if self._pending:
            wait(set(self._pending.values()))
            self._pending.clear()
        run: list[SamplerState] = []
        for state in states:
            if run and not state.ids_ahead:
                self._submit(run)
                run = []
            if state.masker is not None:
                run.append(state)
        if run:
            self._submit(run)

    def take(self, state: SamplerState) -> MaskWords:
        """The state's mask [ceil(V / 32)]: the prefetched one, or computed now. Raises: its grammar's errors."""
        begin_s = perf_counter()
        prepared = self._pending.pop(id(state), None)
        if prepared is not None:
            masks = prepared.result()
        else:
            assert state.masker is not None
            masks = compute_masks(state.masker, state.ids_ahead, self._vocab_size)
        self.wait_s.add(perf_counter() - begin_s)
        mask: MaskWords = masks[len(state.ids_ahead)]
        return mask

    def close(self) -> None:
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)
            self._worker = None

    def _submit(self, run: Sequence[SamplerState]) -> None:
        self._worker = self._worker or ThreadPoolExecutor(1, thread_name_prefix="dragoman-masks")
        last = run[-1]
        assert last.masker is not None
        masks = self._worker.submit(compute_masks, last.masker, last.ids_ahead, self._vocab_size)
        self._pending.update(dict.fromkeys(map(id, run), masks))


def grammar_mask(prefetcher: MaskPrefetcher) -> LogitsProcessor:
    """Masks every token that the request's grammar does not allow next."""

    def apply(logits: FloatArray, rows: Sequence[int], states: Sequence[SamplerState]) -> None:
        vocab_size = logits.shape[1]
        for row, state in zip(rows, states, strict=True):
            words = prefetcher.take(state)
            few_ids = ids_of(words, _FEW_WORDS)
            if few_ids is None:
                keep_only(logits[row], np.unpackbits(words.view(np.uint8), count=vocab_size, bitorder="little"))
                continue
            # The punctuation and names of a schema allow few tokens; that takes half the time.
            few_ids = few_ids[few_ids < vocab_size]
            kept = logits[row, few_ids]
            logits[row] = NEG_INF
            logits[row, few_ids] = kept

    return LogitsProcessor(lambda state: state.masker is not None, apply)


def force_token(logits_row: FloatArray, token_id: int) -> None:
    logits_row[:] = NEG_INF
    logits_row[token_id] = 0.0
