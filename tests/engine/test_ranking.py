"""Whole sequences that come in pieces: which are the best, and what they carry."""

from __future__ import annotations

from typing import Any

from dragoman.engine.ranking import Ranking, SequenceEnd
from dragoman.types import EngineOutput, EngineRequest, FinishReason, Logprob, PromptLogprob, SamplingParams


def asking(**sampling: Any) -> EngineRequest:
    return EngineRequest("r", (1, 2), SamplingParams(**sampling), 8, 5)


def pieces_of(index: int, *logprobs: float) -> list[EngineOutput]:
    """One for each token, 10, 11 and so on; the last one ends the sequence."""
    pieces = []
    for place, logprob in enumerate(logprobs):
        reason = FinishReason.LENGTH if place == len(logprobs) - 1 else None
        tops = [[Logprob(10 + place, logprob)]]
        pieces.append(EngineOutput("r", index, [10 + place], reason, [logprob], tops))
    return pieces


def best_of(request: EngineRequest, *pieces: EngineOutput) -> list[EngineOutput]:
    """What comes with the last piece; nothing may come before."""
    ranking = Ranking(request)
    assert all(ranking.push(piece) == [] for piece in pieces[:-1])
    return ranking.push(pieces[-1])


def test_the_best_come_first_with_what_was_asked_for() -> None:
    request = asking(best_of=3, n=2, logprobs=0)
    best = best_of(request, *pieces_of(1, -3.0), *pieces_of(0, -1.0, -1.0), *pieces_of(2, -0.5))
    assert [(one.index, one.cumulative_logprob, one.token_ids) for one in best] == [
        (0, -0.5, [10]),
        (1, -2.0, [10, 11]),
    ]
    assert [one.logprobs for one in best] == [[-0.5], [-1.0, -1.0]]
    (only,) = best_of(asking(best_of=2), *pieces_of(0, -1.0), *pieces_of(1, -2.0))
    assert (only.logprobs, only.top_logprobs, only.cumulative_logprob) == (None, None, -1.0)


def test_of_equal_sequences_the_first_one_is_better() -> None:
    second, first = pieces_of(1, -2.0), pieces_of(0, -1.0, -1.0)
    (best,) = best_of(asking(best_of=2), *second, *first)
    assert best.token_ids == [10, 11]


def test_a_sequence_without_tokens_has_a_sum_of_the_same_type() -> None:
    empty = [EngineOutput("r", index, [], FinishReason.LENGTH, [], []) for index in range(2)]
    (best,) = best_of(asking(best_of=2), *empty)
    assert isinstance(best.cumulative_logprob, float)


def test_what_came_with_the_first_sequence_about_the_prompt_goes_with_the_best() -> None:
    (first,), (second,) = pieces_of(0, -3.0), pieces_of(1, -1.0)
    first.prompt_logprobs, first.num_cached_tokens = [None, PromptLogprob(-1.0)], 1
    second.num_cached_tokens = 2
    best, other = best_of(asking(best_of=3, n=2), first, second, *pieces_of(2, -2.0))
    assert (best.prompt_logprobs, best.num_cached_tokens) == ([None, PromptLogprob(-1.0)], 1)
    assert (other.prompt_logprobs, other.num_cached_tokens) == (None, 0)


def test_a_sequence_ends_at_its_first_end() -> None:
    ends = {7: FinishReason.EOS}
    assert SequenceEnd(ends, None).find([5, 7, 5]) == (2, FinishReason.EOS)
    assert SequenceEnd(ends, None).find([5, 5]) == (2, None)
    end = SequenceEnd(ends, lambda token_ids: token_ids[-2:] == [5, 6])
    assert end.find([6, 5]) == (2, None)
    assert end.find([6, 7]) == (1, FinishReason.STOP_STRING)
