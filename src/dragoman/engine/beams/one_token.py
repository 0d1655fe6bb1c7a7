"""Beam search over an engine without it: requests for one token after each beam, with the likeliest alternatives.

The result is exact, as a search only considers a beam's `num_candidates` most likely tokens. It uses raw
log-probabilities, so requests that change them are refused (`Capabilities.plain_beams`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from dragoman.coroutines import together
from dragoman.engine.beams.beam_search import BeamCandidates, BeamSearch, Hypothesis, num_candidates
from dragoman.errors import UnsupportedFeature
from dragoman.types import EngineOutput, EngineRequest, FinishReason, Logprob, SamplingParams, StopCriterion

NextTokens = Callable[[EngineRequest], Awaitable[Sequence[Logprob]]]
"""(a request for one token) -> the most likely tokens, best first; their number is its `logprobs`."""


@dataclass(slots=True)
class _Beam:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[list[Logprob]] = field(default_factory=list)
    reason: FinishReason | None = None

    def extended(self, token_id: int, likely: Sequence[Logprob], num_top: int) -> _Beam:
        logprob = next(one.logprob for one in likely if one.token_id == token_id)
        return _Beam(
            [*self.token_ids, token_id], [*self.logprobs, logprob], [*self.tops, list(likely[:num_top])], self.reason
        )


class OneTokenBeams:
    """One request's search. `most`: likely tokens per answer. Raises: UnsupportedFeature if they are too few."""

    def __init__(self, request: EngineRequest, most: int, criterion: StopCriterion | None) -> None:
        sampling = request.sampling
        self._request = request
        self._criterion = criterion
        self._ends = dict.fromkeys(sampling.stop_token_ids, FinishReason.STOP_TOKEN)
        if not sampling.ignore_eos:
            self._ends.update(dict.fromkeys(request.eos_token_ids, FinishReason.EOS))
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
            told = await together(next_tokens(self._question(self._beams[slot])) for slot in slots)
            self._advance(dict(zip(slots, told, strict=True)))
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
        for one in step.hypotheses:
            self._finished[one.number] = self._ended(one, likely)
        self._beams |= {
            slot: self._beams[one.parent].extended(one.token_id, likely[one.parent], self._num_top)
            for slot, one in step.continuations.items()
        }

    def _ended(self, one: Hypothesis, likely: dict[int, Sequence[Logprob]]) -> _Beam:
        return replace(
            self._beams[one.parent].extended(one.token_id, likely[one.parent], self._num_top), reason=one.reason
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
        np.array([one.token_id for one in likely], np.int64), np.array([one.logprob for one in likely], np.float32)
    )
