"""The work in flight for a model, and a forecast of its time, for refusals.

Does: count the characters of prompts, and estimate the fewest tokens that they can be; add up the work left in the calls
in flight; learn from ended calls the speed and the lengths of answers. Does not: tokenise, render templates, or refuse
(`admission` does). Used by `admission` and by the service, on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from time import perf_counter

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

LEAST_RETRY_S, MOST_RETRY_S = 1, 60  # OpenAI's client libraries ignore a minute and more

_SAMPLE_S = 0.5  # between two measurements, while calls are in flight
_WEIGHT = 1 / 32  # of the newest answer, among those whose lengths are remembered
_HALF_LIFE_S = 30.0  # of busy time, after which a measurement counts half
_LEAST_INDEPENDENCE = 0.01  # of the two kinds of tokens, for their costs to be told apart; 1 = nothing in common
_PICTURE_CHARS = (
    10_000  # that a picture counts for, roughly: its text has one for each token of its place in the prompt
)


class Costs:
    """Seconds for a token of each kind, measured over the last while."""

    def __init__(self) -> None:
        # Sums for least squares over measurements of (prompt tokens, completion tokens, seconds).
        self._pp = self._pg = self._gg = self._pt = self._gt = 0.0
        self._tokens = self._seconds = 0.0

    def observe(self, num_prompt: int, num_generated: int, seconds: float) -> None:
        """Record that these prompt and completion tokens were computed in `seconds`."""
        kept = 0.5 ** (seconds / _HALF_LIFE_S)
        p, g, t = float(num_prompt), float(num_generated), seconds
        self._pp, self._pg, self._gg = kept * self._pp + p * p, kept * self._pg + p * g, kept * self._gg + g * g
        self._pt, self._gt = kept * self._pt + p * t, kept * self._gt + g * t
        self._tokens, self._seconds = kept * self._tokens + p + g, kept * self._seconds + t

    def seconds(self, num_prompt: float, num_generated: float) -> float | None:
        """The time that these counts of tokens would take; None = nothing was measured yet."""
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
    """The work of one model. `clock`: in seconds, from any starting point."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._calls: dict[int, CallRecord] = {}
        self._costs = Costs()
        self._mean_length: float | None = None  # of answers
        self._gone_prompt = self._gone_generated = 0  # tokens that were computed for calls that have left
        self._seen_prompt = self._seen_generated = 0  # at the last look, of all calls
        self._since = 0.0  # when the last look was, or calls came again after there were none
        self._busy_s = 0.0  # between them
        self._told = (
            -_SAMPLE_S,
            LEAST_RETRY_S,
        )  # when the last answer was computed, and the answer: refusals must be cheap

    def enter(self, call: CallRecord) -> None:
        """Count a call as in flight from now on."""
        if self._calls:
            self._look()
        else:
            self._since = self._clock()
        self._calls[id(call)] = call

    def leave(self, call: CallRecord) -> None:
        """Count a call as ended, and learn from it."""
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
        """Prompt tokens of requests in flight without an output; of prompts not tokenised yet, the fewest that can be."""
        return sum(map(queued_tokens, self._calls.values()))

    def seconds(self) -> float | None:
        """Seconds until all calls in flight are answered; None = not known yet."""
        self._look()
        num_left = sum(self._num_left(request) for call in self._calls.values() for request in call.requests)
        return self._costs.seconds(self.num_queued_tokens, num_left)

    def retry_after_s(self) -> int:
        """Seconds after which a refused client should retry."""
        now = self._clock()
        if now - self._told[0] >= _SAMPLE_S:
            self._told = (now, min(max(ceil(self.seconds() or 0), LEAST_RETRY_S), MOST_RETRY_S))
        return self._told[1]

    def _num_left(self, request: RequestRecord) -> float:
        """The tokens that a request is expected to generate yet. One above the mean is expected to double its length."""
        done = request.num_completion_tokens
        expected = self._mean_length if self._mean_length is not None else request.max_tokens
        return max(min(expected if done < expected else 2 * done, request.max_tokens) - done, 0)

    def _note_length(self, length: int) -> None:
        mean = self._mean_length
        self._mean_length = length if mean is None else mean + _WEIGHT * (length - mean)

    def _look(self) -> None:
        """Learn from what was computed since the last look, unless that was just now."""
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
    """The prompt tokens of a call that wait, so far as known."""
    return call.num_expected_tokens + sum(request.num_queued_tokens for request in call.requests)


def least_tokens(requests: Sequence[GenerationRequest], max_token_chars: int) -> int:
    """About the fewest tokens that the prompts can have together; a template's own text does not count."""
    return sum(_least(request, max_token_chars) for request in requests)


def _least(request: GenerationRequest, max_token_chars: int) -> int:
    if isinstance(request.prompt, InfillPrompt):
        return 1  # the part that does not fit is left out
    num_chars = num_characters(request.prompt)
    count = num_chars if isinstance(request.prompt, TokenPrompt) else num_chars // max_token_chars
    return max(min(count, request.truncate_prompt_tokens or count), 1)


def num_characters(prompt: Prompt) -> int:
    """The characters to tokenise, roughly; a token id counts as one, since it is decoded."""
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
