"""The one path from a request in neutral words to its events, for every dialect and every engine.

Runs on the event loop; long prompts are prepared on `pool`. Does not know wire formats, fetch, or admit requests.
Closing a stream, at any moment, aborts the request in the engine, and the loading of its pictures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from time import perf_counter
from typing import TypeGuard, TypeVar

import msgspec

from dragoman.engine.base import Engine, PromptProgress, TellingProgress, deliver
from dragoman.errors import DeadlineTooShort, EngineFailed, InvalidPayload, QueueTimeout, RequestTimeout
from dragoman.server.admission import num_characters
from dragoman.server.generation.extensions import Extensions
from dragoman.server.generation.prepare import (
    PreparedRequest,
    Preparer,
    PromptTokens,
    ServiceLimits,
    Turn,
)
from dragoman.server.generation.text_until_stop import SequenceText, parser_of, prompt_info
from dragoman.server.generation.thinking import ThinkingPlan
from dragoman.server.observation.record import CallRecord, RequestRecord, current_call, new_request
from dragoman.server.registry import TakeEvent
from dragoman.tokenizer.base import Tokenizer, TokenPieces
from dragoman.tokenizer.breakers import BreakerFinder
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import (
    BLOCK_TOKENS,
    USUAL_STANDING,
    ChatPrompt,
    EngineOutput,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    Prompt,
    PromptInfo,
    SequenceResult,
    joined_calls,
)

T = TypeVar("T")

_NUM_TEMPLATE_THREADS = 4  # as many as there are processes for them
_NUM_GRAMMAR_THREADS = 16  # more than costly grammars can occupy, so that others never wait for them


class Service:
    """Serves one model: text in, text out. `pool` None = the event loop's default executor."""

    def __init__(
        self,
        *,
        name: str,
        engine: Engine,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None = None,
        limits: ServiceLimits | None = None,
        pool: Executor | None = None,
        extensions: Extensions | None = None,
    ) -> None:
        extensions = extensions or Extensions()
        self._engine = engine
        self._pool = pool
        # Its threads start when they are needed. Prompts without a grammar are tokenised elsewhere, and do not wait here.
        self._grammar_pool = ThreadPoolExecutor(_NUM_GRAMMAR_THREADS, thread_name_prefix="dragoman-grammars")
        self._template_pool = ThreadPoolExecutor(_NUM_TEMPLATE_THREADS, thread_name_prefix="dragoman-templates")
        self._limits = limits or ServiceLimits()
        self._pieces = TokenPieces(tokenizer)
        self._extensions = extensions
        if chat_template is not None and extensions.pictures is not None:
            chat_template = chat_template.with_pictures(extensions.pictures.marker)
        find = extensions.find_thought
        self._preparer = Preparer(
            model_name=name,
            capabilities=engine.capabilities,
            tokenizer=tokenizer,
            chat_template=chat_template,
            limits=self._limits,
            extensions=extensions,
            breakers=BreakerFinder(tokenizer),
            thinking=find and ThinkingPlan(find, self._limits.thinking, tokenizer),
        )

    def close(self) -> None:
        """End the threads, when no request is left; a grammar that still compiles runs to its end and is dropped."""
        for pool in (self._grammar_pool, self._template_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._pieces.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self._preparer.chat_template

    @property
    def max_model_len(self) -> int:
        """The context length: prompt and completion tokens of one sequence."""
        return self._preparer.max_model_len

    @property
    def request_timeout_s(self) -> float | None:
        return self._limits.request_timeout_s

    @property
    def head_after_s(self) -> float:
        """Seconds after its preparation in which a request can still be refused: by the engine, or for waiting too long."""
        return self._limits.head_after_s + (self._limits.queue_timeout_s or 0.0)

    async def run(self, request: GenerationRequest, take: TakeEvent) -> None:
        """Hand the events to `take` until each of the `n` sequences has finished. Cancelling this aborts the request.

        The first event has the prompt's facts. Raises: InvalidRequest, CapacityError, RequestTimeout, Overloaded, and
        what the engine raises.
        """
        call = current_call()
        deadline = self._deadline(call)
        request = self._with_adapter(request)
        record = new_request(request.request_id, request.sampling.n, request.adapter)
        record.asked = request
        prepared = await self._prepare(request, deadline, record, call)
        record.waits(prepared.engine_request)
        if call is not None:
            call.take(call, record)
        # An engine that cannot keep callers apart would show one caller which prompts another has sent.
        hides_cached = self._limits.prefix_cache_per_key and not self._engine.capabilities.cache_salt
        answer = _Answer(prepared, self._pieces, self._extensions, record, take, hides_cached=hides_cached)
        work = deliver(self._engine, prepared.engine_request, answer.push)
        try:
            await (work if deadline is None else deadline.run(work))
        except QueueTimeout as error:
            raise QueueTimeout(f"the request waited {self._limits.queue_timeout_s:g} s without starting") from error
        if not answer.is_finished:
            raise EngineFailed(f"the engine ended request {request.request_id} before all its sequences were finished")

    def progress(self, request_id: str) -> PromptProgress | None:
        """The progress of a request that has no token yet; None = not known, or it has one. See `TellingProgress`."""
        engine = self._engine
        return engine.progress(request_id) if isinstance(engine, TellingProgress) else None

    async def prepare(self, request: GenerationRequest) -> PreparedRequest:
        """Raises: InvalidRequest, CapacityError, RequestTimeout."""
        call, record = current_call(), RequestRecord(request.request_id)
        return await self._prepare(self._with_adapter(request), self._deadline(call), record, call)

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Raises: as `run`."""
        fold = ResultFold(request)
        await self.run(request, fold.push)
        return fold.result()

    async def tokenize(self, prompt: Prompt) -> PromptTokens:
        """A prompt as the model would see it. Raises: InvalidRequest, CapacityError, what loading its pictures raises."""
        if self._may_hold_pictures(prompt):
            prompt = await self._with_pictures(prompt, self._deadline(current_call()))
        has_process = self._preparer.has_process(prompt)
        if not has_process and num_characters(prompt) <= self._limits.max_inline_chars:
            return self._preparer.tokenize(prompt)
        pool = self._template_pool if has_process else self._pool
        return await asyncio.get_running_loop().run_in_executor(pool, self._preparer.tokenize, prompt)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Shows special tokens. Raises: InvalidRequest for ids outside the vocabulary."""
        if len(token_ids) <= self._limits.max_inline_chars:
            return self._detokenize(token_ids)
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._detokenize, token_ids)

    def _detokenize(self, token_ids: Sequence[int]) -> str:
        self._preparer.check_vocabulary(token_ids, "tokens")
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    def _with_adapter(self, request: GenerationRequest) -> GenerationRequest:
        """The model's name may stand for an adapter. Raises: InvalidPayload."""
        names = self._engine.capabilities.adapters
        if request.adapter and request.adapter not in names:
            raise InvalidPayload(
                f"The adapter {request.adapter} has not been registered (registered: {', '.join(names) or 'none'})",
                param="adapter",
            )
        is_named = request.adapter is None and request.model in names and request.model != self._preparer.model_name
        return msgspec.structs.replace(request, adapter=request.model) if is_named else request

    def _may_hold_pictures(self, prompt: Prompt) -> TypeGuard[ChatPrompt]:
        return (
            self._extensions.pictures is not None and self.chat_template is not None and isinstance(prompt, ChatPrompt)
        )

    async def _with_pictures(self, prompt: ChatPrompt, deadline: _Deadline | None) -> ChatPrompt:
        assert self._extensions.pictures is not None
        work = self._extensions.pictures.brought(prompt)
        return await (work if deadline is None else deadline.run(work))

    async def _prepare(
        self, request: GenerationRequest, deadline: _Deadline | None, record: RequestRecord, call: CallRecord | None
    ) -> PreparedRequest:
        if self._may_hold_pictures(request.prompt):
            request = msgspec.structs.replace(request, prompt=await self._with_pictures(request.prompt, deadline))
            record.pictured_s = perf_counter()
        turn = self._turn(deadline, call)
        if not self._preparer.is_long(request):
            prepared = self._preparer.prepare(request, turn)
        else:
            work = asyncio.get_running_loop().run_in_executor(
                self._pool_of(request), self._preparer.prepare, request, turn
            )
            prepared = await (work if deadline is None else deadline.run(work))
        record.prepared_s = perf_counter()
        return prepared

    def _pool_of(self, request: GenerationRequest) -> Executor | None:
        """The threads that prepare the request: those that may wait are apart from the others."""
        if self._preparer.has_grammar(request):
            return self._grammar_pool
        return self._template_pool if self._preparer.has_process(request.prompt) else self._pool

    def _turn(self, deadline: _Deadline | None, call: CallRecord | None) -> Turn:
        limit_s = self._limits.queue_timeout_s
        return Turn(
            "" if call is None else call.caller,
            None if limit_s is None else time.time() + limit_s,
            None if deadline is None else deadline.unix_s,
            USUAL_STANDING if call is None or not self._engine.capabilities.priority else call.standing,
            None if call is None else call.trace,
        )

    def _deadline(self, call: CallRecord | None) -> _Deadline | None:
        limit_s = self._limits.request_timeout_s
        if call is not None and call.timeout_s is not None:
            left_s = max(call.begin_s + call.timeout_s - perf_counter(), 0.0)
            if limit_s is None or left_s < limit_s:
                return _Deadline(left_s, f"the {call.timeout_s:g} s that the client allows", call.timeout_name)
        return None if limit_s is None else _Deadline(limit_s, f"the {limit_s:g} s that the server allows")


class _Answer:
    __slots__ = (
        "_hides_cached",
        "_num_unfinished",
        "_pieces",
        "_prepared",
        "_prompt",
        "_record",
        "_sequences",
        "_take",
        "_waits_for_prompt",
    )

    def __init__(
        self,
        prepared: PreparedRequest,
        pieces: TokenPieces,
        extensions: Extensions,
        record: RequestRecord,
        take: TakeEvent,
        *,
        hides_cached: bool,
    ) -> None:
        self._hides_cached = hides_cached
        self._take = take
        self._prepared = prepared
        self._record = record
        self._pieces = pieces
        self._prompt: PromptInfo | None = None  # known, and not in an event yet
        self._waits_for_prompt = True
        request = prepared.request
        parsers = [parser_of(extensions.make_parser, request, prepared.prompt_text) for _ in range(request.sampling.n)]
        self._sequences = [
            SequenceText(
                index, request, pieces, parser, frozenset() if parser is None else extensions.marker_ids, sequence
            )
            for index, (parser, sequence) in enumerate(zip(parsers, record.sequences, strict=True))
        ]
        self._num_unfinished = request.sampling.n

    @property
    def is_finished(self) -> bool:
        return self._num_unfinished == 0

    def push(self, output: EngineOutput) -> bool:
        """Returns True while the request needs more outputs."""
        sequence = self._sequences[output.index]
        if self._hides_cached:
            output.num_cached_tokens = 0
        if self._waits_for_prompt:
            self._begin(output)
        elif sequence.is_finished:
            return True  # others go on
        event = sequence.push(output, self._prompt)
        if event is not None:
            if output.num_cached_tokens and self._prompt is None:  # told later than the prompt
                event = msgspec.structs.replace(event, num_cached_tokens=output.num_cached_tokens)
                self._record.num_cached_tokens = output.num_cached_tokens
            self._prompt = None
            if sequence.is_finished:
                self._num_unfinished -= 1
                self._record.num_preemptions += output.num_preemptions
            self._take(event)
        return self._num_unfinished > 0

    def _begin(self, first: EngineOutput) -> None:
        self._waits_for_prompt = False
        self._prompt = self._prompt_info(first)
        self._record.has_prompt(self._prompt)
        self._record.queue_s = first.queue_s
        self._record.num_stored_tokens = 0 if self._hides_cached else first.num_stored_tokens

    def _prompt_info(self, first: EngineOutput) -> PromptInfo:
        request = self._prepared.engine_request
        info = prompt_info(self._prepared.prompt_text, request.prompt_ids, first, self._pieces, request.seed)
        if not request.cache_keep_s:
            return info
        num_kept = len(request.prompt_ids) // BLOCK_TOKENS * BLOCK_TOKENS
        return msgspec.structs.replace(info, num_kept_tokens=num_kept)


class _Deadline:
    """Covers preparing too, and an engine that hangs. `when`: in the event loop's time. `field`: the header that asks."""

    def __init__(self, limit_s: float, words: str, field: str = "") -> None:
        self._words = words
        self._field = field
        self.when = asyncio.get_running_loop().time() + limit_s

    @property
    def unix_s(self) -> float:
        """The deadline in seconds since the epoch, by the clock as it is now; use it at once, since clocks are set."""
        return time.time() + self.when - asyncio.get_running_loop().time()

    async def run(self, work: Awaitable[T]) -> T:
        """Cancels `work` when the time is over. Raises: RequestTimeout, DeadlineTooShort."""
        timeout = asyncio.timeout_at(self.when)
        try:
            async with timeout:
                return await work
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise self._error() from error
        except DeadlineTooShort as error:
            raise self._refusal(error) from error
        except RequestTimeout as error:  # the engine was first
            raise self._error() from error

    def _error(self) -> RequestTimeout:
        return RequestTimeout(f"the request took longer than {self._words}")

    def _refusal(self, error: DeadlineTooShort) -> DeadlineTooShort:
        named = f" ({self._field})" if self._field else ""
        message = (
            f"the request cannot be answered within {self._words}{named}: its first token is at least "
            f"{error.needed_s:.3g} s away, by the forecast"
        )
        return DeadlineTooShort(message, param=self._field or None, needed_s=error.needed_s)


class ResultFold:
    """Gathers the events of one request for its result."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._prompt: PromptInfo | None = None
        self._events: list[list[GenerationEvent]] = [[] for _ in range(request.sampling.n)]

    def push(self, event: GenerationEvent) -> None:
        self._prompt = self._prompt or event.prompt
        if event.num_cached_tokens and self._prompt is not None:
            self._prompt = msgspec.structs.replace(self._prompt, num_cached_tokens=event.num_cached_tokens)
        self._events[event.index].append(event)

    def result(self) -> GenerationResult:
        """Raises: EngineFailed if the events did not finish every sequence."""
        if self._prompt is None:
            raise EngineFailed("generation ended before it began")
        sequences = tuple(_sequence(index, events) for index, events in enumerate(self._events))
        return GenerationResult(self._request, self._prompt, sequences)


def _sequence(index: int, events: Sequence[GenerationEvent]) -> SequenceResult:
    if not events or (reason := events[-1].finish_reason) is None:
        raise EngineFailed(f"generation ended before sequence {index} finished")
    return SequenceResult(
        index=index,
        text="".join([event.text for event in events]),
        tokens=tuple([token for event in events for token in event.tokens]),
        finish_reason=reason,
        stop_match=events[-1].stop_match,
        content="".join([event.content for event in events]),
        reasoning="".join([event.reasoning for event in events]),
        tool_calls=joined_calls([delta for event in events for delta in event.tool_calls]),
        cumulative_logprob=events[-1].cumulative_logprob,
    )
