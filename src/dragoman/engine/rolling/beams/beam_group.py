"""The state of a group's beam search. Used on the engine thread."""

from __future__ import annotations

from dataclasses import dataclass, field

from dragoman.engine.beams.beam_search import BeamSearch, num_candidates
from dragoman.engine.rolling.beams.beam_rows import BeamRow
from dragoman.types import EngineRequest, FinishReason, Logprob


@dataclass(frozen=True, slots=True)
class FinishedBeam:
    """A hypothesis with its tokens. `cumulative_logprob` is the sum of raw log-probabilities."""

    token_ids: list[int]
    reason: FinishReason
    cumulative_logprob: float
    logprobs: list[float]
    top_logprobs: list[list[Logprob]]


@dataclass(slots=True)
class BeamGroup:
    search: BeamSearch
    num_candidates: int
    finished: dict[int, FinishedBeam] = field(default_factory=dict)  # by the hypothesis' number
    rows: dict[int, BeamRow] = field(default_factory=dict)  # by slot, of beams that wait for their siblings

    @classmethod
    def for_request(cls, request: EngineRequest, num_end_tokens: int) -> BeamGroup:
        params = request.sampling
        search = BeamSearch(params, num_end_tokens, request.max_tokens)
        return cls(search, num_candidates(params, num_end_tokens))
