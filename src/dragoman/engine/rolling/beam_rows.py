"""A beam's row of logits, reduced to the candidates that beam search needs, and a search's state. On the engine thread."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import numpy as np

from dragoman.engine.beams import BeamCandidates, BeamSearch, num_candidates
from dragoman.engine.rolling.sample.sampler import RawLogprobs, Sampled, Sampler
from dragoman.engine.rolling.sample.sampler_state import FloatArray, SamplerState
from dragoman.engine.rolling.sample.temperature_and_top_p import ranked
from dragoman.types import EngineRequest, FinishReason, Logprob


@dataclass(frozen=True, slots=True)
class BeamRow:
    candidates: BeamCandidates
    raw_logprobs: dict[int, float]
    top_logprobs: list[Logprob]


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


def sample_with_beams(
    sampler: Sampler, logits: FloatArray, states: Rows[SamplerState], widths: Rows[int]
) -> tuple[Sampled, dict[int, BeamRow]]:
    """Sample the rows of width 0, and reduce the others to `width` candidates; both by row number.

    Shapes: logits [R, V], states [R], widths [R]. Mutates: logits. The sampled part has zeros in the beams' rows.
    """
    plain = [row for row, width in enumerate(widths) if not width]
    sampled = Sampled(np.zeros(len(states), dtype=np.int64), [None] * len(states), [None] * len(states))
    if plain:
        part = sampler.sample(logits[plain], [states[row] for row in plain])
        sampled.token_ids[plain] = part.token_ids
        for position, row in enumerate(plain):
            sampled.logprobs[row] = part.logprobs[position]
            sampled.top_logprobs[row] = part.top_logprobs[position]
    searched = [row for row, width in enumerate(widths) if width]
    processed = sampler.process(logits[searched], [states[row] for row in searched])
    beams: dict[int, BeamRow] = {}
    for position, row in enumerate(searched):
        raw = sampler.raw_logprobs(logits[row])
        beams[row] = _beam_row(raw, processed[position], states[row], widths[row])
    return sampled, beams


def _beam_row(raw: RawLogprobs, processed: FloatArray, state: SamplerState, width: int) -> BeamRow:
    best = ranked(processed, width)
    return BeamRow(
        candidates=BeamCandidates(best.astype(np.int64), processed[best]),
        raw_logprobs={token_id: raw.of(token_id) for token_id in best.tolist()},
        top_logprobs=raw.top(state.plan.params.logprobs or 0),
    )
