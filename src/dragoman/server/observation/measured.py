"""The times of a call, computed from its record for its answer. On the event loop."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from dragoman.server.observation.record import CallRecord, RequestRecord, current_call
from dragoman.server.timings import Measure, Timings


def measure_of(call: CallRecord, request_ids: Sequence[str]) -> Measure:
    """A function that measures requests of a call. It finds them by id, since they may begin in any order."""

    def measure(index: int | None) -> Timings:
        records = call.requests
        if index is not None:
            records = [record for record in records if record.request_id == request_ids[index]]
        return timings_of(records)

    return measure


def current_measure(request_ids: Sequence[str]) -> Measure | None:
    """The same for the current task's call; None if it did not arrive over HTTP."""
    record = current_call()
    return None if record is None else measure_of(record, request_ids)


def timings_of(records: Sequence[RequestRecord]) -> Timings:
    num_cached = sum(record.num_cached_tokens for record in records)
    num_computed = sum(record.num_prompt_tokens for record in records) - num_cached
    num_predicted = sum(record.num_completion_tokens for record in records)
    begun = [record for record in records if record.first_token_s is not None]
    starts = [record.first_step_s for record in begun]
    firsts = [record.begin_s + (record.first_token_s or 0.0) for record in begun]
    ends = [times[-1] for record in begun for times in record.event_s]
    queues = [record.queue_s for record in records if record.queue_s is not None]
    prompt_ms = 1000 * max(max(firsts) - min(starts), 0.0) if begun else 0.0
    predicted_ms = 1000 * (max(ends) - min(firsts)) if begun else 0.0
    num_stored = sum(record.num_stored_tokens for record in records)
    num_drafted = sum(record.num_draft_tokens for record in records)
    return Timings(
        cache_n=num_cached,
        prompt_n=num_computed,
        prompt_ms=_rounded(prompt_ms),
        prompt_per_token_ms=_ratio(prompt_ms, num_computed),
        prompt_per_second=_ratio(1000 * num_computed, prompt_ms),
        predicted_n=num_predicted,
        predicted_ms=_rounded(predicted_ms),
        predicted_per_token_ms=_ratio(predicted_ms, num_predicted),
        predicted_per_second=_ratio(1000 * num_predicted, predicted_ms),
        queue_ms=_rounded(1000 * max(queues)) if queues else None,
        stored_n=num_stored or UNSET,
        draft_n=num_drafted or UNSET,
        draft_n_accepted=sum(record.num_accepted_tokens for record in records) if num_drafted else UNSET,
    )


def _ratio(amount: float, count: float) -> float | None:
    return _rounded(amount / count) if count and amount else None


def _rounded(value: float) -> float:
    return round(value, 3)
