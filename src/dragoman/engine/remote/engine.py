"""The engine that has upstreams do the work.

Does: keep the promises of `engine.base.Engine` over a fleet of servers: refuse what they cannot do, ask, fold their events,
time limits, cancelling. Does not: generate, or choose among upstreams (`fleet` does). Runs on the event loop, one task per
request, which reads the upstream's stream; closing the outputs cancels it, and that closes the connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from dragoman.engine.affinity import prefix_key
from dragoman.engine.base import Capabilities, EngineStats, EngineTools, Health, Life
from dragoman.engine.beams.one_token import OneTokenBeams
from dragoman.engine.remote.answer import Ranking, SequenceAnswer, prompt_logprobs, told_ids
from dragoman.engine.remote.fleet import Fleet, Route
from dragoman.engine.remote.places import Places
from dragoman.engine.remote.profile import Profile
from dragoman.engine.remote.trace import Trace
from dragoman.engine.remote.upstream import Stream, Upstream, UpstreamError
from dragoman.engine.remote.wire import Ask, Choice, body, prompt_body
from dragoman.errors import (
    Cancelled,
    CapacityError,
    EngineDead,
    EngineFailed,
    InvalidRequest,
    RequestTimeout,
    ServerError,
)
from dragoman.types import EngineOutput, EngineRequest, FinishReason, Logprob, PromptLogprob, StopCriterion

logger = logging.getLogger(__name__)

_REST_S = 1.0  # how long the end of a stream may take whose sequences have all ended

_Queue = asyncio.Queue[EngineOutput | ServerError]


@dataclass(frozen=True, slots=True)
class Ways:
    """The form of requests to upstreams. `has_n`: a request can ask for several sequences.

    `text_of`: a prompt as text, None if they take token ids; raises InvalidRequest for tokens without a text.
    `ids_of`: tokens that write a text, None if they send them. `mended`: all tokens of a text of which they send only some;
    None if they send all.
    """

    has_n: bool
    text_of: Callable[[tuple[int, ...]], str] | None = None
    ids_of: Callable[[str], list[int]] | None = None
    mended: Callable[[str, list[int]], list[int]] | None = None


class _Run:
    """One request on its way. `num_open`: outputs with a finish_reason that are still to come."""

    def __init__(self, request: EngineRequest, trace: Trace | None = None) -> None:
        self.request = request
        self.route = _route(request)
        self.trace = trace or Trace(request.request_id, request.trace)
        self.queue: _Queue = asyncio.Queue()
        self.num_open = request.sampling.n
        self.has_slot = False
        self.has_told_cached = False
        self.task: asyncio.Task[None] | None = None
        self.prompt: list[PromptLogprob | None] | None = None
        self.num_cached_tokens: int | None = None  # as the first request upstream tells it, None = it has not
        self.ranking = Ranking(request) if request.is_ranked else None

    def put(self, output: EngineOutput, num_cached_tokens: int | None = None) -> None:
        """Hand an output over, or all of them where sequences are ranked. `num_cached_tokens`: told with it."""
        if self.num_cached_tokens is None:
            self.num_cached_tokens = num_cached_tokens
        for one in [output] if self.ranking is None else self.ranking.push(output):
            one.prompt_logprobs, self.prompt = self.prompt, None
            if not self.has_told_cached and self.num_cached_tokens is not None:
                self.has_told_cached, one.num_cached_tokens = True, self.num_cached_tokens
            self.queue.put_nowait(one)

    def fail(self, error: ServerError) -> None:
        """End it, with this error."""
        self.queue.put_nowait(error)
        if self.task is not None:
            self.task.cancel()


class RemoteEngine:
    """Sends requests to the upstreams of `fleet`, `max_running` of them at a time; the others wait, most urgent first."""

    def __init__(
        self, fleet: Fleet, capabilities: Capabilities, tools: EngineTools, ways: Ways, max_running: int
    ) -> None:
        self._fleet = fleet
        self._capabilities = capabilities
        self._tools = tools
        self._ways = ways
        self._places = Places(max_running)
        self._runs: set[_Run] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._life = Life()
        self._has_started = False
        self._num_generated_tokens = 0

    @property
    def capabilities(self) -> Capabilities:
        """The abilities that all upstreams share, with the adapters that any of them has."""
        if self._capabilities.adapters != self._fleet.adapters:
            self._capabilities = replace(self._capabilities, adapters=self._fleet.adapters)
        return self._capabilities

    async def start(self) -> None:
        """Connect to the upstreams. Raises: EngineDead after its end."""
        if self._life.is_draining:
            raise EngineDead(self._life.death or "the engine is shutting down")
        if not self._has_started:
            self._has_started = True
            self._life.death = ""
            await self._fleet.open()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """The request's outputs. Raises: see `Engine.generate`."""
        self._check(request)
        run = _Run(request)
        timer = self._timer(run)
        run.task = asyncio.create_task(self._work(run))
        self._runs.add(run)
        self._tasks.add(run.task)
        run.task.add_done_callback(self._tasks.discard)
        try:
            while run.num_open:
                item = await run.queue.get()
                if isinstance(item, ServerError):
                    raise item
                self._num_generated_tokens += len(item.token_ids)
                run.num_open -= item.finish_reason is not None
                if not run.num_open:
                    self._runs.discard(run)
                yield item
        finally:
            self._runs.discard(run)
            if timer is not None:
                timer.cancel()
            if run.num_open:
                run.task.cancel()

    def check(self, request: EngineRequest) -> None:
        """See `base.Checking`."""
        self._check(request)
        self._prompt(request)
        self._fleet.check(_route(request))

    def health(self) -> Health:
        """Alive while some upstream is. Waiting are those that are not sent yet."""
        num_running = sum(run.has_slot for run in self._runs)
        reason = self._life.death or self._fleet.problem
        upstreams = self._fleet.health()
        num_waiting = len(self._runs) - num_running
        is_recovering = bool(reason) and not self._life.death  # servers are asked again and again
        return Health(not reason, reason, num_running, num_waiting, upstreams=upstreams, is_recovering=is_recovering)

    def stats(self) -> EngineStats:
        """The tokens of answers, and hedges; the rest is for the upstreams to count."""
        return EngineStats(
            num_generated_tokens=self._num_generated_tokens,
            num_hedges=self._fleet.num_hedges,
            num_hedges_won=self._fleet.num_hedges_won,
        )

    async def shutdown(self, drain_s: float) -> None:
        """Wait, cancel what is left, disconnect."""
        self._life.is_draining = True
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=drain_s)
        self._life.end()
        for run in self._runs:
            if run.task is not None and not run.task.done():
                run.fail(Cancelled("the engine is shutting down"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._fleet.close()

    def _check(self, request: EngineRequest) -> None:
        """Raises: why a request cannot be begun."""
        self.capabilities.check(request)
        if not request.prompt_ids:
            raise InvalidRequest("the prompt is empty", param="prompt")
        num_tokens, limit = len(request.prompt_ids) + request.max_tokens, self._capabilities.max_model_len
        if num_tokens > limit:
            raise CapacityError(f"the request takes {num_tokens} tokens: at most {limit} fit", max_model_len=limit)
        self._life.check_open()

    def _timer(self, run: _Run) -> asyncio.TimerHandle | None:
        """Ends the request when its deadline passes. Raises: RequestTimeout if it has."""
        if run.request.deadline_s is None:
            return None
        left_s = run.request.deadline_s - time.time()
        late = RequestTimeout("the request's deadline has passed")
        if left_s <= 0:
            raise late
        return asyncio.get_running_loop().call_later(left_s, run.fail, late)

    # --- one request --------------------------------------------------------------------------------------------------

    async def _work(self, run: _Run) -> None:
        """Have the request answered: outputs, or an error, go into its queue."""
        try:
            async with self._places.taken(run.request.priority):
                run.has_slot = True
                await self._answer(run)
        except ServerError as error:
            run.queue.put_nowait(error)
        except Exception as error:
            logger.exception("request %s failed", run.request.request_id)
            run.queue.put_nowait(EngineFailed(f"generation failed: {type(error).__name__}: {error}"))

    async def _answer(self, run: _Run) -> None:
        request = run.request
        if request.sampling.grammar is not None:  # upstreams tell of one that does not compile as of a failure
            await asyncio.to_thread(self._tools.compile_grammar, request.sampling.grammar)
        if request.sampling.prompt_logprobs is not None or not request.max_tokens:
            run.prompt = await self._read_prompt(run)
        count = request.sampling.num_sequences
        if not request.max_tokens:
            for index in range(count):
                run.put(self._nothing(request, index))
        elif request.sampling.num_beams > 1:
            await self._search(run)
        elif count == 1:
            await self._ask(run, 0, 1)
        else:
            await self._ask_for_several(run, count)

    def _nothing(self, request: EngineRequest, index: int) -> EngineOutput:
        output = EngineOutput(request.request_id, index, [], FinishReason.LENGTH)
        if request.sampling.logprobs is not None:
            output.logprobs, output.top_logprobs, output.cumulative_logprob = [], [], 0.0
        return output

    async def _ask_for_several(self, run: _Run, count: int) -> None:
        """In one answer where upstreams can; else in one each, whose seeds are those that follow the request's."""
        if (
            self._ways.has_n and not run.request.sampling.is_greedy
        ):  # greedy ones are refused by some: they are the same
            await self._ask(run, 0, count)
            return
        try:
            async with asyncio.TaskGroup() as group:
                for index in range(count):
                    group.create_task(self._ask(run, index, 1))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def _search(self, run: _Run) -> None:
        """The best beams, found by requests for one token each."""
        search = OneTokenBeams(run.request, self._capabilities.max_logprobs, self._criterion(run.request))

        async def next_tokens(one: EngineRequest) -> Sequence[Logprob]:
            step = _Run(one, run.trace)
            await self._ask(step, 0, 1)
            told = [top for output in _put(step) for top in output.top_logprobs or ()]
            if len(told) != 1:
                raise EngineFailed(f"the upstream returned log-probabilities for {len(told)} tokens instead of one")
            return told[0]

        run.ranking = None  # they are
        for output in await search.run(next_tokens):
            run.put(output)

    async def _read_prompt(self, run: _Run) -> list[PromptLogprob | None] | None:
        """Have the prompt read, for its log-probabilities if they are wanted, or for the prefix cache behind."""
        request, num_top = run.request, run.request.sampling.prompt_logprobs
        ask = Ask(self._prompt(request), request, 1, request.seed)
        chunk = await self._fleet.first_answer(
            run.route,
            lambda upstream: upstream.whole(prompt_body(ask, _known(upstream), num_top), run.trace),
        )
        run.num_cached_tokens = chunk.num_cached_tokens
        if num_top is None:
            return None
        told = chunk.choices[0].prompt_logprobs if chunk.choices else None
        return prompt_logprobs(told, request.prompt_ids, num_top)

    async def _ask(self, run: _Run, first: int, count: int) -> None:
        """Ask for the sequences `first` and the `count` - 1 after it, and read them to their ends."""
        request = run.request
        logprobs = request.sampling.logprobs
        if logprobs is None and request.is_ranked:
            logprobs = 0
        by_ids = self._ways.ids_of is None
        ask = Ask(self._prompt(request), request, count, request.seed + first, logprobs, by_ids)
        sequences = [self._sequence(request, index) for index in range(first, first + count)]

        async def read_first(upstream: Upstream) -> Stream:
            return await upstream.open(body(ask, _known(upstream)), run.trace)

        with closing(await self._fleet.first_answer(run.route, read_first, Stream.close)) as stream:
            try:
                await _read(stream, sequences, run.put)
            except UpstreamError as error:  # too late for another one: part of the answer has gone out
                raise EngineFailed(str(error)) from error

    def _sequence(self, request: EngineRequest, index: int) -> SequenceAnswer:
        criterion = self._criterion(request)
        return SequenceAnswer(request, index, self._token_ids, criterion, sees_ends=self._ways.ids_of is None)

    def _criterion(self, request: EngineRequest) -> StopCriterion | None:
        """The test for stop strings, of sequences that nobody reads before they have ended."""
        if request.stop is None or not request.is_ranked:
            return None
        return self._tools.watch_stops(request.stop, request.sampling.min_tokens)

    def _token_ids(self, choice: Choice) -> list[int]:
        """The tokens that an event adds. Raises: EngineFailed if they cannot be known."""
        ways = self._ways
        if ways.ids_of is not None:
            return ways.ids_of(choice.text)
        told = told_ids(choice)
        return told if ways.mended is None else ways.mended(choice.text, told)

    def _prompt(self, request: EngineRequest) -> tuple[int, ...] | str:
        return request.prompt_ids if self._ways.text_of is None else self._ways.text_of(request.prompt_ids)


async def _read(
    stream: Stream, sequences: list[SequenceAnswer], put: Callable[[EngineOutput, int | None], None]
) -> None:
    """Read until all sequences have ended. Raises: UpstreamError, EngineFailed."""
    last: EngineOutput | None = None  # kept until the upstream has told the counts, which come behind it
    num_open = len(sequences)
    has_said_all = True  # the upstream knows of every end
    while num_open:
        choices = await stream.more()
        if choices is None:
            raise UpstreamError("the upstream's answer broke off")
        for choice in choices:
            sequence = _of(choice, sequences)
            if sequence.reason is not None:
                continue
            output = sequence.push(choice)
            if output is not None:
                if output.finish_reason is not None:
                    num_open -= 1
                    has_said_all &= choice.finish_reason is not None or output.finish_reason is FinishReason.LENGTH
                if num_open:
                    put(output, None)
                else:
                    last = output
    assert last is not None
    if has_said_all:  # what is left are counts and the mark of the end; behind it the connection serves others
        try:
            async with asyncio.timeout(_REST_S):
                while await stream.more() is not None:
                    pass
        except (TimeoutError, UpstreamError):
            logger.debug("an upstream's stream did not end in time; its connection is closed")
    put(last, stream.num_cached_tokens)


def _route(request: EngineRequest) -> Route:
    return Route(prefix_key(request), request.adapter)


def _put(run: _Run) -> list[EngineOutput]:
    """The outputs that a request has had which nobody reads."""
    return [one for one in (run.queue.get_nowait() for _ in range(run.queue.qsize())) if isinstance(one, EngineOutput)]


def _of(choice: Choice, sequences: list[SequenceAnswer]) -> SequenceAnswer:
    if not 0 <= choice.index < len(sequences):
        raise EngineFailed(f"the upstream returned sequence {choice.index}, but {len(sequences)} were requested")
    return sequences[choice.index]


def _known(upstream: Upstream) -> Profile:
    assert upstream.profile is not None  # only healthy ones are asked, and they are known
    return upstream.profile
