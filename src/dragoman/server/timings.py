"""The times of a call in its answer, and the progress of its prompts before the first token.

Sources: llama.cpp, tools/server/README.md, `timings` and `return_progress`. `observation.record` measures the times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.engine.base import PromptProgress

TIMINGS_HEADER = "x-dragoman-timings"
"""Asks for the block; also the header or trailer that carries it if the answer has no room."""


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of tokens ("_n") and milliseconds; null = nothing counted, or no time passed.

    `prompt_ms` ends with the first output, where `predicted_ms` begins. Of several prompts, counts are sums, and times
    go from the first beginning to the last end.
    """

    cache_n: Annotated[int, Meta(description="prompt tokens that were found in the cache")]
    prompt_n: Annotated[int, Meta(description="prompt tokens that were computed")]
    prompt_ms: float
    prompt_per_token_ms: float | None
    prompt_per_second: float | None
    predicted_n: Annotated[int, Meta(description="tokens of the answer")]
    predicted_ms: float
    predicted_per_token_ms: float | None
    predicted_per_second: float | None
    queue_ms: Annotated[float | None, Meta(description="before the first step; null = the engine does not tell")] = None
    stored_n: Annotated[int | UnsetType, Meta(description="of `cache_n`, those read from disk, if any")] = UNSET
    draft_n: Annotated[int | UnsetType, Meta(description="tokens that were guessed, if any")] = UNSET
    draft_n_accepted: int | UnsetType = UNSET


Measure = Callable[[int | None], Timings]
"""The block of the call's request of that index, None = of the whole call; complete once the call has ended."""


class ShownTimings:
    """The block for one call's answer. `measure` None = not asked for. `num_sequences`: in a stream."""

    __slots__ = ("_measure", "_num_unfinished")

    def __init__(self, measure: Measure | None = None, num_sequences: int = 0) -> None:
        self._measure = measure
        self._num_unfinished = num_sequences

    def of(self, request_index: int | None = None) -> Timings | UnsetType:
        """The block, UNSET if not asked for."""
        return UNSET if self._measure is None else self._measure(request_index)

    def sequence_ended(self) -> Timings | UnsetType:
        """The block after the call's last sequence, else UNSET."""
        if self._measure is None:
            return UNSET
        self._num_unfinished -= 1
        return UNSET if self._num_unfinished else self._measure(None)


NO_TIMINGS = ShownTimings()


class ToldProgress(msgspec.Struct, frozen=True):
    """Counts of tokens, and milliseconds. Of several prompts: sums of counts, and the longest times."""

    total: int
    cache: Annotated[int, Meta(description="tokens that were found in the cache")]
    processed: Annotated[int, Meta(description="tokens that are read, those in the cache included")]
    time_ms: Annotated[int, Meta(description="since the first of them was read")]
    ahead: Annotated[int, Meta(description="requests that begin before")]
    expected_ms: Annotated[int | None, Meta(description="until the first token, by forecast; null = not known")]


def progress_of(service: object, request_ids: Iterable[str]) -> ToldProgress | None:
    """The progress of a call's requests; None if unknown."""
    tell: Callable[[str], PromptProgress | None] | None = getattr(service, "progress", None)
    if tell is None:
        return None
    known = [progress for request_id in request_ids if (progress := tell(request_id)) is not None]
    if not known:
        return None
    expected = [prompt.expected_s for prompt in known]
    return ToldProgress(
        total=sum(prompt.num_tokens for prompt in known),
        cache=sum(prompt.num_cached for prompt in known),
        processed=sum(prompt.num_read for prompt in known),
        time_ms=round(1000 * max(prompt.since_s for prompt in known)),
        ahead=max(prompt.num_ahead for prompt in known),
        expected_ms=None
        if None in expected
        else ceil(1000 * max(expected_s for expected_s in expected if expected_s is not None)),
    )
