"""The protocol every engine implements; all that the server half knows about engines.

Does: name what an engine can do, how it is driven and what it promises; hold the state by which it takes requests. Does not:
contain an engine. Called by the service, on the event loop. What is promised here, `tests/contract` asks of every engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence, Set
from contextvars import ContextVar
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from dragoman.errors import EngineDead, InvalidParameter, Overloaded, UnsupportedFeature
from dragoman.histogram import Histogram
from dragoman.types import (
    AnswerWatch,
    Detail,
    EngineOutput,
    EngineRequest,
    Grammar,
    PooledText,
    SamplingParams,
    StopCriterion,
    StopStrings,
    TokenMasker,
)

MAX_ATTEMPTS = 4  # of an engine with replicas: a request that itself ends its replica must not end all of them

losses: ContextVar[list[str] | None] = ContextVar("losses", default=None)
"""Where the requests of one call note that their replica was lost after their first output; None = nobody wants to know.

Only who sends the call's answer knows whether a byte of it has gone out.
"""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of an engine, as data: it refuses everything else up front, by name. `max_model_len` fits its cache.

    `unsupported`: fields of SamplingParams that must be as they are by default. `grammar_kinds` None = grammars of all
    kinds, in frames too; else those of these kinds, without a frame.
    """

    max_model_len: int  # prompt + completion tokens of one sequence
    vocab_size: int
    max_logprobs: int = 1_000_000
    prompt_logprobs: bool = True
    beam_search: bool = False
    plain_beams: bool = False  # beams go by raw log-probabilities: nothing that changes them may be asked for
    best_of: bool = False
    grammar: bool = False
    stop_strings: bool = False  # of ranked sequences; others need not be watched
    speculative: bool = False  # the engine guesses tokens
    adapters: tuple[str, ...] = ()  # names that requests may ask for
    cache_salt: bool = False
    cache_keep: bool = False  # prompts are kept beyond its memory, and as long as requests ask
    cache_key: bool = False  # it has replicas, of which a request's key chooses one
    priority: bool = False  # waiting requests may overtake each other
    progress: bool = False  # it tells how far prompts are, see `TellingProgress`
    queue_timeout: bool = False  # requests that have not begun by a time can be given up
    pictures: bool = False  # prompts may hold pictures
    context_shift: bool = False  # answers may go on beyond the context
    bounds_answers: bool = False  # reasoning ends at its budget, reasoning and content where they repeat themselves
    grammar_kinds: frozenset[str] | None = None
    unsupported: frozenset[str] = frozenset()

    def can_follow(self, grammar: Grammar) -> bool:
        """True if answers may be asked to keep to a grammar of that kind, and in a frame if it has one."""
        return self.grammar and (
            self.grammar_kinds is None or (grammar.kind in self.grammar_kinds and not grammar.frame)
        )

    def check(self, request: EngineRequest) -> None:
        """The one test of whether such an engine can do what a request asks; every engine makes it in `generate`.

        How long a request may be is for the engine to say, which knows why. Raises: UnsupportedFeature, InvalidParameter.
        """
        sampling = request.sampling
        if sampling.num_beams > 1 and not self.beam_search:
            raise _unsupported("num_beams", sampling.num_beams, "1")
        if sampling.num_beams > 1 and self.plain_beams:
            _check_plain(sampling)
        if sampling.num_beams == 1 and request.is_ranked and not self.best_of:
            raise _unsupported("best_of", sampling.num_sequences, f"n ({sampling.n})")
        if sampling.prompt_logprobs is not None and not self.prompt_logprobs:
            raise _unsupported("prompt_logprobs", sampling.prompt_logprobs, "null")
        if sampling.grammar is not None and not self.can_follow(sampling.grammar):
            raise _unsupported("grammar", _grammar_words(sampling.grammar), self._grammars())
        if request.stop is not None and request.is_ranked and not self.stop_strings:
            raise _unsupported("stop", ", ".join(request.stop.strings), "none where sequences are ranked")
        for name, given in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
            if given is not None and given > self.max_logprobs:
                raise InvalidParameter(f"{name} must be at most {self.max_logprobs}, got {given}", param=name)
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
        if unsupported:
            _check_fields(sampling, unsupported)

    @property
    def has_budgets(self) -> bool:
        """True if reasoning may be bounded."""
        return self.bounds_answers and "thinking_token_budget" not in self.unsupported

    def _grammars(self) -> str:
        return "one of: " + ", ".join(sorted(self.grammar_kinds)) if self.grammar and self.grammar_kinds else "none"


_NEUTRAL = SamplingParams()
_BOUNDS = frozenset(("thinking_token_budget", "repetition_detection"))
_CHANGES = (
    "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words", "allowed_token_ids",
    "min_tokens", "dry_multiplier", "thinking_token_budget", "repetition_detection",
)  # fmt: skip


def _check_fields(sampling: SamplingParams, unsupported: Collection[str]) -> None:
    """Raises: UnsupportedFeature for the first of these fields that is not as by default."""
    for name in sorted(unsupported):
        value, neutral = getattr(sampling, name), getattr(_NEUTRAL, name)
        if value != neutral:
            raise _unsupported(name, value, "left out" if neutral in (None, (), {}) else str(neutral))


def _check_plain(sampling: SamplingParams) -> None:
    """Raises: UnsupportedFeature for what changes the log-probabilities that beams go by."""
    for name in _CHANGES:
        value, neutral = getattr(sampling, name), getattr(_NEUTRAL, name)
        if value != neutral:
            allowed = "left out" if neutral in (None, (), {}) else str(neutral)
            raise _unsupported(name, value, f"{allowed} in a beam search")
    if sampling.grammar is not None:
        raise _unsupported("grammar", _grammar_words(sampling.grammar), "left out in a beam search")


def _grammar_words(grammar: Grammar) -> str:
    return f"{grammar.kind} within other text" if grammar.frame else grammar.kind


def _unsupported(name: str, value: object, allowed: str) -> UnsupportedFeature:
    if isinstance(value, msgspec.Struct):
        value = msgspec.json.encode(value).decode()
    return UnsupportedFeature(f"{name} {value} is not supported by this engine: it must be {allowed}", param=name)


@dataclass(frozen=True, slots=True)
class UpstreamHealth:
    """A server that an engine sends requests to. `num_outstanding`: requests that it has not answered to the end."""

    name: str
    is_healthy: bool
    num_outstanding: int


@dataclass(frozen=True, slots=True)
class Health:
    """`is_alive` False = the engine is dead and `reason` says why. Counters are gauges at the time of the call.

    `is_recovering`: it takes no requests now, but something is being done about it, and a restart of the process would not
    help. `upstreams`: of an engine that has servers behind it.
    """

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
    """Counters of an engine since it was made; None = it does not count that."""

    num_steps: int | None = None  # forward passes
    num_prompt_tokens: int | None = None  # computed, recomputation included
    num_generated_tokens: int | None = None
    num_preemptions: int | None = None
    num_prefix_queries: int | None = None  # prompt tokens looked up in the prefix cache
    num_prefix_hits: int | None = None  # of these, those found there
    num_stored_hits: int | None = None  # of these, those that were read from disk
    stored_saved_s: float | None = None  # seconds that computing those would have taken
    num_stored_read_bytes: int | None = None  # of prefixes
    num_stored_written_bytes: int | None = None
    num_stored_dropped: int | None = None  # blocks that were not written, as the disk was full or too slow
    stored_read_s: Histogram | None = None  # seconds that each read of a prefix took
    stored_write_s: Histogram | None = None  # seconds that writing each block took
    num_pictures: int | None = None  # of requests
    num_picture_hits: int | None = None  # of these, those that had been embedded, or were about to be
    num_draft_tokens: int | None = None  # proposed by speculative decoding, and verified
    num_accepted_tokens: int | None = None  # of these, those that are part of the answer
    step_s: Histogram | None = None  # seconds that steps took
    step_tokens: Histogram | None = None  # tokens that they computed
    step_sequences: Histogram | None = None  # sequences that they computed for
    mask_wait_s: Histogram | None = None  # seconds that sampling waited for each mask of a grammar
    num_hedges: int | None = None  # requests for which a second server was asked while the first one was only slow
    num_hedges_won: int | None = None  # of these, those that the second one answered first
    num_restarts: int | None = None  # engines that took the place of one that had died

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
    """Bytes that an engine will take for a model, by configuration and file sizes, before anything is loaded.

    `least_cache`: with less, no request of the model's context length could run. `useful_cache`: more would lie idle.
    """

    weights: int
    drafts: int = 0
    least_cache: int = 0
    useful_cache: int = 0

    @property
    def least(self) -> int:
        """The bytes without which the model cannot be loaded."""
        return self.weights + self.drafts + self.least_cache


@dataclass(frozen=True, slots=True)
class EngineTools:
    """Functions on text for an engine, made for its model's tokenizer; requests name sources only.

    `compile_grammar`: a grammar's start state; takes long unless it was compiled before. Any thread. Raises: InvalidRequest.
    `lark_of`: the same grammar, which compiles, as one text in llguidance's Lark, for engines that compile by themselves;
    it is given the tokens that end an output.
    `watch_stops`: the test for stop strings, of sequences with at least `min_tokens` tokens; quick, any thread.
    `watch_answer`: what ends a request's reasoning, or content that repeats itself; None = nothing does. Quick, any thread.
    """

    compile_grammar: Callable[[Grammar], TokenMasker]
    watch_stops: Callable[[StopStrings, int], StopCriterion]
    lark_of: Callable[[Grammar, Set[int]], str] | None = None
    watch_answer: Callable[[EngineRequest], AnswerWatch | None] = lambda _request: None


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """The progress of a request that has no token yet. Tokens are its prompt's; `num_read` includes those that were cached.

    `since_s`: for how long its prompt has been read. `num_ahead`: requests that begin before it. `expected_s`: until its
    first token, by forecast; None = not known.
    """

    num_tokens: int
    num_cached: int
    num_read: int
    since_s: float
    has_begun: bool
    num_ahead: int
    expected_s: float | None


@runtime_checkable
class TellingProgress(Protocol):
    """An engine that also knows how far requests without a first token are."""

    def progress(self, request_id: str) -> PromptProgress | None:
        """As of a moment ago; None = not known, not yet or no longer. On the event loop.

        Asking has the engine look, so that the next answer is newer.
        """
        ...


class Delivering(Protocol):
    """An engine that hands over all outputs of a step at once, so that no task has to wait for each."""

    async def deliver(self, request: EngineRequest, take: Take) -> None:
        """Run the request and hand each output to `take` as it comes; return when all sequences have ended.

        Raises: as `generate`, and what `take` raises. Cancelling this aborts the request.
        """
        ...


async def deliver(engine: Engine, request: EngineRequest, take: Take) -> None:
    """Run a request on any engine, and hand its outputs to `take`, until that says that it needs no more.

    Raises: as `Delivering.deliver`.
    """
    delivers: Callable[[EngineRequest, Take], Awaitable[None]] | None = getattr(engine, "deliver", None)
    if delivers is not None:  # `isinstance` would look at the whole protocol for each request
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
    """An engine that also knows, without running it, whether a request could run."""

    def check(self, request: EngineRequest) -> None:
        """Raises what `generate` would raise for the request if nothing else ran."""
        ...


def check_request(engine: Engine, request: EngineRequest) -> None:
    """Raises what the engine would refuse the request with, as far as it knows that without running it."""
    if isinstance(engine, Checking):
        engine.check(request)
    else:
        engine.capabilities.check(request)


class PictureText(Protocol):
    """The text that replaces a picture's marker in a prompt, and the placeholders in that text."""

    @property
    def text(self) -> str: ...

    @property
    def num_embeddings(self) -> int: ...


class PictureTexts(Protocol):
    """Facts about pictures for writing prompts with them. Immutable; used on any thread.

    `marker`: what a chat template writes where a picture goes; `{}` in it stands for the picture's number in the
    conversation, from 1.
    """

    @property
    def marker(self) -> str: ...

    def layout(self, width: int, height: int, detail: Detail) -> PictureText:
        """Text and placeholders for a picture of that size; quick. Raises: ValueError, one line, if it cannot be taken."""
        ...


@dataclass(frozen=True, slots=True)
class PictureRules:
    """The place of pictures in the prompts of an engine that takes them in.

    `placeholder_id`: the token that stands for one embedding; the text of a picture has it as often as it says.
    `splits_texts`: what stands before, between and behind the pictures is tokenised each by itself, as a text that begins
    there.
    """

    processor: PictureTexts
    placeholder_id: int
    splits_texts: bool = False


class AdapterLoading(Protocol):
    """An engine whose adapters come and go while it runs. On the event loop."""

    async def load_adapter(self, name: str, directory: Path, *, is_replacing: bool = False) -> None:
        """Serve the adapter in a directory on this machine under a name, which its capabilities tell when this returns.

        `is_replacing`: it may take the place of another one of that name.
        Raises: Conflict (the name is taken); InvalidRequest (not an adapter, or not one that the model can take);
        NoMemory (all places are taken); Overloaded (until requests have ended); EngineDead.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Take no more requests for it; those that run go on with it. Raises: NotFound."""
        ...


@dataclass(frozen=True, slots=True)
class PooledRows:
    """Results for texts, in their order: a row each, f32 [texts, size], or a list where they have no common shape.

    `queue_s`: until the first of them was computed. `num_tokens`: of all.
    """

    rows: Any
    queue_s: float
    num_tokens: int


class TextPooling(Protocol):
    """An engine that makes vectors or scores of texts, besides generation or in its place. On the event loop."""

    async def pool(self, texts: Sequence[PooledText]) -> PooledRows:
        """A row for each text; cancelling this drops what is not computed yet.

        A row does not depend on what is computed with it, as far as the kernels' do not. Raises: Overloaded (as many tokens
        wait as may, or the engine shuts down), EngineFailed, EngineDead (also if it was not started), Cancelled (shut down).
        """
        ...


class Deaths:
    """Tells its listeners that an engine of this process has died; each engine's `health` says whether it is the one."""

    def __init__(self) -> None:
        self._listeners: set[Callable[[], None]] = (
            set()
        )  # replaced, never changed: engines tell on threads of their own

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called, quickly and on any thread, each time an engine has died."""
        self._listeners = {*self._listeners, listener}

    def ignore(self, listener: Callable[[], None]) -> None:
        """Call it no more."""
        self._listeners = self._listeners - {listener}

    def tell(self) -> None:
        """An engine has died, and its `health` says so."""
        for listener in self._listeners:
            listener()


DEATHS = Deaths()

NOT_STARTED = "the engine was not started"


class Life:
    """The state of an engine, by which requests are taken or refused. `death`: why none can run, "" while they can."""

    def __init__(self) -> None:
        self.death = NOT_STARTED
        self.is_draining = False

    def check_open(self) -> None:
        """Raises EngineDead or Overloaded if no request can be taken."""
        if self.death:
            raise EngineDead(self.death)
        if self.is_draining:
            raise Overloaded("the server is shutting down")

    def end(self) -> None:
        """Let no request run any more; the reason of an earlier death is kept."""
        self.death = self.death or "the engine was shut down"


Take = Callable[[EngineOutput], bool]
"""Takes an output of a request, on its event loop; False = the request needs no more of them."""


class Outputs(Protocol):
    """The outputs of one request. The caller closes it, finished or not; closing it twice does nothing."""

    def __aiter__(self) -> AsyncIterator[EngineOutput]: ...

    def __anext__(self) -> Awaitable[EngineOutput]: ...

    async def aclose(self) -> None:
        """End the request, if it still runs."""
        ...


class Engine(Protocol):
    """Runs requests. One instance serves one model, from one `start` to one `shutdown`.

    Failures: what a request does wrong, or breaks, is that request's error and nobody else's. If the engine itself dies,
    every request fails with EngineDead, now and later, and `health` says why.
    Same answer: a request has the same tokens whenever it runs, alone or not, unless the engine's kernels depend on what
    they compute together (docs/architecture.md).
    """

    @property
    def capabilities(self) -> Capabilities:
        """The abilities that requests may use; the same before and after `start`, except adapters, which come and go."""
        ...

    async def start(self) -> None:
        """Load what is left to load and begin to run. Does nothing if it runs. Raises EngineDead after its end."""
        ...

    def generate(self, request: EngineRequest) -> Outputs:
        """Outputs of the request as they are made, until each of the `n` sequences has had one with a `finish_reason`.

        Nothing happens before the first is asked for. Closing the iterator, at any moment, aborts the request and frees its
        blocks within a step. Sequences that are ranked (beams, best_of > n) come whole, best first, when all have ended.
        Raises, with the first output: the errors of `Capabilities.check`; CapacityError (longer than `max_model_len`, or can
        never fit for other reasons); InvalidRequest (no prompt, a grammar that does not compile); Overloaded (shutting
        down); QueueTimeout (its first step has not begun in time). At any time: RequestTimeout (its deadline has passed, or
        is known to be too close); EngineFailed; EngineDead (also if it was not started); Cancelled (shut down).
        """
        ...

    def health(self) -> Health:
        """Alive or not, and gauges. Quick, on any thread, at any time."""
        ...

    def stats(self) -> EngineStats:
        """Totals so far. Quick, on any thread, at any time."""
        ...

    async def shutdown(self, drain_s: float) -> None:
        """Wait up to `drain_s` seconds for running requests, abort the rest, stop the thread, release the runtime.

        Requests that come meanwhile are refused with Overloaded. Calling it again, or without a start, is allowed.
        """
        ...
