"""Beam search: decides which beams go on, and runs searches over an engine without beams.

`BeamSearch` does plain and diverse beam search over the candidates of one request, also on the rolling engine's thread.
Groups are advanced in order; a later one pays `diversity_penalty` for each earlier beam that took the same token in the
same step. Sources: diverse beam search, arXiv:1610.02424; scores, lengths and early stopping as in Hugging Face
transformers, the reference in the tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dragoman.coroutines import together
from dragoman.errors import UnsupportedFeature
from dragoman.types import EngineOutput, EngineRequest, FinishReason, Logprob, SamplingParams, StopCriterion

_FILLER_SCORE = -1e9  # of a beam that only fills a slot; far below any real sum of log-probabilities


@dataclass(frozen=True, slots=True)
class BeamCandidates:
    """The most likely next tokens of one beam, best first. Shapes: token_ids [k] i64, logprobs [k] f32 (processed)."""

    token_ids: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]


class Continuation(NamedTuple):
    """A beam of the next step: beam `parent` (an index over all beams) extended by a token, with its summed score."""

    parent: int
    token_id: int
    score: float


class Hypothesis(NamedTuple):
    """A finished sequence: beam `parent` as it was, extended by `token_id`. `score` is `normalised`."""

    number: int
    score: float
    parent: int
    token_id: int
    reason: FinishReason


EndReason = Callable[[int, int], FinishReason | None]
"""(parent beam, token) -> the reason to end with that token, None to go on."""


@dataclass(slots=True)
class BeamStep:
    """`continuations`: for each slot of every live group. `hypotheses`: finished in this step; later displaced by
    better ones.
    """

    continuations: dict[int, Continuation] = field(default_factory=dict)
    hypotheses: list[Hypothesis] = field(default_factory=list)


def num_candidates(params: SamplingParams, num_end_tokens: int) -> int:
    """The number of candidates per beam that makes the search exact.

    Of each group's merged candidates, `1 + num_end_tokens` times its size count. A diversity penalty can push down at
    most one token per beam of the other groups.
    """
    size = params.num_beams // params.num_beam_groups
    return max(2, 1 + num_end_tokens) * size + (params.num_beams - size)


class _Group:
    def __init__(self, first_slot: int, size: int, params: SamplingParams) -> None:
        self.slots = range(first_slot, first_slot + size)
        self.scores = dict.fromkeys(self.slots, 0.0)
        self.finished: list[tuple[float, int]] = []  # score and number of the kept hypotheses
        self.is_done = False
        self._params = params

    @property
    def size(self) -> int:
        return len(self.slots)

    def keep(self, score: float, number: int) -> bool:
        """Keep a hypothesis if it is among the best `size`, in place of the worst; True if it was kept."""
        if len(self.finished) >= self.size and score <= self.worst_kept:
            return False
        self.finished.append((score, number))
        if len(self.finished) > self.size:
            self.finished.remove(min(self.finished))
        return True

    @property
    def worst_kept(self) -> float:
        return min(self.finished)[0]

    def check_done(self, best_sum: float, length: int, max_length: int) -> None:
        """Mark the group done if no live beam can still improve its hypotheses, by the early-stopping rule."""
        if len(self.finished) < self.size or self.is_done:
            return
        rule, penalty = self._params.early_stopping, self._params.length_penalty
        if rule is True:
            self.is_done = True
            return
        # "never": a positive penalty favours length, so the best possible score is at full length
        attainable_length = max_length if rule == "never" and penalty > 0.0 else length
        self.is_done = self.worst_kept >= normalised(best_sum, attainable_length, penalty)


def normalised(total: float, length: int, length_penalty: float) -> float:
    return float(total / length**length_penalty)


class BeamSearch:
    """The state of one request's search. `advance` is called once per generated position."""

    def __init__(self, params: SamplingParams, num_end_tokens: int, max_tokens: int) -> None:
        size = params.num_beams // params.num_beam_groups
        self._params = params
        self._num_considered = max(2, 1 + num_end_tokens)
        self._max_tokens = max_tokens
        self._groups = [_Group(first, size, params) for first in range(0, params.num_beams, size)]
        self._length = 0
        self._num_hypotheses = 0

    @property
    def live_slots(self) -> list[int]:
        return [slot for group in self._groups if not group.is_done for slot in group.slots]

    @property
    def is_finished(self) -> bool:
        return self._length >= self._max_tokens or not self.live_slots

    @property
    def ranking(self) -> list[tuple[float, int]]:
        """Score and number of the current hypotheses, best first."""
        kept = sorted((pair for group in self._groups for pair in group.finished), key=lambda pair: pair[0])
        return kept[::-1]

    def advance(self, candidates: Sequence[BeamCandidates | None], end_reason: EndReason) -> BeamStep:
        """Choose the next beams. `candidates[slot]` is needed for live slots; in the first call for slot 0 only."""
        step = BeamStep()
        is_first = self._length == 0
        self._length += 1
        taken: Counter[int] = Counter()
        for group in self._groups:
            if not group.is_done:
                merged = self._merge(group, candidates, taken, is_first=is_first)
                self._select(group, merged, end_reason, step)
                best_sum = merged[0].score if merged else -np.inf
                group.check_done(best_sum, self._length, self._max_tokens)
                taken.update(step.continuations[slot].token_id for slot in group.slots if slot in step.continuations)
        for slot in set(step.continuations).difference(self.live_slots):
            del step.continuations[slot]
        if self._length >= self._max_tokens:
            self._finish_by_length(step)
        return step

    def _merge(
        self, group: _Group, candidates: Sequence[BeamCandidates | None], taken: Counter[int], *, is_first: bool
    ) -> list[Continuation]:
        parents = [0] if is_first else list(group.slots)  # at first all beams equal the prompt: use one of them
        scores, tokens, owners = [], [], []
        for parent in parents:
            scored = candidates[parent]
            assert scored is not None
            values = scored.logprobs.astype(np.float64)
            if taken:
                values -= self._params.diversity_penalty * np.array(
                    [taken[token] for token in scored.token_ids.tolist()]
                )
            scores.append(values + (0.0 if is_first else group.scores[parent]))
            tokens.append(scored.token_ids)
            owners.append(np.full(len(scored.token_ids), parent))
        score, token, owner = np.concatenate(scores), np.concatenate(tokens), np.concatenate(owners)
        order = np.argsort(-score, kind="stable")[: self._num_considered * group.size]
        rows = zip(owner[order].tolist(), token[order].tolist(), score[order].tolist(), strict=True)
        return [Continuation(*row) for row in rows if row[2] > -np.inf]

    def _select(self, group: _Group, merged: list[Continuation], end_reason: EndReason, step: BeamStep) -> None:
        chosen: list[Continuation] = []
        for rank, candidate in enumerate(merged):
            if len(chosen) == group.size:
                break
            reason = end_reason(candidate.parent, candidate.token_id)
            if reason is None:
                chosen.append(candidate)
            elif rank < group.size:  # an end that is not among the best beams would be a bad hypothesis: dropped
                self._finish(group, candidate, reason, step)
        if not chosen:  # every candidate ends (a grammar may allow nothing else)
            group.is_done = True
            return
        while len(chosen) < group.size:  # fewer continuations than beams: fill up with the worst one, which will lose
            chosen.append(chosen[-1]._replace(score=_FILLER_SCORE))
        for slot, continuation in _in_place(group.slots, chosen).items():
            step.continuations[slot] = continuation
            group.scores[slot] = continuation.score

    def _finish_by_length(self, step: BeamStep) -> None:
        for group in self._groups:
            for slot in group.slots:
                continuation = step.continuations.pop(slot, None)
                if continuation is not None and continuation.score > _FILLER_SCORE:
                    self._finish(group, continuation, FinishReason.LENGTH, step)

    def _finish(self, group: _Group, ending: Continuation, reason: FinishReason, step: BeamStep) -> None:
        score = normalised(ending.score, self._length, self._params.length_penalty)
        if group.keep(score, self._num_hypotheses):
            step.hypotheses.append(Hypothesis(self._num_hypotheses, score, ending.parent, ending.token_id, reason))
        self._num_hypotheses += 1


def _in_place(slots: range, chosen: list[Continuation]) -> dict[int, Continuation]:
    """A slot for each continuation. A parent's best child stays in its slot, so that only the others are copied."""
    placed: dict[int, Continuation] = {}
    others: list[Continuation] = []
    for continuation in chosen:
        if continuation.parent in slots and continuation.parent not in placed:
            placed[continuation.parent] = continuation
        else:
            others.append(continuation)
    return placed | dict(zip([slot for slot in slots if slot not in placed], others, strict=True))


NextTokens = Callable[[EngineRequest], Awaitable[Sequence[Logprob]]]
"""(a request for one token) -> the most likely tokens, best first; their number is its `logprobs`."""


@dataclass(slots=True)
class _Beam:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[list[Logprob]] = field(default_factory=list)
    reason: FinishReason | None = None

    def extended(self, token_id: int, likely: Sequence[Logprob], num_top: int) -> _Beam:
        logprob = next(candidate.logprob for candidate in likely if candidate.token_id == token_id)
        return _Beam(
            [*self.token_ids, token_id], [*self.logprobs, logprob], [*self.tops, list(likely[:num_top])], self.reason
        )


class OneTokenBeams:
    """One request's search over an engine without beams: it is asked for one token after each beam.

    The result is exact, as a search only considers a beam's `num_candidates` most likely tokens. It uses raw
    log-probabilities, so requests that change them are refused (`Capabilities.plain_beams`). `most`: likely tokens per
    answer. Raises: UnsupportedFeature if they are too few.
    """

    def __init__(self, request: EngineRequest, most: int, criterion: StopCriterion | None) -> None:
        sampling = request.sampling
        self._request = request
        self._criterion = criterion
        self._ends = request.end_reasons()
        self._width = num_candidates(sampling, len(self._ends))
        if self._width > most:
            raise UnsupportedFeature(
                f"num_beams {sampling.num_beams} is not supported by this engine: with {len(self._ends)} tokens that end a "
                f"sequence it needs {self._width} log-probabilities per token, and it returns at most {most}",
                param="num_beams",
            )
        self._search = BeamSearch(sampling, len(self._ends), request.max_tokens)
        self._beams = {slot: _Beam() for slot in range(sampling.num_beams)}
        self._finished: dict[int, _Beam] = {}

    async def run(self, next_tokens: NextTokens) -> list[EngineOutput]:
        is_first = True
        while not self._search.is_finished:
            slots = [0] if is_first else self._search.live_slots
            is_first = False
            answers = await together(next_tokens(self._question(self._beams[slot])) for slot in slots)
            self._advance(dict(zip(slots, answers, strict=True)))
        sampling = self._request.sampling
        best = [self._finished[number] for _, number in self._search.ranking[: sampling.n]]
        return [self._output(index, beam) for index, beam in enumerate(best)]

    def _question(self, beam: _Beam) -> EngineRequest:
        request = self._request
        return msgspec.structs.replace(
            request,
            prompt_ids=(*request.prompt_ids, *beam.token_ids),
            sampling=SamplingParams(
                temperature=0.0, seed=request.sampling.seed, ignore_eos=True, logprobs=max(self._width, self._num_top)
            ),
            max_tokens=1,
            stop=None,
        )

    @property
    def _num_top(self) -> int:
        return self._request.sampling.logprobs or 0

    def _advance(self, likely: dict[int, Sequence[Logprob]]) -> None:
        rows = [_row(likely[slot][: self._width]) if slot in likely else None for slot in range(len(self._beams))]
        step = self._search.advance(rows, self._end_reason)
        for hypothesis in step.hypotheses:
            self._finished[hypothesis.number] = self._ended(hypothesis, likely)
        self._beams |= {
            slot: self._beams[hypothesis.parent].extended(hypothesis.token_id, likely[hypothesis.parent], self._num_top)
            for slot, hypothesis in step.continuations.items()
        }

    def _ended(self, hypothesis: Hypothesis, likely: dict[int, Sequence[Logprob]]) -> _Beam:
        return replace(
            self._beams[hypothesis.parent].extended(hypothesis.token_id, likely[hypothesis.parent], self._num_top),
            reason=hypothesis.reason,
        )

    def _end_reason(self, slot: int, token_id: int) -> FinishReason | None:
        reason = self._ends.get(token_id)
        if reason is None and self._criterion is not None and self._criterion([*self._beams[slot].token_ids, token_id]):
            return FinishReason.STOP_STRING
        return reason

    def _output(self, index: int, beam: _Beam) -> EngineOutput:
        output = EngineOutput(
            self._request.request_id, index, beam.token_ids, beam.reason, cumulative_logprob=sum(beam.logprobs)
        )
        if self._request.sampling.logprobs is not None:
            output.logprobs, output.top_logprobs = beam.logprobs, beam.tops
        return output


def _row(likely: Sequence[Logprob]) -> BeamCandidates:
    return BeamCandidates(
        np.array([candidate.token_id for candidate in likely], np.int64),
        np.array([candidate.logprob for candidate in likely], np.float32),
    )
