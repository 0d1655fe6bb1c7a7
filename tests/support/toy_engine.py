"""A complete engine in one file, as small as it can be: no model, no batch, no cache, one request at a time.

Does: keep every promise of `engine.base.Engine`, over logits that are a function of the tokens. Does not: beams, adapters,
cache salts or priorities, which it refuses. A test names its `factory` as `tests.support.toy_engine:factory`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from dragoman.engine.base import Capabilities, EngineStats, EngineTools, Health, MemoryNeeds
from dragoman.engine.factory import BuiltEngine, EngineSetup
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.errors import (
    Cancelled,
    CapacityError,
    EngineDead,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    RequestTimeout,
    ServerError,
)
from dragoman.types import (
    EngineOutput,
    EngineRequest,
    FinishReason,
    Logprob,
    PromptLogprob,
    StopCriterion,
    TokenMasker,
)
from tests.engine.fake_runner import last_logits, reference_logits
from tests.support.letters import VOCAB_SIZE

_Queue = asyncio.Queue[EngineOutput | ServerError | None]


@dataclass
class _Drawn:
    """One sequence, complete."""

    token_ids: list[int]
    reason: FinishReason
    logprobs: list[float]
    tops: list[list[Logprob]]


class ToyEngine:
    """Computes a request's sequences one after the other, then the next request's."""

    def __init__(self, tools: EngineTools, max_model_len: int = 256) -> None:
        self._tools = tools
        self._capabilities = Capabilities(
            max_model_len, VOCAB_SIZE, max_logprobs=20, best_of=True, grammar=True, stop_strings=True, pictures=True
        )
        self._sampler = Sampler(VOCAB_SIZE)
        self._turn = asyncio.Lock()
        self._runs: dict[asyncio.Task[None], _Queue] = {}
        self._death = "the engine was not started"
        self._is_draining = False
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0

    @property
    def capabilities(self) -> Capabilities:
        """No beams, no adapters, no salts, no priorities."""
        return self._capabilities

    async def start(self) -> None:
        """Take requests from now on."""
        if self._is_draining:
            raise EngineDead(self._death)
        self._death = ""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """The request's outputs."""
        self._capabilities.check(request)
        self._check_capacity(request)
        if self._death:
            raise EngineDead(self._death)
        if self._is_draining:
            raise Overloaded("the engine is shutting down")
        queue: _Queue = asyncio.Queue()
        run = asyncio.create_task(self._run(request, queue))
        self._runs[run] = queue
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, ServerError):
                    raise item
                yield item
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            self._runs.pop(run, None)

    def health(self) -> Health:
        """One runs, the others wait."""
        num_running = int(self._turn.locked())
        return Health(not self._death, self._death, num_running, max(len(self._runs) - num_running, 0))

    def stats(self) -> EngineStats:
        """The tokens of both kinds."""
        return EngineStats(num_prompt_tokens=self._num_prompt_tokens, num_generated_tokens=self._num_generated_tokens)

    async def shutdown(self, drain_s: float) -> None:
        """Wait, then cancel what is left."""
        self._is_draining = True
        if self._runs:
            await asyncio.wait(list(self._runs), timeout=drain_s)
        self._death = self._death or "the engine was shut down"
        for run, queue in list(self._runs.items()):
            if not run.done():
                run.cancel()
                queue.put_nowait(Cancelled("the engine is shutting down"))
        self._sampler.close()

    def _check_capacity(self, request: EngineRequest) -> None:
        if not request.prompt_ids:
            raise InvalidRequest("the prompt is empty", param="prompt")
        num_tokens = len(request.prompt_ids) + request.max_tokens
        if num_tokens > self._capabilities.max_model_len:
            raise CapacityError(f"{num_tokens} tokens, at most {self._capabilities.max_model_len} fit")

    # --- one request --------------------------------------------------------------------------------------------------

    async def _run(self, request: EngineRequest, queue: _Queue) -> None:
        """Put the request's outputs into the queue, and None or an error behind them."""
        timeout_s = None if request.deadline_s is None else request.deadline_s - time.time()
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                await self._generate(request, queue)
            queue.put_nowait(None)
        except TimeoutError:
            queue.put_nowait(RequestTimeout("the request's deadline has passed"))
        except ServerError as error:
            queue.put_nowait(error)
        except Exception as error:
            queue.put_nowait(EngineFailed(f"generation failed: {error}"))

    async def _generate(self, request: EngineRequest, queue: _Queue) -> None:
        grammar, sampling = request.sampling.grammar, request.sampling
        masker = None if grammar is None else await asyncio.to_thread(self._tools.compile_grammar, grammar)
        criterion = None
        if request.stop is not None and request.is_ranked:
            criterion = self._tools.watch_stops(request.stop, sampling.min_tokens)
        self._num_prompt_tokens += len(request.prompt_ids)
        drawn: list[_Drawn] = []
        prompt_logprobs = self._prompt_logprobs(request)
        for index in range(sampling.num_sequences):
            async for output in self._draw(request, index, masker, criterion, drawn):
                if not request.is_ranked:
                    output.prompt_logprobs, prompt_logprobs = prompt_logprobs, None
                    queue.put_nowait(output)
        if request.is_ranked:
            drawn.sort(key=lambda one: -sum(one.logprobs))
            for index, one in enumerate(drawn[: sampling.n]):
                output = _output(request, index, one.token_ids, one.logprobs, one.tops, one.reason)
                output.cumulative_logprob = sum(one.logprobs)
                output.prompt_logprobs, prompt_logprobs = prompt_logprobs, None
                queue.put_nowait(output)

    async def _draw(
        self,
        request: EngineRequest,
        index: int,
        masker: TokenMasker | None,
        criterion: StopCriterion | None,
        drawn: list[_Drawn],
    ) -> AsyncGenerator[EngineOutput, None]:
        """The outputs of one sequence, a token each; the whole of it is added to `drawn`."""
        state = self._sampler.new_state(request, index, masker)
        one = _Drawn([], FinishReason.LENGTH, [], [])
        drawn.append(one)
        if not request.max_tokens:
            yield _output(request, index, [], [], [], FinishReason.LENGTH)
        ends = dict.fromkeys(request.sampling.stop_token_ids, FinishReason.STOP_TOKEN)
        if not request.sampling.ignore_eos:
            ends.update(dict.fromkeys(request.eos_token_ids, FinishReason.EOS))
        while len(one.token_ids) < request.max_tokens:
            await asyncio.sleep(0)  # others may come, leave, or be told that time is over
            row = last_logits([*_seen(request), *one.token_ids], VOCAB_SIZE)
            raw = self._sampler.raw_logprobs(row[0].copy())
            token_id = int(self._sampler.sample(row, [state]).token_ids[0])
            state.observe(token_id)
            one.token_ids.append(token_id)
            one.logprobs.append(raw.of(token_id))
            one.tops.append(raw.top(request.sampling.logprobs or 0))
            self._num_generated_tokens += 1
            reason = ends.get(token_id)
            if reason is None and criterion is not None and criterion(one.token_ids):
                reason = FinishReason.STOP_STRING
            one.reason = reason or FinishReason.LENGTH
            is_last = reason is not None or len(one.token_ids) == request.max_tokens
            output = _output(
                request, index, [token_id], one.logprobs[-1:], one.tops[-1:], one.reason if is_last else None
            )
            if is_last and request.sampling.logprobs is not None:
                output.cumulative_logprob = sum(one.logprobs)
            yield output
            if is_last:
                return

    def _prompt_logprobs(self, request: EngineRequest) -> list[PromptLogprob | None] | None:
        top_n = request.sampling.prompt_logprobs
        if top_n is None:
            return None
        rows = reference_logits(_seen(request), VOCAB_SIZE)[:-1]
        return [None, *self._sampler.prompt_logprobs(rows, request.prompt_ids[1:], top_n)]


def _seen(request: EngineRequest) -> list[int]:
    """The prompt, with a letter of the picture's digest in each of its places."""
    token_ids = list(request.prompt_ids)
    for span in request.pictures:
        digest = span.picture.digest.encode()
        for place in range(span.length):
            token_ids[span.begin + place] = digest[place % len(digest)] % VOCAB_SIZE
    return token_ids


def _output(
    request: EngineRequest,
    index: int,
    token_ids: list[int],
    logprobs: list[float],
    tops: list[list[Logprob]],
    reason: FinishReason | None,
) -> EngineOutput:
    wants = request.sampling.logprobs is not None
    output = EngineOutput(request.request_id, index, token_ids, reason)
    if wants:
        output.logprobs, output.top_logprobs = logprobs, tops
    return output


@dataclass(frozen=True)
class LoadedToy:
    """There is nothing to load."""

    max_model_len: int

    def build(self, tools: EngineTools, memory_bytes: int) -> BuiltEngine:
        """The engine."""
        return BuiltEngine(ToyEngine(tools, self.max_model_len), ("a toy",), "none")


class ToyFactory:
    """Makes toy engines, whatever the model."""

    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        """Nothing."""
        return MemoryNeeds(0)

    def load(self, setup: EngineSetup) -> LoadedToy:
        """Nothing but the context length."""
        return LoadedToy(setup.options.get("max_model_len") or 256)


factory = ToyFactory()
