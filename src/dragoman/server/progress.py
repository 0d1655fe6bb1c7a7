"""The progress of calls without a token yet. Source: llama.cpp, tools/server/README.md, `return_progress`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil
from typing import Annotated, Protocol, runtime_checkable

import msgspec
from msgspec import Meta

from dragoman.engine.base import PromptProgress


class ToldProgress(msgspec.Struct, frozen=True):
    """Counts of tokens, and milliseconds. Of several prompts: sums of counts, and the longest times."""

    total: int
    cache: Annotated[int, Meta(description="tokens that were found in the cache")]
    processed: Annotated[int, Meta(description="tokens that are read, those in the cache included")]
    time_ms: Annotated[int, Meta(description="since the first of them was read")]
    ahead: Annotated[int, Meta(description="requests that begin before")]
    expected_ms: Annotated[int | None, Meta(description="until the first token, by forecast; null = not known")]


@runtime_checkable
class ProgressEncoder(Protocol):
    """An encoder whose streams have room for progress, before the first event."""

    def progress(self, told: ToldProgress) -> bytes: ...


def progress_of(service: object, request_ids: Iterable[str]) -> ToldProgress | None:
    """The progress of a call's requests; None if unknown."""
    tell: Callable[[str], PromptProgress | None] | None = getattr(service, "progress", None)
    if tell is None:
        return None
    known = [progress for request_id in request_ids if (progress := tell(request_id)) is not None]
    if not known:
        return None
    expected = [one.expected_s for one in known]
    return ToldProgress(
        total=sum(one.num_tokens for one in known),
        cache=sum(one.num_cached for one in known),
        processed=sum(one.num_read for one in known),
        time_ms=round(1000 * max(one.since_s for one in known)),
        ahead=max(one.num_ahead for one in known),
        expected_ms=None if None in expected else ceil(1000 * max(one for one in expected if one is not None)),
    )
