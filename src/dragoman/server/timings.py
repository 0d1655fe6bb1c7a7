"""The block `timings` of an answer, as of llama.cpp's server (tools/server/README.md). `observation.measured` measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Protocol, runtime_checkable

import msgspec
from msgspec import UNSET, Meta, UnsetType

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


@runtime_checkable
class TimedEncoder(Protocol):
    """An encoder whose answers may have room for timings."""

    def show_timings(self, timings: ShownTimings) -> bool:
        """Show them in the answer; False if this one has no room."""
        ...
