"""Ranks whole sequences, and finds their ends, for engines whose sequences come in pieces from elsewhere.

Called by the engines on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dragoman.types import EngineOutput, EngineRequest, FinishReason, StopCriterion


class SequenceEnd:
    """Finds the end of a growing sequence: one of the tokens `ends` or, where clients get it whole, a stop string."""

    __slots__ = ("_criterion", "_ends", "_token_ids")

    def __init__(self, ends: Mapping[int, FinishReason], criterion: StopCriterion | None) -> None:
        self._ends = ends
        self._criterion = criterion
        self._token_ids: list[int] = []  # only for the criterion

    def find(self, token_ids: Sequence[int]) -> tuple[int, FinishReason | None]:
        """The number of these further tokens up to the end, and its reason; the number of all and None without an end."""
        for size, token in enumerate(token_ids, start=1):
            reason = self._ends.get(token)
            if self._criterion is not None:
                self._token_ids.append(token)
                if reason is None and self._criterion(self._token_ids):
                    reason = FinishReason.STOP_STRING
            if reason is not None:
                return size, reason
        return len(token_ids), None


class Ranking:
    """Collects all sequences of a request that returns only the best of them."""

    def __init__(self, request: EngineRequest) -> None:
        self._sampling = request.sampling
        self._whole: dict[int, EngineOutput] = {}

    def push(self, output: EngineOutput) -> list[EngineOutput]:
        """The best sequences, whole, once the last one has ended, of equal ones the first; [] before.

        The best one has the prompt's facts, which came with the first sequence.
        """
        whole = self._whole.setdefault(output.index, EngineOutput(output.request_id, output.index, [], None, [], []))
        assert whole.logprobs is not None
        assert whole.top_logprobs is not None
        whole.token_ids += output.token_ids
        whole.logprobs += output.logprobs or []
        whole.top_logprobs += output.top_logprobs or []
        whole.finish_reason = output.finish_reason
        whole.prompt_logprobs = whole.prompt_logprobs or output.prompt_logprobs
        whole.num_cached_tokens = whole.num_cached_tokens or output.num_cached_tokens
        ended = [sequence for sequence in self._whole.values() if sequence.finish_reason is not None]
        return self._best(ended) if len(ended) == self._sampling.num_sequences else []

    def _best(self, sequences: list[EngineOutput]) -> list[EngineOutput]:
        for sequence in sequences:
            sequence.cumulative_logprob = sum(sequence.logprobs or (), 0.0)
        first = self._whole[0]
        prompt_logprobs, num_cached_tokens = first.prompt_logprobs, first.num_cached_tokens
        ranked = sorted(sequences, key=lambda sequence: (-(sequence.cumulative_logprob or 0.0), sequence.index))
        best = ranked[: self._sampling.n]
        for index, sequence in enumerate(best):
            sequence.index, sequence.prompt_logprobs, sequence.num_cached_tokens = index, None, 0
            if self._sampling.logprobs is None:
                sequence.logprobs = sequence.top_logprobs = None
        best[0].prompt_logprobs, best[0].num_cached_tokens = prompt_logprobs, num_cached_tokens
        return best
