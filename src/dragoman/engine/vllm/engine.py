"""vLLM's engine behind the engine protocol: each sequence of a request is a request of vLLM's.

Everything runs on the event loop; vLLM computes in processes of its own.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dragoman.coroutines import together
from dragoman.engine.base import DEATHS, Capabilities, EngineStats, EngineTools, Health, Take
from dragoman.engine.beams import OneTokenBeams
from dragoman.engine.life import NOT_STARTED, Delivering, Enough, OnLoop, Put
from dragoman.engine.ranking import Ranking, SequenceEnd
from dragoman.engine.vllm.adapters import AdapterPlan, VllmAdapters
from dragoman.engine.vllm.pictures import PlacedPicture, PreparedPicture, placed_pictures
from dragoman.engine.vllm.sequences import (
    check_temperature,
    cut_at_stop,
    output_of,
    prompt_logprobs_of,
    sampling_arguments,
)
from dragoman.engine.vllm.surface import AsyncEngine, Surface, prepare_picture
from dragoman.errors import (
    CapacityError,
    EngineDead,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    ServerError,
    UnsupportedFeature,
)
from dragoman.models.config import ModelError
from dragoman.types import EngineOutput, EngineRequest, FinishReason, Logprob, Picture, SamplingParams

_LAST = 2**31 - 1  # lower than any client's priority
_DIED = "vLLM's engine has died; its log says why"


class Gauges:
    """The latest gauges of all of vLLM's schedulers, as one of its loggers. Written on the event loop, read on any thread.

    `num_running`: sequences. `usage`: the share of the cache in use, 0 to 1.
    """

    def __init__(self) -> None:
        self._running: dict[int, int] = {}
        self._usage: dict[int, float] = {}
        self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        return sum(self._running.values())

    @property
    def usage(self) -> float:
        return sum(self._usage.values()) / max(1, len(self._usage))

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> Gauges:
        """This object, which watches all engines; vLLM calls it as a factory of loggers."""
        return self

    def record(self, scheduler_stats: Any, iteration_stats: Any, engine_idx: int = 0, **others: Any) -> None:
        if scheduler_stats is not None:
            self._running[engine_idx] = scheduler_stats.num_running_reqs
            self._usage[engine_idx] = scheduler_stats.kv_cache_usage
        if iteration_stats is not None:
            self.num_preemptions += iteration_stats.num_preempted_reqs

    def log(self) -> None: ...

    def log_engine_initialized(self) -> None: ...

    def record_sleep_state(self, is_awake: int, level: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Driver:
    """vLLM's running engine and the words for it. `num_blocks`: blocks of its cache."""

    llm: AsyncEngine
    surface: Surface
    gauges: Gauges = field(default_factory=Gauges)
    num_blocks: int = 0


class _Words(NamedTuple):
    """vLLM's forms of a request's grammar, adapter and pictures."""

    lark: str | None
    adapter: Any
    pictures: tuple[PlacedPicture, ...]


class VllmEngine(Delivering):
    """Runs requests on vLLM. It owns the engine in `driver` and shuts it down."""

    def __init__(
        self, driver: Driver, capabilities: Capabilities, tools: EngineTools, adapters: AdapterPlan | None = None
    ) -> None:
        self._llm: AsyncEngine | None = driver.llm  # None after the shutdown: else it logs errors at exit
        self._surface = driver.surface
        self._gauges = driver.gauges
        self._num_blocks = driver.num_blocks
        self._capabilities = capabilities
        self._tools = tools
        make_words = driver.surface.make_adapter
        self._adapters = None if adapters is None else VllmAdapters(adapters, driver.llm, make_words)
        self._has_first_adapters = adapters is None
        self._has_computed = False
        self._ids = itertools.count()
        self._num_live = 0  # sequences that vLLM has
        self._num_pictures = 0
        self._num_preemptions_before = driver.gauges.num_preemptions
        self._life = OnLoop()

    @property
    def capabilities(self) -> Capabilities:
        if self._adapters is not None and self._capabilities.adapters != self._adapters.names:
            self._capabilities = replace(self._capabilities, adapters=self._adapters.names)
        return self._capabilities

    async def start(self) -> None:
        """Raises: EngineDead; ModelError if vLLM cannot compute a token or load one of the first adapters."""
        if self._life.is_draining or self._has_died():
            raise EngineDead(self._reason())
        try:
            if not self._has_computed:
                await self._try_token()
                self._has_computed = True
            if self._adapters is not None and not self._has_first_adapters:
                await self._adapters.load_first()
                self._has_first_adapters = True
        except BaseException:
            await self.shutdown(0.0)
            raise
        self._life.death = ""

    async def deliver(self, request: EngineRequest, take: Take) -> None:
        self.check(request)
        await self._life.run(request, take, partial(self._run, request), request.deadline_s)

    def check(self, request: EngineRequest) -> None:
        self.capabilities.check(request)
        check_temperature(request)
        if not request.prompt_ids:
            raise InvalidRequest("the prompt is empty", param="prompt")
        most = self._capabilities.max_model_len
        num_tokens = len(request.prompt_ids) + max(1, request.max_tokens)  # vLLM draws at least one
        if num_tokens > most:
            raise CapacityError(f"{num_tokens} tokens of prompt and completion; at most {most} fit", param="max_tokens")
        self._reason()
        self._life.check_open()

    async def load_adapter(self, name: str, directory: Path, *, is_replacing: bool = False) -> None:
        assert self._adapters is not None
        if reason := self._reason():
            raise EngineDead(reason)
        await self._adapters.load(name, directory, is_replacing=is_replacing)

    async def unload_adapter(self, name: str) -> None:
        assert self._adapters is not None
        await self._adapters.unload(name)

    def health(self) -> Health:
        """Gauges of vLLM's last step, at most the sequences that it has now."""
        reason, gauges = self._reason(), self._gauges
        num_running = min(gauges.num_running, self._num_live)
        num_used = round(gauges.usage * self._num_blocks) if self._num_live else 0
        return Health(not reason, reason, num_running, self._num_live - num_running, num_used, self._num_blocks)

    def stats(self) -> EngineStats:
        """Delivered tokens, pictures and preemptions; vLLM's own metrics have the rest."""
        return EngineStats(
            num_generated_tokens=self._life.num_tokens,
            num_pictures=self._num_pictures,
            num_preemptions=self._gauges.num_preemptions - self._num_preemptions_before,
        )

    async def shutdown(self, drain_s: float) -> None:
        self._reason()
        await self._life.finish(drain_s)
        llm, self._llm = self._llm, None
        if self._adapters is not None:
            self._adapters.close()
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)

    def _has_died(self) -> bool:
        return self._llm is not None and self._llm.errored

    def _reason(self) -> str:
        """The reason why no requests are taken, "" if they are."""
        if self._life.death in ("", NOT_STARTED) and self._has_died():
            self._life.death = _DIED
        return self._life.death

    async def _try_token(self) -> None:
        """Have vLLM compute a token, as missing kernels show only then, and end vLLM. Raises: ModelError."""
        request = EngineRequest("first", (0,), SamplingParams(temperature=0.0), 1, 0)
        try:
            await self._last(request, _Words(None, None, ()))
        except Exception as error:  # any error of vLLM's processes
            raise ModelError(f"vLLM starts with this model, but cannot compute a token: {self._told(error)}") from error

    # --- one request --------------------------------------------------------------------------------------------------

    async def _run(self, request: EngineRequest, put: Put) -> None:
        held = None
        try:
            if request.adapter is not None and self._adapters is not None:
                held = self._adapters.use(request.adapter)
            await self._generate(request, put, None if held is None else held.words)
        except (ServerError, Enough):
            raise
        except Exception as error:
            raise self._told(error) from error
        finally:
            if held is not None and self._adapters is not None:
                self._adapters.release(held)

    def _told(self, error: Exception) -> ServerError:
        surface = self._surface
        if isinstance(error, ServerError):
            return error
        if isinstance(error, surface.dead):
            DEATHS.tell()
            return EngineDead(self._reason() or _DIED)
        cause = error.__cause__ or error  # vLLM wraps unexpected errors in one without a message
        text = str(cause.args[0]) if cause.args else type(cause).__name__
        if isinstance(error, surface.refusals):
            return UnsupportedFeature(f"vLLM refuses this: {text}", param=getattr(error, "parameter", None))
        if isinstance(error, surface.overflows):
            return Overloaded(f"vLLM takes no more requests: {text}")
        return EngineFailed(f"generation failed: {text}")

    async def _generate(self, request: EngineRequest, put: Put, adapter: Any) -> None:
        words = _Words(await self._lark(request), adapter, await placed_pictures(request, self._prepare))
        if not request.max_tokens:
            await self._draw(request, 0, words, put)
            for index in range(1, request.sampling.n):
                put(EngineOutput(request.request_id, index, [], FinishReason.LENGTH))
        elif request.sampling.num_beams > 1:
            await self._search(request, put, words)
        elif request.is_ranked:
            await self._draw_best(request, put, words)
        else:
            await together(self._draw(request, index, words, put) for index in range(request.sampling.n))

    async def _lark(self, request: EngineRequest) -> str | None:
        """The grammar in vLLM's form. It is compiled here first, so that its errors read as on every engine."""
        grammar = request.sampling.grammar
        if grammar is None:
            return None
        await asyncio.to_thread(self._tools.compile_grammar, grammar)
        assert self._tools.lark_of is not None  # a missing compiler means no grammar capability
        return self._tools.lark_of(grammar, request.eos_token_ids)

    async def _prepare(self, picture: Picture) -> PreparedPicture:
        if self._llm is None:
            raise EngineDead(self._reason())
        self._num_pictures += 1
        return await prepare_picture(self._llm, picture)

    async def _draw_best(self, request: EngineRequest, put: Put, words: _Words) -> None:
        """The best sequences, once all have ended; each ends at its own stop string."""
        ranking = Ranking(request)

        def collect(output: EngineOutput) -> None:
            for best in ranking.push(output):
                put(best)

        await together(self._draw(request, index, words, collect) for index in range(request.sampling.num_sequences))

    async def _search(self, request: EngineRequest, put: Put, words: _Words) -> None:
        """The best beams. Requested log-probabilities of the prompt are computed first."""
        search = OneTokenBeams(request, self._capabilities.vocab_size, self._tools.criterion_of(request))
        prompt: EngineOutput | None = None
        if request.sampling.prompt_logprobs is not None:
            alone = SamplingParams(temperature=0.0, prompt_logprobs=request.sampling.prompt_logprobs)
            prompt = await self._last(msgspec.structs.replace(request, sampling=alone, max_tokens=0), words)

        async def next_tokens(request: EngineRequest) -> Sequence[Logprob]:
            tops = (await self._last(request, words)).top_logprobs
            assert tops is not None
            return tops[0]

        outputs = await search.run(next_tokens)
        if prompt is not None:
            outputs[0].prompt_logprobs, outputs[0].num_cached_tokens = prompt.prompt_logprobs, prompt.num_cached_tokens
        for output in outputs:
            put(output)

    async def _last(self, request: EngineRequest, words: _Words) -> EngineOutput:
        found: list[EngineOutput] = []
        await self._draw(request, 0, words, found.append)
        return found[-1]

    async def _draw(self, request: EngineRequest, index: int, words: _Words, put: Put) -> None:
        """Have vLLM generate one sequence; cancelling this ends it there."""
        if self._llm is None:
            raise EngineDead(self._reason())
        params = self._surface.make_params(sampling_arguments(request, index), words.lark)
        prompt = self._surface.make_prompt(list(request.prompt_ids), request.cache_partition or None, words.pictures)
        request_id = f"{request.request_id}-{next(self._ids)}"
        priority = _LAST if request.is_background else -request.priority  # on vLLM the smallest goes first
        outputs = self._llm.generate(prompt, params, request_id, lora_request=words.adapter, priority=priority)
        end = SequenceEnd({}, self._tools.criterion_of(request)) if request.is_ranked else None
        is_first = True
        self._num_live += 1
        try:
            async with aclosing(outputs):
                async for answer in outputs:
                    output = output_of(request, index, answer.outputs[0])
                    if is_first:
                        is_first = False
                        output.num_cached_tokens = answer.num_cached_tokens or 0
                        if answer.prompt_logprobs:
                            num_top = request.sampling.prompt_logprobs or 0
                            output.prompt_logprobs = prompt_logprobs_of(
                                answer.prompt_logprobs, request.prompt_ids, num_top
                            )
                    is_cut = end is not None and cut_at_stop(output, end)
                    put(output)
                    if is_cut:
                        return
        finally:
            self._num_live -= 1
