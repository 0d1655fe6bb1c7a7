"""The engine that forwards requests to upstream servers. On the event loop, each request in the task of its caller.

Cancelling that task closes the connection.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from itertools import count

from dragoman.coroutines import together
from dragoman.engine.affinity import prefix_key
from dragoman.engine.base import Capabilities, EngineStats, EngineTools, Health, Take
from dragoman.engine.beams import OneTokenBeams
from dragoman.engine.life import Delivering, Enough, OnLoop, Put
from dragoman.engine.ranking import Ranking
from dragoman.engine.remote.answer import Retokeniser, SequenceAnswer, prompt_logprobs, told_ids
from dragoman.engine.remote.fleet import Fleet, Route
from dragoman.engine.remote.profile import Common, Profile
from dragoman.engine.remote.upstream import Stream, Upstream, UpstreamError
from dragoman.engine.remote.wire import Ask, Choice, Trace, body, prompt_body
from dragoman.errors import CapacityError, EngineDead, EngineFailed, InvalidRequest, ServerError
from dragoman.types import EngineOutput, EngineRequest, FinishReason, Logprob, PromptLogprob

logger = logging.getLogger(__name__)

_REST_S = 1.0  # wait for a stream's end once all its sequences have ended


class _Run:
    """A running request, with the facts of its prompt that go out with the first output."""

    def __init__(self, request: EngineRequest, put: Put, trace: Trace | None = None) -> None:
        self.request = request
        self.route = _route(request)
        self.trace = trace or Trace(request.request_id, request.trace)
        self.has_told_cached = False
        self.prompt: list[PromptLogprob | None] | None = None
        self.num_cached_tokens: int | None = None  # of the first answer that has it; None = none yet
        self.ranking = Ranking(request) if request.is_ranked else None
        self._put = put

    def put(self, output: EngineOutput, num_cached_tokens: int | None = None) -> None:
        """Pass an output on, or all of them once sequences are ranked. `num_cached_tokens` goes out with the first."""
        if self.num_cached_tokens is None:
            self.num_cached_tokens = num_cached_tokens
        for ranked in [output] if self.ranking is None else self.ranking.push(output):
            ranked.prompt_logprobs, self.prompt = self.prompt, None
            if not self.has_told_cached and self.num_cached_tokens is not None:
                self.has_told_cached, ranked.num_cached_tokens = True, self.num_cached_tokens
            self._put(ranked)


class _Places:
    """Limits the number of running requests; the most urgent waiting one is next."""

    def __init__(self, num_places: int) -> None:
        self.num_taken = 0
        self._num_places = num_places
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

    @asynccontextmanager
    async def taken(self, priority: int) -> AsyncIterator[None]:
        if self.num_taken < self._num_places:
            self.num_taken += 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (-priority, next(self._numbers), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it got its place at the same moment
                    self._give_back()
                raise
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():  # else the request was cancelled
                turn.set_result(None)
                return
        self.num_taken -= 1


class RemoteEngine(Delivering):
    """Sends requests to the upstreams of `fleet`, `max_running` of them at a time; the others wait, most urgent first."""

    def __init__(
        self, fleet: Fleet, common: Common, tools: EngineTools, retokeniser: Retokeniser, max_running: int
    ) -> None:
        """`common`: the form of requests to upstreams, and of their answers."""
        self._fleet = fleet
        self._common = common
        self._capabilities = common.capabilities
        self._tools = tools
        self._retokeniser = retokeniser
        self._places = _Places(max_running)
        self._life = OnLoop()
        self._has_started = False

    @property
    def capabilities(self) -> Capabilities:
        """The abilities that all upstreams share, with the adapters that any of them has."""
        if self._capabilities.adapters != self._fleet.adapters:
            self._capabilities = replace(self._capabilities, adapters=self._fleet.adapters)
        return self._capabilities

    async def start(self) -> None:
        if self._life.is_draining:
            raise EngineDead(self._life.death or "the engine is shutting down")
        if not self._has_started:
            self._has_started = True
            self._life.death = ""
            await self._fleet.open()

    async def deliver(self, request: EngineRequest, take: Take) -> None:
        self._check(request)
        await self._life.run(request, take, partial(self._work, request), request.deadline_s)

    def check(self, request: EngineRequest) -> None:
        self._check(request)
        self._prompt(request)
        self._fleet.check(_route(request))

    def health(self) -> Health:
        """Alive while at least one upstream is. Requests that are not sent yet count as waiting."""
        num_running = self._places.num_taken
        reason = self._life.death or self._fleet.problem
        upstreams = self._fleet.health()
        num_waiting = self._life.num_requests - num_running
        is_recovering = bool(reason) and not self._life.death  # servers are probed repeatedly
        return Health(not reason, reason, num_running, num_waiting, upstreams=upstreams, is_recovering=is_recovering)

    def stats(self) -> EngineStats:
        return EngineStats(
            num_generated_tokens=self._life.num_tokens,
            num_hedges=self._fleet.num_hedges,
            num_hedges_won=self._fleet.num_hedges_won,
        )

    async def shutdown(self, drain_s: float) -> None:
        await self._life.finish(drain_s)
        await self._fleet.close()

    def _check(self, request: EngineRequest) -> None:
        """Raises: InvalidRequest, UnsupportedFeature, CapacityError, EngineDead."""
        self.capabilities.check(request)
        if not request.prompt_ids:
            raise InvalidRequest("the prompt is empty", param="prompt")
        num_tokens, limit = len(request.prompt_ids) + request.max_tokens, self._capabilities.max_model_len
        if num_tokens > limit:
            raise CapacityError(f"the request takes {num_tokens} tokens: at most {limit} fit", max_model_len=limit)
        self._life.check_open()

    # --- one request --------------------------------------------------------------------------------------------------

    async def _work(self, request: EngineRequest, put: Put) -> None:
        try:
            async with self._places.taken(request.priority):
                await self._answer(_Run(request, put))
        except (ServerError, Enough):
            raise
        except Exception as error:
            logger.exception("request %s failed", request.request_id)
            raise EngineFailed(f"generation failed: {type(error).__name__}: {error}") from error

    async def _answer(self, run: _Run) -> None:
        request = run.request
        if request.sampling.grammar is not None:  # upstreams report one that does not compile as their own failure
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
        """Generate `count` sequences, in one answer if upstreams can, else in one each with consecutive seeds."""
        # Some servers refuse several greedy sequences, which are equal.
        if self._common.has_n and not run.request.sampling.is_greedy:
            await self._ask(run, 0, count)
            return
        await together(self._ask(run, index, 1) for index in range(count))

    async def _search(self, run: _Run) -> None:
        search = OneTokenBeams(run.request, self._capabilities.max_logprobs, self._tools.criterion_of(run.request))

        async def next_tokens(request: EngineRequest) -> Sequence[Logprob]:
            outputs: list[EngineOutput] = []
            await self._ask(_Run(request, outputs.append, run.trace), 0, 1)
            tops = [top for output in outputs for top in output.top_logprobs or ()]
            if len(tops) != 1:
                raise EngineFailed(f"the upstream returned log-probabilities for {len(tops)} tokens instead of one")
            return tops[0]

        run.ranking = None  # beams are ranked already
        for output in await search.run(next_tokens):
            run.put(output)

    async def _read_prompt(self, run: _Run) -> list[PromptLogprob | None] | None:
        """The prompt's log-probabilities, None if not requested: then the upstream only caches the prompt."""
        request, num_top = run.request, run.request.sampling.prompt_logprobs
        ask = Ask(self._prompt(request), request, 1, request.seed)
        chunk = await self._fleet.first_answer(
            run.route,
            lambda upstream: upstream.whole(prompt_body(ask, _known(upstream), num_top), run.trace),
        )
        run.num_cached_tokens = chunk.num_cached_tokens
        if num_top is None:
            return None
        rows = chunk.choices[0].prompt_logprobs if chunk.choices else None
        return prompt_logprobs(rows, request.prompt_ids, num_top)

    async def _ask(self, run: _Run, first: int, count: int) -> None:
        """Request `count` sequences, the first with index `first`, and read them to their ends."""
        request = run.request
        logprobs = request.sampling.logprobs
        if logprobs is None and request.is_ranked:
            logprobs = 0
        ask = Ask(self._prompt(request), request, count, request.seed + first, logprobs, self._common.gives_ids)
        sequences = [self._sequence(request, index) for index in range(first, first + count)]

        async def read_first(upstream: Upstream) -> Stream:
            return await upstream.open(body(ask, _known(upstream)), run.trace)

        with closing(await self._fleet.first_answer(run.route, read_first, Stream.close)) as stream:
            try:
                await _read(stream, sequences, run.put)
            except UpstreamError as error:  # no second try: part of the answer has gone out
                raise EngineFailed(str(error)) from error

    def _sequence(self, request: EngineRequest, index: int) -> SequenceAnswer:
        criterion = self._tools.criterion_of(request)
        return SequenceAnswer(request, index, self._token_ids, criterion, sees_ends=self._common.gives_ids)

    def _token_ids(self, choice: Choice) -> list[int]:
        if not self._common.gives_ids:
            return self._retokeniser.ids(choice.text)
        token_ids = told_ids(choice)
        return self._retokeniser.mended(choice.text, token_ids) if self._common.loses_ids else token_ids

    def _prompt(self, request: EngineRequest) -> tuple[int, ...] | str:
        return request.prompt_ids if self._common.takes_ids else self._retokeniser.prompt_text(request.prompt_ids)


async def _read(
    stream: Stream, sequences: list[SequenceAnswer], put: Callable[[EngineOutput, int | None], None]
) -> None:
    """Read until all sequences have ended. Raises: UpstreamError, EngineFailed."""
    last: EngineOutput | None = None  # held back until the counts behind it have come
    num_open = len(sequences)
    has_said_all = True  # the upstream itself ended every sequence
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
    if has_said_all:  # read the counts and the end mark, so that the connection can be used again
        try:
            async with asyncio.timeout(_REST_S):
                while await stream.more() is not None:
                    pass
        except (TimeoutError, UpstreamError):
            logger.debug("an upstream's stream did not end in time; its connection is closed")
    put(last, stream.num_cached_tokens)


def _route(request: EngineRequest) -> Route:
    return Route(prefix_key(request), request.adapter)


def _of(choice: Choice, sequences: list[SequenceAnswer]) -> SequenceAnswer:
    if not 0 <= choice.index < len(sequences):
        raise EngineFailed(f"the upstream returned sequence {choice.index}, but {len(sequences)} were requested")
    return sequences[choice.index]


def _known(upstream: Upstream) -> Profile:
    assert upstream.profile is not None  # healthy upstreams, which alone get requests, have a profile
    return upstream.profile
