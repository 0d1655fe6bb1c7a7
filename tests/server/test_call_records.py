"""How a call ended, whatever its API calls the status."""

from __future__ import annotations

from dragoman.errors import (
    DeadlineTooShort,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    QueueTimeout,
    RequestTimeout,
    ServerError,
)
from dragoman.server.observation.record import CallRecord, Outcome, RequestRecord, SequenceRecord
from tests.support.tables import table


@table(
    ("error", "status", "num_tokens", "outcome"),
    [
        (None, 200, 5, Outcome.FINISHED),
        (InvalidRequest("no"), 424, 0, Outcome.REFUSED),
        (Overloaded("no"), 503, 0, Outcome.REFUSED),
        (EngineFailed("no"), 424, 0, Outcome.FAILED),  # as LMI tells it
        (RequestTimeout("no"), 503, 0, Outcome.FAILED),
        (DeadlineTooShort("no"), 503, 0, Outcome.REFUSED),
        (QueueTimeout("no"), 429, 0, Outcome.REFUSED),
        (InvalidRequest("no"), 200, 5, Outcome.FAILED),
    ],
    ids=str,
)
def test_the_kind_of_error_tells_refused_from_failed(
    error: ServerError | None, status: int, num_tokens: int, outcome: Outcome
) -> None:
    request = RequestRecord("a", sequences=[SequenceRecord(num_tokens=num_tokens)])
    assert CallRecord("a", "lmi", "/", requests=[request], status=status, error=error).outcome is outcome
