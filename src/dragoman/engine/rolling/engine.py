"""The rolling engine as the server uses it: the Engine protocol over a step loop on its own thread.

`_run_loop` and its callees run on the engine thread, the rest on event loops. Each call of `generate` gets a new key:
two calls may have the same request id.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from collections.abc import Sequence as Rows
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import perf_counter

import msgspec

from dragoman.engine.base import Capabilities, EngineStats, EngineTools, Health, PromptProgress, Take
from dragoman.engine.life import Delivering, OnThread
from dragoman.engine.rolling.adapters import AdapterTable
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import AbortRequest, EngineCore, RunBetween, due_on
from dragoman.engine.rolling.forward.runner import ModelRunner
from dragoman.engine.rolling.pictures import PictureEmbedder, PromptPictures
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.schedule.capacity import cache_length, check_capacity, context_length
from dragoman.engine.rolling.sequence import AdapterUse, AddRequest
from dragoman.engine.rolling.speculate.proposer import Proposer
from dragoman.engine.rolling.step_log import StepLog
from dragoman.engine.rolling.stored_prefixes.store import Storage
from dragoman.engine.rolling.update import Delivery
from dragoman.errors import Cancelled, EngineDead, ServerError
from dragoman.types import EngineOutput, EngineRequest, TokenMasker

_Item = EngineOutput | ServerError


class _Stream:
    """The receiving end of one request, on its event loop. `ended`: done when all sequences have ended, or failed."""

    def __init__(self, key: int, request: EngineRequest, take: Take, adapter: AdapterUse | None) -> None:
        self.key = key
        self.adapter = adapter
        self.loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self._num_unfinished = request.sampling.n
        self._take = take

    @property
    def is_finished(self) -> bool:
        return self._num_unfinished == 0

    def put(self, item: _Item) -> None:
        """Deliver an output or an error. An exception in here fails this request alone."""
        if self.ended.done():
            return
        if isinstance(item, ServerError):
            self._num_unfinished = 0
            self.ended.set_exception(item)
            return
        if item.finish_reason is not None:
            self._num_unfinished -= 1
        try:
            wants_more = self._take(item)
        except (
            BaseException
        ) as error:  # libraries' panics do not derive from Exception; the request's task reports them
            self.ended.set_exception(error)
        else:
            if not wants_more or self._num_unfinished == 0:
                self.ended.set_result(None)


class RollingEngine(Delivering):
    """Runs requests on `runner`, mixed in every step. Owns everything that it is given: `shutdown` closes it."""

    def __init__(
        self,
        runner: ModelRunner,
        sampler: Sampler,
        config: RollingConfig | None = None,
        proposers: Rows[Proposer] = (),
        tools: EngineTools | None = None,
        embedder: PictureEmbedder | None = None,
        adapters: AdapterTable | None = None,
        storage: Storage | None = None,
    ) -> None:
        """`tools` None = no features that need texts. `embedder`, `adapters`, `storage` None = no pictures, no
        adapters, no prefix store.
        """
        config = config or RollingConfig()
        self._runner = runner
        self._config = config
        self._mask_wait_s = sampler.mask_wait_s
        self._proposers = tuple(proposers)
        self._tools = tools
        self._embedder = embedder
        self._adapters = adapters
        self._changes: set[Future[None]] = set()  # calls that wait for the engine thread
        self._core = EngineCore(runner, sampler, config, proposers, embedder=embedder, storage=storage)
        # A sequence must fit both the context and the whole cache.
        lengths = (context_length(runner, config), cache_length(runner))
        self._capabilities = Capabilities(
            max_model_len=min(length for length in lengths if length is not None),
            vocab_size=runner.vocab_size,
            beam_search=True,
            best_of=True,
            grammar=tools is not None,
            stop_strings=tools is not None,
            speculative=bool(proposers),
            cache_salt=True,
            cache_keep=storage is not None and config.prefix_cache != "off",
            priority=True,
            queue_timeout=True,
            pictures=embedder is not None,
            bounds_answers=tools is not None,
            progress=True,
            context_shift=True,
        )
        self._keys = count()
        self._streams: dict[int, _Stream] = {}
        self._keys_by_id: dict[str, int] = {}  # of running requests; of several with the same request id, the newest
        self._streams_changed = threading.Condition()  # guards writes to `_streams`
        self._life = OnThread("dragoman-engine")

    def log_steps(self, log: StepLog) -> None:
        """Run every step within `log`, which this engine closes. Call this before `start`."""
        self._core.step_log = log

    @property
    def capabilities(self) -> Capabilities:
        if self._adapters is not None and self._capabilities.adapters != self._adapters.names:
            self._capabilities = replace(self._capabilities, adapters=self._adapters.names)
        return self._capabilities

    async def start(self) -> None:
        self._life.begin(self._run_loop, self._fail)

    async def deliver(self, request: EngineRequest, take: Take) -> None:
        self.capabilities.check(request)
        # Computed now: preparing the request may take long, and the wall clock may be set meanwhile.
        due = due_on(perf_counter, request)
        masker = await self._compile(request)
        pictures = await self._embed(request)
        # The command and its sequences are in a reference cycle, which lives on for a while; the pixels are too large for
        # that.
        if request.pictures:
            request = msgspec.structs.replace(request, pictures=())
        self._life.check_open()
        criterion = None if self._tools is None else self._tools.criterion_of(request)
        watch = self._tools.watch_answer(request) if self._tools is not None and request.is_watched else None
        adapter = None if request.adapter is None or self._adapters is None else self._adapters.use(request.adapter)
        stream = _Stream(next(self._keys), request, take, adapter)
        command = AddRequest(stream.key, request, masker, criterion, pictures, adapter, watch, due)
        # The stream is registered first, so that closing the inbox finds and answers it.
        with self._streams_changed:
            self._streams[stream.key] = stream
        self._keys_by_id[request.request_id] = stream.key
        try:
            if not self._core.inbox.put(command):
                self._life.check_open()
            await stream.ended
        finally:
            if self._keys_by_id.get(request.request_id) == stream.key:
                del self._keys_by_id[request.request_id]
            if stream.ended.done() and not stream.ended.cancelled():
                stream.ended.exception()  # even if this was cancelled meanwhile: asyncio logs unretrieved exceptions
            self._close_stream(stream)

    def check(self, request: EngineRequest) -> None:
        self.capabilities.check(request)
        self._life.check_open()
        check_capacity(request, self._runner, self._config)

    async def load_adapter(self, name: str, directory: Path, *, is_replacing: bool = False) -> None:
        assert self._adapters is not None
        self._life.check_open()
        await self._adapters.load(name, directory, self._run_between_steps, is_replacing=is_replacing)

    async def unload_adapter(self, name: str) -> None:
        assert self._adapters is not None
        await self._adapters.unload(name)

    def progress(self, request_id: str) -> PromptProgress | None:
        self._core.progress.ask()
        key = self._keys_by_id.get(request_id)
        return None if key is None else self._core.progress.rows.get(key)

    def health(self) -> Health:
        stats = self._core.stats
        return Health(
            is_alive=not self._life.death,
            reason=self._life.death,
            num_running=stats.num_running_requests,
            num_waiting=stats.num_waiting_requests + self._core.inbox.num_pending_requests,
            num_used_blocks=stats.num_used_blocks,
            num_blocks=sum(pool.num_blocks for pool in self._runner.pools),
        )

    def stats(self) -> EngineStats:
        totals, embedder = replace(self._core.stats.totals(), mask_wait_s=self._mask_wait_s), self._embedder
        if embedder is None:
            return totals
        return replace(totals, num_pictures=embedder.num_pictures, num_picture_hits=embedder.num_hits)

    async def shutdown(self, drain_s: float) -> None:
        await self._life.drain(self._wait_until_idle, drain_s)
        self._core.inbox.close()
        self._deliver([Delivery(key, Cancelled("the server is shutting down")) for key in list(self._streams)])
        await self._life.join()
        is_whole = not self._life.death
        self._life.end()
        self._end_changes()
        await asyncio.to_thread(self._close, is_whole)

    def _close(self, is_whole: bool) -> None:
        """Not for an event loop: freeing gigabytes takes a while."""
        self._core.close(is_whole=is_whole)
        if self._core.step_log is not None:
            self._core.step_log.close()
        self._runner.close()
        for proposer in self._proposers:
            proposer.close()
        if self._embedder is not None:
            self._embedder.close()

    # --- streams: on event loops --------------------------------------------------------------------------------------

    async def _compile(self, request: EngineRequest) -> TokenMasker | None:
        """The start state of the request's grammar, compiled on a worker thread. Raises: InvalidRequest."""
        grammar = request.sampling.grammar
        if grammar is None or self._tools is None:
            return None
        self._life.check_open()
        return await asyncio.to_thread(self._tools.compile_grammar, grammar)

    async def _embed(self, request: EngineRequest) -> PromptPictures | None:
        """Raises: InvalidRequest, Overloaded, EngineFailed, Cancelled."""
        if not request.pictures or self._embedder is None:
            return None
        self._life.check_open()
        return PromptPictures(request, await self._embedder.embed(request.pictures), self._embedder.facts)

    def _close_stream(self, stream: _Stream) -> None:
        with self._streams_changed:
            was_open = self._streams.pop(stream.key, None) is not None
            self._streams_changed.notify_all()
        if was_open and stream.adapter is not None and self._adapters is not None:
            self._adapters.release(stream.adapter)
        if not stream.is_finished:
            self._core.inbox.put(AbortRequest(stream.key))

    def _run_between_steps(self, action: Callable[[], None]) -> Future[None]:
        """The result of `action`, run on the engine thread. Raises: EngineDead, Overloaded."""
        done: Future[None] = Future()

        def run() -> None:
            self._changes.discard(done)
            if not done.set_running_or_notify_cancel():
                return
            try:
                action()
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._changes.add(done)
        if not self._life.has_begun:  # the thread does not run yet
            run()
        elif not self._core.inbox.put(RunBetween(run)):
            self._changes.discard(done)
            self._life.check_open()
        return done

    def _end_changes(self) -> None:
        while self._changes:
            change = self._changes.pop()
            if change.set_running_or_notify_cancel():
                change.set_exception(EngineDead(self._life.death))

    def _wait_until_idle(self, timeout_s: float) -> None:
        with self._streams_changed:
            self._streams_changed.wait_for(lambda: not self._streams, timeout_s)

    # --- the loop: on the engine thread -------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        core = self._core
        log = core.step_log or nullcontext()
        while core.inbox.wait(lambda: core.has_work() or core.has_chores()):
            with log:
                self._deliver(core.step())

    def _fail(self, error: EngineDead) -> None:
        self._core.inbox.close()
        self._end_changes()
        self._deliver([Delivery(key, error) for key in list(self._streams)])

    def _deliver(self, deliveries: list[Delivery]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, _Item]]] = {}
        for key, item in deliveries:
            stream = self._streams.get(key)
            if stream is not None:  # else the stream was closed meanwhile, and its abort is in the inbox
                by_loop.setdefault(stream.loop, []).append((stream, item))
        for loop, items in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put_all, items)
            except RuntimeError:  # the loop was closed without closing its streams: nothing reads them any more
                self._abandon(loop)

    def _abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        for stream in [stream for stream in list(self._streams.values()) if stream.loop is loop]:
            self._close_stream(stream)


def _put_all(items: list[tuple[_Stream, _Item]]) -> None:
    for stream, item in items:
        stream.put(item)
