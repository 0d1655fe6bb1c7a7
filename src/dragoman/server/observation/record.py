"""The facts of one call and of its requests, filled by the responder and the service, and its times for its answer.

On the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from enum import StrEnum
from time import perf_counter, time

import msgspec
import numpy as np
from msgspec import UNSET

from dragoman.errors import DeadlineTooShort, ServerError
from dragoman.server.timings import Measure, Timings
from dragoman.types import (
    USUAL_STANDING,
    EngineRequest,
    FinishReason,
    GenerationRequest,
    PromptInfo,
    Standing,
    TraceContext,
)


class Outcome(StrEnum):
    FINISHED = "finished"
    REFUSED = "refused"  # before anything was generated, by an error of the client's or because there was no room
    FAILED = "failed"
    CLIENT_GONE = "client_gone"


_FAILURES = frozenset({"timeout", "cancelled", "engine_failed", "engine_dead", "hook_error", "server_error"})
"""Kinds of errors that end a call after it was accepted. Each API has its own statuses, so they do not tell."""


class SequenceRecord(msgspec.Struct):
    """One sequence. `event_s`: times of its events. `num_tokens` counts tokens held back for a stop string."""

    event_s: list[float] = msgspec.field(default_factory=list)
    num_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    finish_reason: FinishReason | None = None


class RequestRecord(msgspec.Struct):
    """One prompt of a call. Times in seconds on the monotonic clock. `queue_s`: None = the engine does not report it.

    `num_queued_tokens`: of its prompt, until its first output. `max_tokens`: of all its sequences. `pictured_s`,
    `prepared_s`: when its pictures were fetched, and when it was ready for the engine.
    """

    request_id: str
    begin_s: float = msgspec.field(default_factory=perf_counter)
    num_queued_tokens: int = 0
    max_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_stored_tokens: int = 0  # of these, those read from disk
    num_preemptions: int = 0
    queue_s: float | None = None
    sequences: list[SequenceRecord] = msgspec.field(default_factory=list)
    prompt_text: str = ""
    asked: GenerationRequest | None = None
    pictured_s: float | None = None
    prepared_s: float | None = None

    def waits(self, request: EngineRequest) -> None:
        """Note that the request is ready for the engine."""
        self.num_queued_tokens = len(request.prompt_ids)
        self.max_tokens = request.max_tokens * request.sampling.n

    def has_prompt(self, prompt: PromptInfo) -> None:
        """Note that its prompt was computed."""
        self.num_queued_tokens = 0
        self.num_prompt_tokens, self.num_cached_tokens = len(prompt.token_ids), prompt.num_cached_tokens
        self.prompt_text = prompt.text

    @property
    def num_completion_tokens(self) -> int:
        return sum([sequence.num_tokens for sequence in self.sequences])

    @property
    def num_draft_tokens(self) -> int:
        return sum([sequence.num_draft_tokens for sequence in self.sequences])

    @property
    def num_accepted_tokens(self) -> int:
        """Drafts that became completion tokens."""
        return sum([sequence.num_accepted_tokens for sequence in self.sequences])

    @property
    def finish_reasons(self) -> list[str]:
        return [str(sequence.finish_reason) for sequence in self.sequences if sequence.finish_reason is not None]

    @property
    def event_s(self) -> list[list[float]]:
        return [sequence.event_s for sequence in self.sequences if sequence.event_s]

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the request's beginning to its first event; None = none yet."""
        firsts = [times[0] for times in self.event_s]
        return min(firsts) - self.begin_s if firsts else None

    @property
    def first_step_s(self) -> float:
        """The time of its first step, on the monotonic clock. The engine counts `queue_s` from when it got the request."""
        return (self.begin_s if self.prepared_s is None else self.prepared_s) + (self.queue_s or 0.0)

    def gaps_s(self) -> list[float]:
        """Seconds between the events of each sequence."""
        return [gap for times in self.event_s for gap in np.diff(times).tolist()]


class CallRecord(msgspec.Struct):
    """One call over HTTP. `caller`: the name of its key, "" = none. `status` 0 = nothing was sent.

    `timeout_s`: how long the client waits for the whole answer, `patience_s`: for its next byte, by the field
    `timeout_name`. `num_expected_tokens`: at least, of prompts that are not tokenised yet. `take` is called for each
    tokenised prompt; raises Overloaded if it has no room. `keep_s`: how long its model stays loaded, if `is_kept`; None
    = as the operator configured. `cancel` ends the call. `began_s`: seconds since the epoch; `begin_s`, `end_s`:
    monotonic.
    """

    call_id: str
    api: str
    path: str
    method: str = "POST"
    model: str = ""
    adapter: str = ""
    caller: str = ""
    standing: Standing = USUAL_STANDING
    requests: list[RequestRecord] = msgspec.field(default_factory=list)
    begin_s: float = msgspec.field(default_factory=perf_counter)
    began_s: float = msgspec.field(default_factory=time)
    end_s: float = 0.0
    status: int = 0
    is_client_gone: bool = False
    timeout_s: float | None = None
    patience_s: float | None = None
    timeout_name: str = ""
    num_expected_tokens: int = 0
    take: Callable[[CallRecord, RequestRecord], None] = lambda call, request: None
    cancel: Callable[[ServerError], None] = lambda error: None
    error: ServerError | None = None
    trace: TraceContext | None = None
    is_kept: bool = False
    keep_s: float | None = None

    @property
    def outcome(self) -> Outcome:
        if self.is_client_gone:
            return Outcome.CLIENT_GONE
        if self.error is None:
            return Outcome.FINISHED
        is_failure = self.error.kind in _FAILURES and not isinstance(self.error, DeadlineTooShort)
        return Outcome.FAILED if is_failure or self.num_completion_tokens else Outcome.REFUSED

    @property
    def num_prompt_tokens(self) -> int:
        return sum(request.num_prompt_tokens for request in self.requests)

    @property
    def num_cached_tokens(self) -> int:
        return sum(request.num_cached_tokens for request in self.requests)

    @property
    def num_stored_tokens(self) -> int:
        return sum(request.num_stored_tokens for request in self.requests)

    @property
    def num_completion_tokens(self) -> int:
        return sum(request.num_completion_tokens for request in self.requests)


_call: ContextVar[CallRecord | None] = ContextVar("call", default=None)
"""The call that the current task works for. Tasks inherit it, so nothing between HTTP and the service passes it on."""


def current_call() -> CallRecord | None:
    """The call that this task works for; None = none over HTTP."""
    return _call.get()


def enter_call(record: CallRecord) -> None:
    """Make this task, and those it starts from now on, work for that call."""
    _call.set(record)


def new_request(request_id: str, num_sequences: int, adapter: str | None = None) -> RequestRecord:
    """The record of a request, added to the current call if there is one."""
    record = RequestRecord(request_id, sequences=[SequenceRecord() for _ in range(num_sequences)])
    call = _call.get()
    if call is not None:
        call.requests.append(record)
        call.adapter = adapter or ""
    return record


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
