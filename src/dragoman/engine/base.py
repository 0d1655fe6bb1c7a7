"""The protocol that every engine implements, and all that the server half knows about engines.

Called by the service, on the event loop. `tests/contract` checks these guarantees for every engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence, Set
from contextvars import ContextVar
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from dragoman.errors import InvalidParameter, UnsupportedFeature
from dragoman.histogram import Histogram
from dragoman.types import (
    AnswerWatch,
    Detail,
    EngineOutput,
    EngineRequest,
    Grammar,
    PictureLayout,
    PooledText,
    SamplingParams,
    StopCriterion,
    StopStrings,
    TokenMasker,
)

MAX_ATTEMPTS = 4  # of an engine with replicas: a request that crashes its replica must not crash all of them

losses: ContextVar[list[str] | None] = ContextVar("losses", default=None)
"""Losses of replicas after a first output, noted by the requests of one call; None = not needed."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of an engine; it refuses everything else up front, by name. `max_model_len` fits its cache.

    `unsupported`: fields of SamplingParams that must have their defaults. `grammar_kinds` None = grammars of all kinds,
    also in frames; else those of these kinds, without a frame.
    """

    max_model_len: int  # prompt + completion tokens of one sequence
    vocab_size: int
    max_logprobs: int = 1_000_000
    prompt_logprobs: bool = True
    beam_search: bool = False
    plain_beams: bool = False  # beams use raw log-probabilities: no parameter may change them
    best_of: bool = False
    grammar: bool = False
    stop_strings: bool = False  # of ranked sequences; others need not be watched
    speculative: bool = False  # the engine proposes drafts
    adapters: tuple[str, ...] = ()  # adapters that requests may name
    cache_salt: bool = False
    cache_keep: bool = False  # prompts are kept beyond its memory, for the time that requests set
    cache_key: bool = False  # it has replicas, chosen by a request's key
    priority: bool = False  # waiting requests may overtake each other
    progress: bool = False  # it reports the progress of prompts, see `TellingProgress`
    queue_timeout: bool = False  # it can give up requests that have not begun by a time
    pictures: bool = False  # prompts may contain pictures
    context_shift: bool = False  # answers may continue beyond the context
    bounds_answers: bool = False  # reasoning ends at its budget; reasoning and content end when they repeat themselves
    grammar_kinds: frozenset[str] | None = None
    unsupported: frozenset[str] = frozenset()

    def can_follow(self, grammar: Grammar) -> bool:
        return self.grammar and (
            self.grammar_kinds is None or (grammar.kind in self.grammar_kinds and not grammar.frame)
        )

    def check(self, request: EngineRequest) -> None:
        """Every engine calls it in `generate`. Raises: UnsupportedFeature, InvalidParameter."""
        sampling = request.sampling
        if sampling.num_beams > 1 and not self.beam_search:
            raise _unsupported("num_beams", sampling.num_beams, "1")
        if sampling.num_beams > 1 and self.plain_beams:
            _check_neutral(sampling, _CHANGES, " in a beam search")
            if sampling.grammar is not None:
                raise _unsupported("grammar", _grammar_words(sampling.grammar), "left out in a beam search")
        if sampling.num_beams == 1 and request.is_ranked and not self.best_of:
            raise _unsupported("best_of", sampling.num_sequences, f"n ({sampling.n})")
        if sampling.prompt_logprobs is not None and not self.prompt_logprobs:
            raise _unsupported("prompt_logprobs", sampling.prompt_logprobs, "null")
        if sampling.grammar is not None and not self.can_follow(sampling.grammar):
            raise _unsupported("grammar", _grammar_words(sampling.grammar), self._grammars())
        if request.stop is not None and request.is_ranked and not self.stop_strings:
            raise _unsupported("stop", ", ".join(request.stop.strings), "none where sequences are ranked")
        for name, count in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
            if count is not None and count > self.max_logprobs:
                raise InvalidParameter(f"{name} must be at most {self.max_logprobs}, got {count}", param=name)
        if request.adapter is not None and request.adapter not in self.adapters:
            raise _unsupported("adapter", request.adapter, f"one of: {', '.join(self.adapters) or 'none'}")
        if request.cache_salt and not self.cache_salt:
            raise _unsupported("cache_salt", request.cache_salt, "empty")
        if request.cache_keep_s and not self.cache_keep:
            raise _unsupported("cache_keep_s", request.cache_keep_s, "0 or left out")
        if request.priority and not self.priority:
            raise _unsupported("priority", -request.priority, "0")  # as clients count, the smallest first
        if request.start_by_s is not None and not self.queue_timeout:
            raise UnsupportedFeature("queue_timeout is not supported by this engine: it must be left out")
        if request.pictures and not self.pictures:
            raise _unsupported("pictures", len(request.pictures), "none")
        if request.shift is not None and (not self.context_shift or sampling.num_beams > 1 or request.pictures):
            raise _unsupported("shift", request.shift, "left out")
        unsupported = self.unsupported if self.bounds_answers else self.unsupported | _BOUNDS
        _check_neutral(sampling, sorted(unsupported))

    @property
    def has_budgets(self) -> bool:
        return self.bounds_answers and "thinking_token_budget" not in self.unsupported

    def _grammars(self) -> str:
        return "one of: " + ", ".join(sorted(self.grammar_kinds)) if self.grammar and self.grammar_kinds else "none"


_NEUTRAL = SamplingParams()
_BOUNDS = frozenset(("thinking_token_budget", "repetition_detection"))
_CHANGES = (
    "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words", "allowed_token_ids",
    "min_tokens", "dry_multiplier", "thinking_token_budget", "repetition_detection",
)  # fmt: skip


def _check_neutral(sampling: SamplingParams, names: Iterable[str], where: str = "") -> None:
    """Raises: UnsupportedFeature for the first of these fields without its default."""
    for name in names:
        value, neutral = getattr(sampling, name), getattr(_NEUTRAL, name)
        if value != neutral:
            raise _unsupported(name, value, ("left out" if neutral in (None, (), {}) else str(neutral)) + where)


def _grammar_words(grammar: Grammar) -> str:
    return f"{grammar.kind} within other text" if grammar.frame else grammar.kind


def _unsupported(name: str, value: object, allowed: str) -> UnsupportedFeature:
    if isinstance(value, msgspec.Struct):
        value = msgspec.json.encode(value).decode()
    return UnsupportedFeature(f"{name} {value} is not supported by this engine: it must be {allowed}", param=name)


@dataclass(frozen=True, slots=True)
class UpstreamHealth:
    name: str
    is_healthy: bool
    num_outstanding: int


@dataclass(frozen=True, slots=True)
class Health:
    """`is_recovering`: it is being repaired, and a restart of the process would not help."""

    is_alive: bool
    reason: str = ""
    num_running: int = 0
    num_waiting: int = 0
    num_used_blocks: int = 0
    num_blocks: int = 0
    upstreams: tuple[UpstreamHealth, ...] = ()
    is_recovering: bool = False


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters of an engine since it was made; None = not counted."""

    num_steps: int | None = None  # forward passes
    num_prompt_tokens: int | None = None  # computed, including recomputation
    num_generated_tokens: int | None = None
    num_preemptions: int | None = None
    num_context_shifts: int | None = None  # of answers that went on beyond the context
    num_prefix_queries: int | None = None  # prompt tokens looked up in the prefix cache
    num_prefix_hits: int | None = None  # of these, those found there
    num_stored_hits: int | None = None  # of these, those read from disk
    stored_saved_s: float | None = None  # the seconds of computing those
    num_stored_read_bytes: int | None = None  # of prefixes
    num_stored_written_bytes: int | None = None
    num_stored_dropped: int | None = None  # blocks not written, as the disk was full or too slow
    stored_read_s: Histogram | None = None  # seconds that each read of a prefix took
    stored_write_s: Histogram | None = None  # seconds that writing each block took
    num_pictures: int | None = None  # of requests
    num_picture_hits: int | None = None  # of these, those embedded or queued before
    num_draft_tokens: int | None = None  # drafts of speculative decoding that were verified
    num_accepted_tokens: int | None = None  # of these, those that are part of the answer
    step_s: Histogram | None = None  # seconds that steps took
    step_tokens: Histogram | None = None  # tokens computed in steps
    step_sequences: Histogram | None = None  # sequences computed in steps
    mask_wait_s: Histogram | None = None  # seconds that sampling waited for each mask of a grammar
    num_hedges: int | None = None  # requests for which a second server was called because the first was slow
    num_hedges_won: int | None = None  # of these, those that the second one answered first
    num_restarts: int | None = None  # engines that replaced a dead one

    def plus(self, later: EngineStats) -> EngineStats:
        """The sum of the counters of two engines that ran one after the other."""
        sums: dict[str, Any] = {}
        for field in fields(self):
            mine, more = getattr(self, field.name), getattr(later, field.name)
            sums[field.name] = (
                _sum(mine, more) if mine is not None and more is not None else (more if mine is None else mine)
            )
        return EngineStats(**sums)


def _sum(first: Any, second: Any) -> Any:
    if not isinstance(first, Histogram):
        return first + second
    total = Histogram(first.bounds)
    total.merge(first)
    total.merge(second)
    return total


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes. `least_cache`: with less, no request of full length could run. `useful_cache`: more would be idle."""

    weights: int
    drafts: int = 0
    least_cache: int = 0
    useful_cache: int = 0

    @property
    def least(self) -> int:
        return self.weights + self.drafts + self.least_cache


@dataclass(frozen=True, slots=True)
class EngineTools:
    """Functions on text for an engine, made for its model's tokenizer. Any thread; fast, except `compile_grammar`.

    `compile_grammar`: a grammar's start state. Raises: InvalidRequest. `lark_of`: the same grammar as one text in
    llguidance's Lark, for engines that compile it themselves; takes the tokens that end an output. `watch_stops`: the
    test for stop strings, of sequences with at least `min_tokens` tokens. `watch_answer`: a request's watch for the end
    of reasoning, or for repeated content.
    """

    compile_grammar: Callable[[Grammar], TokenMasker]
    watch_stops: Callable[[StopStrings, int], StopCriterion]
    lark_of: Callable[[Grammar, Set[int]], str] | None = None
    watch_answer: Callable[[EngineRequest], AnswerWatch | None] = lambda _request: None

    def criterion_of(self, request: EngineRequest) -> StopCriterion | None:
        """The test for stop strings in ranked sequences, which clients get whole; None for others."""
        if request.stop is None or not request.is_ranked:
            return None
        return self.watch_stops(request.stop, request.sampling.min_tokens)


@dataclass(frozen=True, slots=True)
class PromptProgress:
    num_tokens: int
    num_cached: int
    num_read: int
    since_s: float
    has_begun: bool
    num_ahead: int
    expected_s: float | None


@runtime_checkable
class TellingProgress(Protocol):
    def progress(self, request_id: str) -> PromptProgress | None:
        """The progress a moment ago; None = unknown. Each call makes the engine update it. On the event loop."""
        ...


async def deliver(engine: Engine, request: EngineRequest, take: Take) -> None:
    """Pass each output to `take` as it comes; return when all have ended. Cancelling this aborts the request.

    An engine may have this as a method, which delivers all outputs of a step at once: no task has to wait for each.
    Raises: as `generate`, and errors of `take`.
    """
    delivers: Callable[[EngineRequest, Take], Awaitable[None]] | None = getattr(engine, "deliver", None)
    if delivers is not None:  # `isinstance` would check the whole protocol for each request
        return await delivers(request, take)
    outputs = engine.generate(request)
    try:
        async for output in outputs:
            if not take(output):
                return None
    finally:
        await outputs.aclose()


@runtime_checkable
class Checking(Protocol):
    def check(self, request: EngineRequest) -> None:
        """Raises the error that `generate` would raise for the request on an idle engine."""
        ...


def check_request(engine: Engine, request: EngineRequest) -> None:
    if isinstance(engine, Checking):
        engine.check(request)
    else:
        engine.capabilities.check(request)


class PictureTexts(Protocol):
    """Facts about pictures for writing prompts. Immutable; used on any thread. `marker`: the chat template's text for a
    picture; `{}` in it stands for the picture's number, from 1.
    """

    @property
    def marker(self) -> str: ...

    def layout(self, width: int, height: int, detail: Detail) -> PictureLayout:
        """Text and placeholders for a picture of that size; fast. Raises: ValueError, one line, if it is not allowed."""
        ...


@dataclass(frozen=True, slots=True)
class PictureRules:
    """`placeholder_id`: the token in place of one embedding. `splits_texts`: texts around pictures are tokenised
    separately.
    """

    processor: PictureTexts
    placeholder_id: int
    splits_texts: bool = False


class AdapterLoading(Protocol):
    async def load_adapter(self, name: str, directory: Path, *, is_replacing: bool = False) -> None:
        """Serve the adapter in a local directory under a name, which is among its capabilities when this returns.

        Raises: Conflict (the name is taken); InvalidRequest (it does not fit this model); NoMemory (all places are
        taken); Overloaded (until requests have ended); EngineDead.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Refuse the adapter to further requests; running ones keep it. Raises: NotFound."""
        ...


@dataclass(frozen=True, slots=True)
class PooledRows:
    """A row for each text, f32 [texts, size], or a list if shapes differ. `queue_s`: until the first was computed."""

    rows: Any
    queue_s: float
    num_tokens: int


class TextPooling(Protocol):
    """An engine that makes vectors or scores of texts. On the event loop."""

    async def pool(self, texts: Sequence[PooledText]) -> PooledRows:
        """Cancelling this drops texts that are not computed yet. Raises: Overloaded, EngineFailed, EngineDead,
        Cancelled.
        """
        ...


class Deaths:
    """Informs listeners when an engine of this process dies; each engine's `health` says whether it is the one."""

    def __init__(self) -> None:
        self._listeners: set[Callable[[], None]] = set()  # replaced, never changed: engines call from their own threads

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever an engine has died. It must be fast, and work on any thread."""
        self._listeners = {*self._listeners, listener}

    def ignore(self, listener: Callable[[], None]) -> None:
        self._listeners = self._listeners - {listener}

    def tell(self) -> None:
        """Report a death, which the engine's `health` shows already."""
        for listener in self._listeners:
            listener()


DEATHS = Deaths()

Take = Callable[[EngineOutput], bool]
"""Takes an output of a request, on its event loop; False = the request needs no more of them."""


class Outputs(Protocol):
    def __aiter__(self) -> AsyncIterator[EngineOutput]: ...

    def __anext__(self) -> Awaitable[EngineOutput]: ...

    async def aclose(self) -> None: ...


class Engine(Protocol):
    """Runs requests. One instance serves one model, from one `start` to one `shutdown`.

    Failures: an error in one request, or caused by it, reaches only that request. If the engine itself dies, every
    request fails with EngineDead, now and later, and `health` has the reason.

    Same answer: a request has the same tokens whenever it runs, alone or not, unless the engine's kernels depend on the
    batch (docs/architecture.md).
    """

    @property
    def capabilities(self) -> Capabilities:
        """The same before and after `start`, apart from adapters loaded later."""
        ...

    async def start(self) -> None:
        """Finish loading and begin to run. Does nothing if it runs. Raises EngineDead after its end."""
        ...

    def generate(self, request: EngineRequest) -> Outputs:
        """Outputs of the request as they are made, until each of the `n` sequences has had one with a `finish_reason`.

        The request begins when the first output is requested. Closing the iterator aborts it and frees its blocks
        within a step. Ranked sequences (beams, best_of > n) come whole, best first, when all have ended.

        Raises, with the first output: the errors of `Capabilities.check`; CapacityError (it can never fit);
        InvalidRequest (no prompt, a grammar that does not compile); Overloaded (shutting down); QueueTimeout (its first
        step has not begun in time). At any time: RequestTimeout (its deadline has passed, or is known to be too close);
        EngineFailed; EngineDead (also if it was not started); Cancelled (shut down).
        """
        ...

    def health(self) -> Health:
        """Fast, on any thread, at any time."""
        ...

    def stats(self) -> EngineStats:
        """Totals so far. Fast, on any thread, at any time."""
        ...

    async def shutdown(self, drain_s: float) -> None:
        """Refuse requests, wait up to `drain_s` seconds for running ones, abort the rest, release the runtime.

        Calling it again, or without a start, is allowed.
        """
        ...
