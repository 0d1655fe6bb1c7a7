"""Turns logits into tokens and log-probabilities, for all rows of a step at once. On the engine thread.

A row's result never depends on the other rows: reductions over the vocabulary work on one row at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.sample.logits_processors import PROCESSORS, MaskPrefetcher, force_token, grammar_mask
from dragoman.engine.rolling.sample.sampler_state import FloatArray, IdArray, SamplerState, SamplingPlan
from dragoman.engine.rolling.sample.temperature_and_top_p import (
    FILTERS,
    Scratch,
    Survivors,
    every_token,
    for_a_gap,
    ranked,
    without_top_choices,
)
from dragoman.histogram import Histogram
from dragoman.types import LOWEST_LOGPROB, AnswerWatch, EngineRequest, Logprob, PromptLogprob, TokenMasker

UInt64Array = npt.NDArray[np.uint64]

_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_KEY_STEPS = np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)
_LOW_32 = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)
_SEED_MASK = (1 << 64) - 1


_FOR_XTC = 1  # the purpose of a random number
_LARGEST_LOGIT = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One chosen token per row, i64 [R]. `logprobs[i]` and `top_logprobs[i]` are None unless row i requests them.

    Log-probabilities are of the model's logits, or of the final distribution if row i requests it. `top_logprobs[i]`
    has the N most likely tokens, best first, of equally likely ones the lowest id first; a chosen token in it has the
    very same value.
    """

    token_ids: IdArray
    logprobs: list[float | None]
    top_logprobs: list[list[Logprob] | None]


class Sampler:
    """Chooses the next token of every row. The order, for each row:

    1. repetition penalty   2. frequency penalty   3. presence penalty   4. DRY
    5. logit bias           6. allowed tokens      7. bad words          8. minimum length      9. grammar,
       then the end of reasoning
    10. temperature (0 = take the most likely token, the lowest id of equals; steps 11 to 18 do not apply)
    11. top-n sigma         12. top-k              13. top-p             14. min-p             15. locally typical
    16. what fills a gap    17. XTC                18. one draw from what is left

    Penalties see the model's own logits, the bias has the last word among the scores, and masks come after everything
    that adds: no bias lifts a ban. If the masks leave nothing, the sequence may only end: its end-of-sequence tokens
    (without any, its stop tokens) become the only candidates, even before `min_tokens`, equally likely; a request
    with neither goes on with the untouched logits. NaN logits count as -inf. A token that has to come, because reasoning is
    ended, comes whatever else is masked.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._scratch = Scratch(vocab_size)
        self._masks = MaskPrefetcher(vocab_size)
        self._has_grammars = False
        self._processors = (*PROCESSORS.values(), grammar_mask(self._masks))

    def new_state(
        self,
        request: EngineRequest,
        sequence_index: int,
        masker: TokenMasker | None = None,
        watch: AnswerWatch | None = None,
    ) -> SamplerState:
        state = SamplerState(
            SamplingPlan.from_request(request, self.vocab_size), request, sequence_index, masker, watch
        )
        self._has_grammars |= masker is not None  # once one state has it, every step checks for more
        for bit, processor in enumerate(self._processors):
            if processor.is_needed(state):
                state.active |= 1 << bit
        return state

    def prefetch(self, states: Sequence[SamplerState]) -> None:
        """Start computing the grammars' masks for these very states, which must not change during the forward pass."""
        if self._has_grammars:
            self._masks.start(states)

    @property
    def mask_wait_s(self) -> Histogram:
        return self._masks.wait_s

    def close(self) -> None:
        self._masks.close()

    def sample(self, logits: FloatArray, states: Sequence[SamplerState]) -> Sampled:
        """The next token of every row; the caller observes it. Shapes: logits [R, V], C-contiguous. Mutates: logits."""
        untouched = self._keep_rows(logits, states)
        with np.errstate(over="ignore"):  # quotients beyond float32 become -inf, as intended
            self._apply_processors(logits, states)
            token_ids, maxima = self._most_likely(logits, states, untouched)
            drawn = self._draw(logits, states, maxima, token_ids)
        return self._report(logits, untouched, states, token_ids, drawn)

    def process(self, logits: FloatArray, states: Sequence[SamplerState]) -> FloatArray:
        """Log-probabilities [R, V] after steps 1 to 9, for beam search; masked tokens have -inf. Mutates: logits."""
        untouched = self._keep_rows(logits, states)
        with np.errstate(over="ignore"):
            self._apply_processors(logits, states)
            _, maxima = self._most_likely(logits, states, untouched)
            for row, maximum in zip(logits, maxima, strict=True):
                np.subtract(row, maximum, out=row)
                np.subtract(row, np.float32(_log_total(row, self._scratch)), out=row)
        return logits

    def prompt_logprobs(self, logits: FloatArray, target_ids: Sequence[int], top_n: int) -> list[PromptLogprob]:
        """The raw log-probability of each row's target, and the top list. Shapes: logits [k, V], target_ids [k]."""
        reported = []
        for row, target_id in zip(logits, target_ids, strict=True):
            raw = RawLogprobs(row, self._scratch)
            reported.append(PromptLogprob(raw.of(target_id), tuple(raw.top(top_n)), raw.rank(target_id)))
        return reported

    def raw_logprobs(self, logits_row: FloatArray) -> RawLogprobs:
        return RawLogprobs(logits_row, self._scratch)

    # --- steps ---

    def _keep_rows(self, logits: FloatArray, states: Sequence[SamplerState]) -> dict[int, FloatArray]:
        assert logits.shape == (len(states), self.vocab_size)
        assert logits.flags.c_contiguous  # the processors write through a flat view
        return {
            row: logits[row].copy()
            for row, state in enumerate(states)
            if (state.active or state.forced_id is not None)
            and (state.plan.params.logprobs is not None or state.plan.rescue_ids.size == 0)
        }

    def _apply_processors(self, logits: FloatArray, states: Sequence[SamplerState]) -> None:
        active = 0
        for state in states:
            active |= state.active
        for bit, processor in enumerate(self._processors):
            if active >> bit & 1:
                rows = [row for row, state in enumerate(states) if state.active >> bit & 1]
                processor.apply(logits, rows, [states[row] for row in rows])
        for row, state in enumerate(states):
            if (token_id := state.forced_id) is not None:
                force_token(logits[row], token_id)

    def _most_likely(
        self, logits: FloatArray, states: Sequence[SamplerState], untouched: dict[int, FloatArray]
    ) -> tuple[IdArray, FloatArray]:
        """The largest logit of every row and its token. Mutates: rows without a usable logit, which are repaired."""
        token_ids = logits.argmax(axis=1)
        maxima = logits[np.arange(len(states)), token_ids]
        for row in np.flatnonzero(~np.isfinite(maxima)).tolist():
            _repair(logits[row], states[row], untouched.get(row))
            token_ids[row] = logits[row].argmax()
            maxima[row] = logits[row, token_ids[row]]
        return token_ids, maxima

    def _draw(
        self, logits: FloatArray, states: Sequence[SamplerState], maxima: FloatArray, token_ids: IdArray
    ) -> dict[int, _Drawn]:
        """Replace the most likely token in every row that samples; returns the final distributions that rows request."""
        told: dict[int, _Drawn] = {}
        rows = [row for row, state in enumerate(states) if not state.is_greedy]
        if not rows:
            return told
        drawn = [states[row] for row in rows]
        numbers = _numbers(drawn).tolist()
        for row, state, number, is_excluding in zip(rows, drawn, numbers, _excluding(drawn), strict=True):
            survivors = self._survivors(logits[row], maxima[row], state)
            if is_excluding:
                survivors = without_top_choices(survivors, state.plan.params.xtc_threshold, state.plan.ending_ids)
            token_ids[row] = survivors.draw(number)
            params = state.plan.params
            if params.post_sampling_probs and params.logprobs is not None:
                told[row] = _drawn_from(survivors, int(token_ids[row]), params.logprobs)
        return told

    def _survivors(self, logits_row: FloatArray, maximum: np.float32, state: SamplerState) -> Survivors:
        params = state.plan.params
        survivors = every_token(logits_row, maximum, params.temperature, self._scratch)
        for logits_filter in FILTERS.values():
            if logits_filter.is_needed(params):
                survivors = logits_filter.apply(survivors, params)
        return self._for_a_gap(logits_row, maximum, state, survivors) if params.infill else survivors

    def _for_a_gap(
        self, logits_row: FloatArray, maximum: np.float32, state: SamplerState, survivors: Survivors
    ) -> Survivors:
        """If no candidate is likely, the end, or the likeliest token if the end is banned."""
        narrowed = for_a_gap(survivors, state.plan.ending_ids)
        if narrowed is not None:
            return narrowed
        ends = [token_id for token_id in state.plan.ending_ids.tolist() if logits_row[token_id] > -np.inf]
        if not ends:
            return survivors.keep(ranked(survivors.weights, 1))
        best = max(ends, key=lambda token_id: logits_row[token_id])
        every = every_token(logits_row, maximum, state.plan.params.temperature, self._scratch)
        return every.keep(np.array([best], dtype=np.intp))

    def _report(
        self,
        logits: FloatArray,
        untouched: dict[int, FloatArray],
        states: Sequence[SamplerState],
        token_ids: IdArray,
        drawn: Mapping[int, _Drawn],
    ) -> Sampled:
        logprobs: list[float | None] = [None] * len(states)
        top_logprobs: list[list[Logprob] | None] = [None] * len(states)
        for row, state in enumerate(states):
            top_n = state.plan.params.logprobs
            if top_n is not None and state.plan.params.post_sampling_probs:
                token_id = int(token_ids[row])  # a greedy row has no other choice
                row_drawn = drawn.get(row) or _Drawn(0.0, [Logprob(token_id, 0.0)][:top_n])
                logprobs[row], top_logprobs[row] = row_drawn
            elif top_n is not None:
                raw = RawLogprobs(untouched.get(row, logits[row]), self._scratch)
                logprobs[row] = raw.of(int(token_ids[row]))
                top_logprobs[row] = raw.top(top_n)
        return Sampled(token_ids, logprobs, top_logprobs)


class _Drawn(NamedTuple):
    logprob: float
    top: list[Logprob]


def _drawn_from(survivors: Survivors, token_id: int, top_n: int) -> _Drawn:
    """The candidates of a draw; read at once, as the survivors' buffers are reused."""
    weights, ids, offset = survivors.weights, survivors.ids, math.log(survivors.total)
    index = token_id if ids is None else int(np.searchsorted(ids, token_id))
    best = [place for place in ranked(weights, top_n).tolist() if weights[place] > 0.0]
    top = [
        Logprob(place if ids is None else int(ids[place]), math.log(float(weights[place])) - offset) for place in best
    ]
    return _Drawn(math.log(float(weights[index])) - offset, top)


def _numbers(states: Sequence[SamplerState], purpose: int = 0) -> npt.NDArray[np.float64]:
    return uniforms(
        [state.plan.seed for state in states],
        [state.sequence_index for state in states],
        [state.num_generated for state in states],
        purpose,
    )


def _excluding(states: Sequence[SamplerState]) -> list[bool]:
    chances = np.array([state.plan.params.xtc_probability for state in states])
    if not chances.any():
        return [False] * len(states)
    taking: list[bool] = (_numbers(states, _FOR_XTC) < chances).tolist()
    return taking


class RawLogprobs:
    """Log-probabilities of one row, by one formula, so that equal tokens have equal values."""

    def __init__(self, logits_row: FloatArray, scratch: Scratch) -> None:
        maximum = logits_row.max()
        if not np.isfinite(maximum):
            logits_row = _finite(logits_row)
            maximum = logits_row.max()
        self._logits = logits_row
        with np.errstate(over="ignore"):
            scores = np.subtract(logits_row, maximum, out=scratch.scores[: logits_row.size])
            self._offset = float(maximum) + _log_total(scores, scratch)

    def of(self, token_id: int) -> float:
        """Not below LOWEST_LOGPROB."""
        return max(float(self._logits[token_id]) - self._offset, LOWEST_LOGPROB)

    def rank(self, token_id: int) -> int:
        return 1 + int(np.count_nonzero(self._logits > self._logits[token_id]))

    def top(self, num_tokens: int) -> list[Logprob]:
        return [Logprob(token_id, self.of(token_id)) for token_id in ranked(self._logits, num_tokens).tolist()]


def _log_total(scores: FloatArray, scratch: Scratch) -> float:
    """log(sum(exp(scores))) of one row whose largest score is 0."""
    weights = np.exp(scores, out=scratch.weights[: scores.size])
    return math.log(float(np.add.reduce(weights)))


def _cleaned(logits_row: FloatArray) -> FloatArray:
    return np.nan_to_num(logits_row, nan=-np.inf, posinf=_LARGEST_LOGIT, neginf=-np.inf)


def _finite(logits_row: FloatArray) -> FloatArray:
    """The cleaned row, or all zeros (equally likely) if no token is left."""
    row = _cleaned(logits_row)
    return row if row.max() > -np.inf else np.zeros_like(row)


def _repair(logits_row: FloatArray, state: SamplerState, untouched: FloatArray | None) -> None:
    cleaned = _cleaned(logits_row)
    if cleaned.max() > -np.inf:
        logits_row[:] = cleaned
    elif state.plan.rescue_ids.size:
        logits_row[:] = -np.inf
        logits_row[state.plan.rescue_ids] = 0.0
    else:
        logits_row[:] = _finite(logits_row if untouched is None else untouched)


# --- random numbers ---------------------------------------------------------------------------------------------------


def philox4x32(counters: UInt64Array, keys: UInt64Array) -> UInt64Array:
    """Four random 32-bit words per row, in 64-bit integers. Shapes: counters [4, R], keys [2, R]; returns [4, R].

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3: Philox4x32-10.
    """
    rounds = np.arange(_ROUNDS, dtype=np.uint64)[:, None, None]
    schedule = (keys[None] + rounds * _KEY_STEPS[None, :, None]) & _LOW_32  # [rounds, 2, R]
    even, odd = counters[0::2], counters[1::2]
    for round_keys in schedule:
        product = even * _MULTIPLIERS
        # [::-1]: each half is mixed with the product of the other half
        even = (product >> _SHIFT_32)[::-1] ^ odd ^ round_keys
        odd = (product & _LOW_32)[::-1]
    return np.stack([even[0], odd[0], even[1], odd[1]])


def uniforms(
    seeds: Sequence[int], sequence_indices: Sequence[int], positions: Sequence[int], purpose: int = 0
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) per row, with 53 random bits. Seeds are taken modulo 2**64.

    By a counter instead of a state: preemption and other requests of a batch cannot change the numbers.
    `positions` count generated tokens. Numbers for different purposes are independent.
    """
    keys = np.array([seed & _SEED_MASK for seed in seeds], dtype=np.uint64)
    counters = np.zeros((4, len(seeds)), dtype=np.uint64)
    counters[0], counters[1], counters[2] = positions, purpose, sequence_indices
    words = philox4x32(counters, np.stack([keys & _LOW_32, keys >> _SHIFT_32]))
    high, low = words[0] >> np.uint64(5), words[1] >> np.uint64(6)
    numbers: npt.NDArray[np.float64] = (high * np.float64(1 << 26) + low) * np.float64(2.0**-53)
    return numbers
