"""The sampler's state of one sequence. Made by `Sampler.new_state`, used on the engine thread only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dragoman.types import AnswerWatch, EngineRequest, SamplingParams, SequenceBreaker, TokenMasker

IdArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

_SPARE = 256  # spare tokens whenever the array grows


class BadWords:
    """The token sequences a request forbids, indexed by the token before their last one. Immutable."""

    def __init__(self, words: Iterable[Sequence[int]], vocab_size: int) -> None:
        known = [tuple(word) for word in words if word and all(0 <= token_id < vocab_size for token_id in word)]
        self.single_ids: IdArray = np.array(sorted({word[0] for word in known if len(word) == 1}), dtype=np.int64)
        self.max_context = max((len(word) - 1 for word in known), default=0)
        self._by_last: dict[int, list[tuple[list[int], int]]] = {}
        for word in known:
            if len(word) > 1:
                self._by_last.setdefault(word[-2], []).append((list(word[:-1]), word[-1]))

    def completing_ids(self, history: list[int] | None) -> list[int]:
        if not history:
            return []
        candidates = self._by_last.get(history[-1], ())
        return [last for context, last in candidates if history[-len(context) :] == context]


class TokenCounts:
    """Tokens that occurred [n], and how often they were generated [n]; those of the prompt with count 0."""

    def __init__(self, prompt_ids: IdArray) -> None:
        self._slots = {token_id: slot for slot, token_id in enumerate(prompt_ids.tolist())}
        self._ids: IdArray = np.concatenate([prompt_ids, np.zeros(64, dtype=np.int64)])
        self._counts: FloatArray = np.zeros(self._ids.size, dtype=np.float32)

    @property
    def ids(self) -> IdArray:
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> FloatArray:
        return self._counts[: len(self._slots)]

    def add(self, token_id: int) -> None:
        slot = self._slots.get(token_id)
        if slot is None:
            slot = len(self._slots)
            if slot == self._ids.size:
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._slots[token_id] = slot
            self._ids[slot] = token_id
        self._counts[slot] += 1

    def copy(self) -> TokenCounts:
        other = TokenCounts.__new__(TokenCounts)
        other._slots = dict(self._slots)
        other._ids, other._counts = self._ids.copy(), self._counts.copy()
        return other


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """A request's sampling parameters in array form, shared by its sequences. Ids outside the vocabulary are dropped.

    `ending_ids`: end-of-sequence and stop tokens, banned until `min_tokens`. `rescue_ids`: the allowed tokens if every
    token is masked. `prompt_ids`: the prompt's distinct tokens, if a penalty needs them.
    """

    params: SamplingParams
    seed: int
    bad_words: BadWords
    bias_ids: IdArray
    bias_values: FloatArray
    allowed_ids: IdArray | None
    ending_ids: IdArray
    rescue_ids: IdArray
    prompt_ids: IdArray

    @classmethod
    def from_request(cls, request: EngineRequest, vocab_size: int) -> SamplingPlan:
        params = request.sampling

        def known(ids: Iterable[int]) -> IdArray:
            return np.array(sorted({i for i in ids if 0 <= i < vocab_size}), dtype=np.int64)

        eos_ids, stop_ids = known(request.eos_token_ids), known(params.stop_token_ids)
        bias_ids = known(params.logit_bias)
        return cls(
            params=params,
            seed=request.seed,
            bad_words=BadWords(request.bad_word_ids, vocab_size),
            bias_ids=bias_ids,
            bias_values=_in_f32([params.logit_bias[int(i)] for i in bias_ids]),
            allowed_ids=None if params.allowed_token_ids is None else known(params.allowed_token_ids),
            ending_ids=np.union1d(eos_ids, stop_ids),
            rescue_ids=eos_ids if eos_ids.size else stop_ids,
            prompt_ids=known(request.prompt_ids if params.repetition_penalty != 1.0 else ()),
        )

    @property
    def counts_tokens(self) -> bool:
        params = self.params
        return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def _in_f32(biases: Sequence[float]) -> FloatArray:
    """The biases as f32. One that is finite stays so, because an infinite one bans its token, or has no order."""
    values = np.array(biases, dtype=np.float64)
    largest = np.finfo(np.float32).max
    return np.where(np.isinf(values), values, values.clip(-largest, largest)).astype(np.float32)


class SamplerState:
    """The sampler's state of one sequence. `active` is a bit set over the sampler's processors.

    `history`: the tokens to search for bad words, including the prompt's end. `ids_ahead`: tokens after the state whose
    grammar state is shared. `watch`: of its reasoning and repetitions; None = not needed any more.
    """

    __slots__ = (
        "active", "counts", "history", "ids_ahead", "masker", "num_generated", "plan", "repeats", "sequence_index",
        "watch",
    )  # fmt: skip

    def __init__(
        self,
        plan: SamplingPlan,
        request: EngineRequest,
        sequence_index: int,
        masker: TokenMasker | None = None,
        watch: AnswerWatch | None = None,
    ) -> None:
        self.plan = plan
        self.sequence_index = sequence_index
        self.active = 0
        self.num_generated = 0
        tail = plan.bad_words.max_context
        self.history = list(request.prompt_ids[-tail:]) if tail else None  # bad words may begin in the prompt
        self.counts = TokenCounts(plan.prompt_ids) if plan.counts_tokens else None
        self.repeats: TokenRepeats | None = None
        if plan.params.has_dry:
            breakers = Breakers(request.dry_breakers)
            self.repeats = TokenRepeats(request.prompt_ids, plan.params.dry_penalty_last_n, breakers)
        self.masker: TokenMasker | None = masker.fork() if masker is not None else None
        self.ids_ahead: Sequence[int] = ()
        self.watch = watch.fork() if watch is not None else None

    @property
    def is_greedy(self) -> bool:
        return self.plan.params.temperature == 0.0

    @property
    def forced_id(self) -> int | None:
        """The only token that may come next, because reasoning is ended; None = any."""
        return None if self.watch is None or not self.watch.forced_ids else self.watch.forced_ids[0]

    def observe(self, token_id: int) -> None:
        """Record an appended token. One that the grammar refuses leaves the grammar where it is."""
        self.num_generated += 1
        if self.history is not None:
            self.history.append(token_id)
        if self.counts is not None:
            self.counts.add(token_id)
        if self.repeats is not None:
            self.repeats.add(token_id)
        if self.masker is not None:
            self.masker.advance(token_id)
        if self.watch is not None:
            self.watch.advance(token_id)
            if self.watch.is_over:
                self.watch = None

    def fork(self, sequence_index: int) -> SamplerState:
        """An independent copy for sequence `sequence_index`, with its own random numbers from here on."""
        other = self._view(0)
        other.sequence_index = sequence_index
        other.history = self.history.copy() if self.history is not None else None
        other.counts = self.counts.copy() if self.counts is not None else None
        other.repeats = self.repeats.copy() if self.repeats is not None else None
        other.masker = self.masker.fork() if self.masker is not None else None
        other.watch = self.watch.fork() if self.watch is not None else None
        return other

    def ahead(self, token_ids: Sequence[int]) -> list[SamplerState]:
        """This state, and the states after the first, the second, … of these tokens; valid until this one changes."""
        states = [self]
        for num_ahead, token_id in enumerate(token_ids, 1):
            following = states[-1]._view(1)
            following.ids_ahead = token_ids[:num_ahead]
            if following.history is not None:
                following.history = [*following.history, token_id]
            if following.counts is not None:
                following.counts = following.counts.copy()
                following.counts.add(token_id)
            if following.repeats is not None:
                following.repeats = following.repeats.copy(shares_tokens=True)
                following.repeats.add(token_id)
            if following.watch is not None:
                following.watch = following.watch.fork()
                following.watch.advance(token_id)
            states.append(following)
        return states

    def _view(self, num_ahead: int) -> SamplerState:
        """This state with a position `num_ahead` tokens later; shares all memory with it."""
        view = SamplerState.__new__(SamplerState)
        view.plan, view.active, view.sequence_index = self.plan, self.active, self.sequence_index
        view.num_generated = self.num_generated + num_ahead
        view.history, view.counts, view.masker = self.history, self.counts, self.masker
        view.repeats = self.repeats
        view.ids_ahead, view.watch = (), self.watch
        return view


# --- repeats, for DRY -------------------------------------------------------------------------------------------------


class Breakers:
    """Token sequences that interrupt repetitions. Immutable."""

    def __init__(self, breakers: Sequence[SequenceBreaker]) -> None:
        heads_by_tail: dict[tuple[int, ...], set[int]] = {}
        for breaker in breakers:
            heads_by_tail.setdefault(breaker.tail, set()).update(breaker.heads)
        self.single_ids: IdArray = np.array(sorted(heads_by_tail.get((), ())), dtype=np.int64)
        self._rules = [(heads, list(tail)) for tail, heads in heads_by_tail.items()]
        self._longest = 1 + max(map(len, heads_by_tail), default=0)

    def stands_before(self, tokens: IdArray, end: int) -> bool:
        last = tokens[max(0, end - self._longest) : end].tolist()
        return any(
            len(tail) < len(last) and last[-1 - len(tail)] in heads and last[len(last) - len(tail) :] == tail
            for heads, tail in self._rules
        )

    def last_end(self, tokens: IdArray) -> int:
        """The end of the last breaker among these tokens, 0 if there is none."""
        found = 0
        for heads, tail in self._rules:
            places = np.arange(tokens.size)
            for offset, token_id in enumerate(reversed(tail)):
                places = places[(tokens[places - offset] == token_id) & (places > offset)]
            is_head = np.isin(tokens[places - len(tail)], list(heads))
            found = max(found, 1 + int(places[is_head].max(initial=-1)))
        return found


class TokenRepeats:
    """A sequence's tokens, and the earlier places that end with the same tokens. `window`: tokens to search; -1 = all.

    A token costs one pass through the searched tokens: each repeat extends one that ended a token earlier.
    `_ends` are the indices of the last tokens there, ascending; `_lengths` the numbers of equal tokens.
    """

    __slots__ = ("_breakers", "_ends", "_lengths", "_size", "_tokens", "_unbroken", "_window")

    def __init__(self, token_ids: Sequence[int], window: int, breakers: Breakers) -> None:
        self._breakers = breakers
        self._window = window
        self._size = len(token_ids)
        self._tokens: IdArray = np.zeros(self._size + _SPARE, dtype=np.int64)
        self._tokens[: self._size] = token_ids
        begin = self._begin()
        lengths = np.array(_equal_at_the_end(self._tokens[begin : self._size].tolist()), dtype=np.int64)
        self._ends: IdArray = np.flatnonzero(lengths)
        self._lengths: IdArray = lengths[self._ends]
        self._ends += begin
        self._unbroken = self._size - breakers.last_end(self._tokens[: self._size])  # tokens after the last breaker

    def _begin(self) -> int:
        return 0 if self._window < 0 else max(0, self._size - self._window)

    def add(self, token_id: int) -> None:
        """Append one token. Copies that share the tokens see it only if they are made afterwards."""
        if self._size == self._tokens.size:
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
        last = self._size
        self._tokens[last] = token_id
        self._size += 1
        begin = self._begin()
        ends = np.flatnonzero(self._tokens[begin:last] == token_id) + begin
        lengths = np.ones(ends.size, dtype=np.int64)
        if self._ends.size and ends.size:
            places = np.minimum(np.searchsorted(self._ends, ends - 1), self._ends.size - 1)
            lengths += np.where(self._ends[places] == ends - 1, self._lengths[places], 0)
        self._ends, self._lengths = ends, lengths
        self._unbroken += 1
        if self._breakers.stands_before(self._tokens, self._size):
            self._unbroken = 0

    def continued(self, allowed_length: int) -> tuple[IdArray, IdArray]:
        """The tokens that followed repeats of at least `allowed_length` tokens, and the lengths of these, ascending."""
        lengths = np.minimum(self._lengths, self._ends - (self._begin() - 1))  # only searched tokens count
        lengths = np.minimum(lengths, self._unbroken)
        is_long = lengths >= allowed_length
        followers, lengths = self._tokens[self._ends[is_long] + 1], lengths[is_long]
        if followers.size:
            is_free = ~np.isin(followers, self._breakers.single_ids)
            followers, lengths = followers[is_free], lengths[is_free]
            order = np.argsort(lengths, kind="stable")
            followers, lengths = followers[order], lengths[order]
        return followers, lengths

    def copy(self, *, shares_tokens: bool = False) -> TokenRepeats:
        other = TokenRepeats.__new__(TokenRepeats)
        other._breakers, other._window, other._size = self._breakers, self._window, self._size
        other._tokens = self._tokens if shares_tokens else self._tokens.copy()
        other._ends, other._lengths, other._unbroken = self._ends, self._lengths, self._unbroken
        return other


def _equal_at_the_end(token_ids: list[int]) -> list[int]:
    """For every place but the last: the number of tokens up to it that equal those up to the end; 0 for the last.

    Source: the Z algorithm, Gusfield 1997, "Algorithms on Strings, Trees and Sequences", section 1.4, on the reversed
    list.
    """
    tokens, size = token_ids[::-1], len(token_ids)
    found = [0] * size
    left = right = 0  # the run of equal tokens that extends furthest
    for place in range(1, size):
        length = min(right - place, found[place - left]) if place < right else 0
        while place + length < size and tokens[length] == tokens[place + length]:
            length += 1
        if place + length > right:
            left, right = place, place + length
        found[place] = length
    return found[::-1]
