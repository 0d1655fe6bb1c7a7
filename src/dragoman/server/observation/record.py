"""The facts of one call, and of each request in it, while it runs and when it has ended.

Does: hold them; let the service find the call that it works for. Does not: log or export (`watch` does). A call's record is
made by the endpoints, filled by the responder and the service; all on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from enum import StrEnum
from time import perf_counter, time

import msgspec
import numpy as np

from dragoman.errors import DeadlineTooShort, ServerError
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
    """The outcome of a call."""

    FINISHED = "finished"
    REFUSED = "refused"  # before anything was generated, by an error of the client's or because there was no room
    FAILED = "failed"
    CLIENT_GONE = "client_gone"


_FAILURES = frozenset({"timeout", "cancelled", "engine_failed", "engine_dead", "hook_error", "server_error"})
"""Kinds of errors that end a call which was taken; statuses do not tell, each API has its own."""


class SequenceRecord(msgspec.Struct):
    """One sequence of a request. `event_s`: when its events came. Tokens held back for a stop string are counted."""

    event_s: list[float] = msgspec.field(default_factory=list)
    num_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    finish_reason: FinishReason | None = None


class RequestRecord(msgspec.Struct):
    """One prompt of a call. Times in seconds on the monotonic clock. `queue_s`: None = the engine does not tell.

    `num_queued_tokens`: of its prompt, while it waits for its first output; `max_tokens`: it generates at most, in all its
    sequences. `asked`: in neutral words. `pictured_s`, `prepared_s`: when its pictures were there, and when it was ready for
    the engine; None = not yet, or there are none.
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
        """Note that the request is ready to run."""
        self.num_queued_tokens = len(request.prompt_ids)
        self.max_tokens = request.max_tokens * request.sampling.n

    def has_prompt(self, prompt: PromptInfo) -> None:
        """Its prompt was computed."""
        self.num_queued_tokens = 0
        self.num_prompt_tokens, self.num_cached_tokens = len(prompt.token_ids), prompt.num_cached_tokens
        self.prompt_text = prompt.text

    @property
    def num_completion_tokens(self) -> int:
        """Of all its sequences."""
        return sum([sequence.num_tokens for sequence in self.sequences])

    @property
    def num_draft_tokens(self) -> int:
        """Of all its sequences."""
        return sum([sequence.num_draft_tokens for sequence in self.sequences])

    @property
    def num_accepted_tokens(self) -> int:
        """Drafts that became completion tokens, of all its sequences."""
        return sum([sequence.num_accepted_tokens for sequence in self.sequences])

    @property
    def finish_reasons(self) -> list[str]:
        """Of those sequences that have ended."""
        return [str(sequence.finish_reason) for sequence in self.sequences if sequence.finish_reason is not None]

    @property
    def event_s(self) -> list[list[float]]:
        """Of each sequence that has begun, when its events came."""
        return [sequence.event_s for sequence in self.sequences if sequence.event_s]

    @property
    def first_token_s(self) -> float | None:
        """From its beginning to the first event, None = there was none."""
        firsts = [times[0] for times in self.event_s]
        return min(firsts) - self.begin_s if firsts else None

    @property
    def first_step_s(self) -> float:
        """When its first step began, as far as that is known; monotonic. The engine counts `queue_s` from when it got it."""
        return (self.begin_s if self.prepared_s is None else self.prepared_s) + (self.queue_s or 0.0)

    def gaps_s(self) -> list[float]:
        """Between the events of each sequence."""
        return [gap for times in self.event_s for gap in np.diff(times).tolist()]


class CallRecord(msgspec.Struct):
    """One call over HTTP. `caller`: the name of its key, "" = none; `standing`: of its requests beside others'.
    `status` 0 = nothing was sent. `error`: None = none.

    `timeout_s`: how long the client wants to wait for the whole answer, `patience_s`: for its next byte; None = as long as
    it takes; `timeout_name`: the field that says so. `num_expected_tokens`: of prompts that are not tokenised yet, at
    least. `take`: told of each request when its prompt has been tokenised; raises Overloaded if there is no room for it.
    `is_kept`: the call may say how long its model stays after it, `keep_s`; None = as the operator has said.
    `cancel` ends the call with an error. `trace`: the one that it belongs to. `began_s`: seconds since the epoch; `begin_s`,
    `end_s` on the monotonic clock.
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
        """The outcome of the call."""
        if self.is_client_gone:
            return Outcome.CLIENT_GONE
        if self.error is None:
            return Outcome.FINISHED
        is_failure = self.error.kind in _FAILURES and not isinstance(self.error, DeadlineTooShort)
        return Outcome.FAILED if is_failure or self.num_completion_tokens else Outcome.REFUSED

    @property
    def num_prompt_tokens(self) -> int:
        """Of all its requests."""
        return sum(request.num_prompt_tokens for request in self.requests)

    @property
    def num_cached_tokens(self) -> int:
        """Of all its prompts."""
        return sum(request.num_cached_tokens for request in self.requests)

    @property
    def num_stored_tokens(self) -> int:
        """Of these, those that were read from disk."""
        return sum(request.num_stored_tokens for request in self.requests)

    @property
    def num_completion_tokens(self) -> int:
        """Of all its requests."""
        return sum(request.num_completion_tokens for request in self.requests)


_call: ContextVar[CallRecord | None] = ContextVar("call", default=None)
"""The call that the current task works for. Tasks inherit it, so that nothing between HTTP and the service hands it on."""


def current_call() -> CallRecord | None:
    """The call that this task works for, None if it is none over HTTP."""
    return _call.get()


def enter_call(record: CallRecord) -> None:
    """This task, and those it starts from now on, work for that call."""
    _call.set(record)


def new_request(request_id: str, num_sequences: int, adapter: str | None = None) -> RequestRecord:
    """The record of a request, part of the current call if there is one."""
    record = RequestRecord(request_id, sequences=[SequenceRecord() for _ in range(num_sequences)])
    call = _call.get()
    if call is not None:
        call.requests.append(record)
        call.adapter = adapter or ""
    return record
