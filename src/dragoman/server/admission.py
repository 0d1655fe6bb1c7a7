"""Bounds the work that a model accepts: counts requests in flight and tokens of waiting prompts, and refuses the rest.

Forecasts when to retry, from ended calls. Called by the responder, the service and `run`, on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import ceil
from time import perf_counter

from dragoman.errors import Overloaded, Unavailable
from dragoman.server.observation.record import CallRecord, RequestRecord
from dragoman.types import (
    ChatPrompt,
    GenerationRequest,
    InfillPrompt,
    MixedPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
)

# LMI's `job_queue_size` and `max_rolling_batch_size` defaults (serving.properties reference, LMI v0.31)
DEFAULT_MAX_QUEUED = 1000
DEFAULT_MAX_RUNNING = 32

LEAST_RETRY_S, MOST_RETRY_S = 1, 60  # OpenAI's client libraries ignore a minute and more

_SAMPLE_S = 0.5  # between two measurements, while calls are in flight
_WEIGHT = 1 / 32  # of the newest answer, among those whose lengths are remembered
_HALF_LIFE_S = 30.0  # of busy time, after which a measurement counts half
_LEAST_INDEPENDENCE = 0.01  # of the two kinds of tokens, for their costs to be told apart; 1 = nothing in common
# That a picture counts for, roughly: its text has one for each token of its place in the prompt.
_PICTURE_CHARS = 10_000


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Limits; None = unlimited. `max_tokens`: of all prompts without an output yet. `max_of_caller`: its requests.

    `max_token_chars`: the characters of the model's longest token.
    """

    max_tokens: int | None = None
    max_of_caller: int | None = None
    max_token_chars: int = 1


class Admission:
    """Counts one model's running and waiting requests. Background requests have separate room of equal size."""

    def __init__(
        self,
        model: str,
        *,
        max_running: int = DEFAULT_MAX_RUNNING,
        max_queued: int = DEFAULT_MAX_QUEUED,
        bounds: QueueBounds | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        if max_running < 1:
            raise ValueError(f"max_running {max_running} is not allowed: it must be at least 1")
        if max_queued < 0:
            raise ValueError(f"max_queued {max_queued} is not allowed: it must be at least 0")
        self._bounds = bounds or QueueBounds()
        self._forecast = forecast or Forecast()
        self._num_of_caller: Counter[str] = Counter()
        self._model = model
        self.max_running = max_running
        self.max_queued = max_queued
        self.last_used_s = time.monotonic()
        self.num_in_flight = 0
        self._num_background = 0  # of these
        self._num_visitors = 0
        self._refusal = ""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def limit(self) -> int:
        return self.max_running + self.max_queued

    @property
    def is_draining(self) -> bool:
        return bool(self._refusal)

    @property
    def is_idle(self) -> bool:
        return self._idle.is_set()

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Keep the model from being unloaded while the block runs. Never refuses, and takes no room."""
        self._num_visitors += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_visitors -= 1
            self._leave()

    def check(self, record: CallRecord | None = None) -> None:
        """Raises: as `permit`, if the call could not be admitted now. Called before any work is done for it."""
        if self._refusal:
            raise Unavailable(self._refusal)
        is_background = _is_background(record)
        count = self._num_background if is_background else self.num_in_flight - self._num_background
        if count >= self.limit:
            raise self._overloaded(f"{count} requests in flight, {self.limit} allowed")
        if is_background:
            return
        caller = "" if record is None else record.caller
        most = self._bounds.max_of_caller
        if most is not None and (num_of_caller := self._num_of_caller[caller]) >= most:
            whose = f"of key {caller} " if caller else ""
            raise self._overloaded(f"{num_of_caller} requests {whose}in flight, {most} allowed for each key")
        if self._bounds.max_tokens is not None:
            self._check_tokens(1, self._forecast.num_queued_tokens)

    def permit(
        self, num_requests: int = 1, record: CallRecord | None = None, requests: Sequence[GenerationRequest] = ()
    ) -> AbstractContextManager[None]:
        """Hold room for a call while the block runs. Its prompt tokens need room, unless no others wait.

        A call is admitted whole while any room is left: one with more prompts than the limit must not be refused for
        ever. Raises on entering: Overloaded, or Unavailable during a drain.
        """
        return _Permit(self, num_requests, record, requests)

    def enter(self, num_requests: int, record: CallRecord | None, requests: Sequence[GenerationRequest]) -> None:
        """Admit a call and count it. Raises: as `permit`."""
        self.check(record)
        caller = "" if record is None else record.caller
        if _is_background(record):
            self._num_background += num_requests
        elif record is not None:
            if self._bounds.max_tokens is not None:
                record.num_expected_tokens = least_tokens(requests, self._bounds.max_token_chars)
                self._check_tokens(record.num_expected_tokens, self._forecast.num_queued_tokens)
            record.take = self._take
            self._forecast.enter(record)
        self.num_in_flight += num_requests
        if self._bounds.max_of_caller is not None and not _is_background(record):
            self._num_of_caller[caller] += num_requests
        self._idle.clear()

    def leave(self, num_requests: int, record: CallRecord | None) -> None:
        self.num_in_flight -= num_requests
        if _is_background(record):
            self._num_background -= num_requests
        else:
            if self._bounds.max_of_caller is not None:
                self._num_of_caller["" if record is None else record.caller] -= num_requests
            if record is not None:
                self._forecast.leave(record)
        self._leave()

    def retry_after_s(self) -> int:
        """Seconds after which a refused client should retry."""
        return self._forecast.retry_after_s()

    def _take(self, record: CallRecord, request: RequestRecord) -> None:
        """Count a prompt, now tokenised. Raises: Overloaded if it is too long to wait beside the others."""
        record.num_expected_tokens = max(record.num_expected_tokens - request.num_queued_tokens, 0)
        if self._bounds.max_tokens is not None:
            count = queued_tokens(record)
            try:
                self._check_tokens(count, self._forecast.num_queued_tokens - count)
            except Overloaded:
                request.num_queued_tokens = 0  # it does not wait: its room is free at once
                raise

    def _check_tokens(self, count: int, num_others: int) -> None:
        """Raises: Overloaded if `count` tokens may not wait beside the `num_others` of other calls."""
        most = self._bounds.max_tokens
        if most is not None and num_others and num_others + count > most:
            raise self._overloaded(
                f"{num_others} prompt tokens are waiting, {most} allowed; this call has at least {count}"
            )

    def _overloaded(self, why: str) -> Overloaded:
        message = f"Worker queue capacity exceeded for model: {self._model} ({why})"
        return Overloaded(message, retry_after_s=self.retry_after_s())

    def drain(self, why: str = "The server is shutting down") -> None:
        """Refuse every new call from now on, with that reason."""
        self._refusal = self._refusal or f"{why} and takes no new requests for model: {self._model}"

    async def wait_idle(self) -> None:
        """Return once no request is in flight and no visit is open."""
        while not self._idle.is_set():  # again: a call may have come before this was woken
            await self._idle.wait()

    def _leave(self) -> None:
        self.last_used_s = time.monotonic()
        if self.num_in_flight == 0 and self._num_visitors == 0:
            self._idle.set()


def _is_background(record: CallRecord | None) -> bool:
    return record is not None and record.standing.is_background


class _Permit:
    """A class, since the standard library's wrapper of a generator would cost each call time."""

    __slots__ = ("_admission", "_num_requests", "_record", "_requests")

    def __init__(
        self, admission: Admission, num_requests: int, record: CallRecord | None, requests: Sequence[GenerationRequest]
    ) -> None:
        self._admission = admission
        self._num_requests = num_requests
        self._record = record
        self._requests = requests

    def __enter__(self) -> None:
        self._admission.enter(self._num_requests, self._record, self._requests)

    def __exit__(self, *_: object) -> None:
        self._admission.leave(self._num_requests, self._record)


# --- the forecast -----------------------------------------------------------------------------------------------------


class Costs:
    """Seconds for a token of each kind, by least squares over recent measurements."""

    def __init__(self) -> None:
        # Sums for least squares over measurements of (prompt tokens, completion tokens, seconds).
        self._pp = self._pg = self._gg = self._pt = self._gt = 0.0
        self._tokens = self._seconds = 0.0

    def observe(self, num_prompt: int, num_generated: int, seconds: float) -> None:
        kept = 0.5 ** (seconds / _HALF_LIFE_S)
        p, g, t = float(num_prompt), float(num_generated), seconds
        self._pp, self._pg, self._gg = kept * self._pp + p * p, kept * self._pg + p * g, kept * self._gg + g * g
        self._pt, self._gt = kept * self._pt + p * t, kept * self._gt + g * t
        self._tokens, self._seconds = kept * self._tokens + p + g, kept * self._seconds + t

    def seconds(self, num_prompt: float, num_generated: float) -> float | None:
        """Seconds to compute these counts of tokens; None = nothing was measured yet."""
        if not self._tokens:
            return None
        determinant = self._pp * self._gg - self._pg * self._pg
        if determinant > _LEAST_INDEPENDENCE * self._pp * self._gg:
            prompt_s = (self._pt * self._gg - self._gt * self._pg) / determinant
            generated_s = (self._gt * self._pp - self._pt * self._pg) / determinant
            if prompt_s >= 0 and generated_s >= 0:
                return prompt_s * num_prompt + generated_s * num_generated
        return (num_prompt + num_generated) * self._seconds / self._tokens


class Forecast:
    """Forecasts when a model will have answered its calls. `clock`: in seconds."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._calls: dict[int, CallRecord] = {}
        self._costs = Costs()
        self._mean_length: float | None = None  # of answers
        self._gone_prompt = self._gone_generated = 0  # tokens that were computed for calls that have left
        self._seen_prompt = self._seen_generated = 0  # at the last look, of all calls
        self._since = 0.0  # when the last look was, or calls came again after there were none
        self._busy_s = 0.0  # between them
        # When the last answer was computed, and the answer: refusals must be cheap.
        self._told = (-_SAMPLE_S, LEAST_RETRY_S)

    def enter(self, call: CallRecord) -> None:
        if self._calls:
            self._look()
        else:
            self._since = self._clock()
        self._calls[id(call)] = call

    def leave(self, call: CallRecord) -> None:
        self._look()
        del self._calls[id(call)]
        has_finished = call.error is None
        for request in call.requests:
            self._gone_prompt += request.num_prompt_tokens - request.num_cached_tokens
            self._gone_generated += request.num_completion_tokens
            if has_finished and request.num_completion_tokens:
                self._note_length(request.num_completion_tokens)
        if not self._calls:
            self._busy_s += self._clock() - self._since

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens of requests without an output; of prompts not tokenised yet, the least possible number."""
        return sum(map(queued_tokens, self._calls.values()))

    def seconds(self) -> float | None:
        """Seconds until all calls in flight are answered; None = not known yet."""
        self._look()
        num_left = sum(self._num_left(request) for call in self._calls.values() for request in call.requests)
        return self._costs.seconds(self.num_queued_tokens, num_left)

    def retry_after_s(self) -> int:
        now = self._clock()
        if now - self._told[0] >= _SAMPLE_S:
            self._told = (now, min(max(ceil(self.seconds() or 0), LEAST_RETRY_S), MOST_RETRY_S))
        return self._told[1]

    def _num_left(self, request: RequestRecord) -> float:
        """The tokens that a request will probably still generate: up to the mean, above it as many as it has."""
        done = request.num_completion_tokens
        expected = self._mean_length if self._mean_length is not None else request.max_tokens
        return max(min(expected if done < expected else 2 * done, request.max_tokens) - done, 0)

    def _note_length(self, length: int) -> None:
        mean = self._mean_length
        self._mean_length = length if mean is None else mean + _WEIGHT * (length - mean)

    def _look(self) -> None:
        now = self._clock()
        busy_s = self._busy_s + now - self._since
        if busy_s < _SAMPLE_S or not self._calls:
            return
        prompt, generated = self._gone_prompt, self._gone_generated
        for call in self._calls.values():
            prompt += call.num_prompt_tokens - call.num_cached_tokens
            generated += call.num_completion_tokens
        num_prompt, num_generated = prompt - self._seen_prompt, generated - self._seen_generated
        if num_prompt or num_generated:  # else keep measuring: a long prompt is counted when it is done
            self._costs.observe(num_prompt, num_generated, busy_s)
            self._seen_prompt, self._seen_generated = prompt, generated
            self._since, self._busy_s = now, 0.0


def queued_tokens(call: CallRecord) -> int:
    """The waiting prompt tokens of a call, as far as known."""
    return call.num_expected_tokens + sum(request.num_queued_tokens for request in call.requests)


def least_tokens(requests: Sequence[GenerationRequest], max_token_chars: int) -> int:
    """About the least number of tokens in the prompts, without a template's own text."""
    return sum(_least(request, max_token_chars) for request in requests)


def _least(request: GenerationRequest, max_token_chars: int) -> int:
    if isinstance(request.prompt, InfillPrompt):
        return 1  # the part that does not fit is left out
    num_chars = num_characters(request.prompt)
    count = num_chars if isinstance(request.prompt, TokenPrompt) else num_chars // max_token_chars
    return max(min(count, request.truncate_prompt_tokens or count), 1)


def num_characters(prompt: Prompt) -> int:
    """The characters to tokenise, roughly; a token id counts as one."""
    match prompt:
        case TextPrompt():
            return len(prompt.text) + len(prompt.suffix or "")
        case TokenPrompt():
            return len(prompt.token_ids)
        case MixedPrompt():
            return sum(len(part) if isinstance(part, str) else 1 for part in prompt.parts)
        case InfillPrompt():
            files = sum(len(name) + len(text) for name, text in prompt.files)
            return files + len(prompt.before) + len(prompt.behind) + len(prompt.begun)
        case ChatPrompt():
            # Tools weigh by their printed form; it need not be exact.
            tools = len(str(prompt.tools)) if prompt.tools else 0
            return tools + sum(_content_characters(message.get("content")) for message in prompt.messages)


def _content_characters(content: object) -> int:
    """The same for a message's content; an address may have megabytes, and is not tokenised."""
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, Sequence):
        return 0
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
    return sum(len(text) if isinstance(text, str) else _PICTURE_CHARS for text in texts)
