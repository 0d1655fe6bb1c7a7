"""The upstreams of an engine: chooses one for each request, watches their health, retries before the first token."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from dragoman.engine.affinity import preferred
from dragoman.engine.base import UpstreamHealth
from dragoman.engine.remote.upstream import Upstream, UpstreamBusy, UpstreamError, new_session
from dragoman.engine.remote.wire import Model, adapters_of
from dragoman.errors import EngineFailed, Overloaded, ServerError, Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

CHECK_EVERY_S = 5.0
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0
MAX_TRIES = 3  # per request: what makes one server fail may make all fail

Greet = Callable[[Upstream], Awaitable[None]]
"""Finds out what an upstream can do that is not known, and whether one in doubt makes a token. Raises: UpstreamError.
"""


class Route(NamedTuple):
    """The beginning of a request's prompt, and the adapter that an upstream must have."""

    prefix: bytes
    adapter: str | None = None


class Fleet:
    """The upstreams, watched from `open` to `close`.

    `hedge_after_s`: seconds without an answer after which a second upstream is asked too; None = never. `num_hedges`
    counts these, `num_hedges_won` those in which the second upstream answered first.
    """

    def __init__(
        self, upstreams: Sequence[Upstream], api_key: str | None, greet: Greet, hedge_after_s: float | None = None
    ) -> None:
        self._upstreams = {upstream.url: upstream for upstream in upstreams}
        self._api_key = api_key
        self._greet = greet
        self._hedge_after_s = hedge_after_s
        self.num_hedges = 0
        self.num_hedges_won = 0
        self._suspects = {url: asyncio.Event() for url in self._upstreams}  # set = check now
        self._watchers: list[asyncio.Task[None]] = []
        self._session_close: Callable[[], Awaitable[None]] | None = None

    async def open(self) -> None:
        session = new_session(self._api_key)
        self._session_close = session.close
        for upstream in self._upstreams.values():
            upstream.attach(session)
            self._watchers.append(asyncio.create_task(self._watch(upstream)))

    async def close(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        if self._session_close is not None:
            await self._session_close()

    @property
    def problem(self) -> str:
        """The reason why no upstream takes requests, "" if one does."""
        if not all(upstream.problem for upstream in self._upstreams.values()):
            return ""
        return "no upstream answers: " + "; ".join(upstream.problem for upstream in self._upstreams.values())

    def health(self) -> tuple[UpstreamHealth, ...]:
        return tuple(
            UpstreamHealth(upstream.url, upstream.is_healthy, upstream.num_outstanding)
            for upstream in self._upstreams.values()
        )

    @property
    def adapters(self) -> tuple[str, ...]:
        """The adapters that any upstream listed last, healthy or not."""
        return tuple(dict.fromkeys(name for upstream in self._upstreams.values() for name in upstream.adapters))

    async def first_answer(
        self, route: Route, ask: Callable[[Upstream], Awaitable[T]], drop: Callable[[T], None] | None = None
    ) -> T:
        """The answer of the upstream that the prompt's prefix maps to, or of another one if that fails or is slow.

        `ask` sends the request. `drop` ends an answer; without it only one upstream is asked at a time. Raises: the
        errors of `ask`, except that UpstreamError becomes Overloaded, Unavailable or EngineFailed.
        """
        tried: dict[str, UpstreamError] = {}
        while len(tried) < MAX_TRIES and (upstream := self._next(route, tried)) is not None:
            if self._hedge_after_s is not None and drop is not None:
                answer = await self._hedged(route, upstream, (ask, drop), tried)
                if answer is not None:
                    return answer
                continue
            try:
                return await ask(upstream)
            except UpstreamError as error:
                tried[upstream.url] = error
                self._suspect(upstream, error)
        raise self._failure(list(tried.values()), route)

    def check(self, route: Route) -> None:
        """Raises: Unavailable if no upstream takes requests."""
        if self._next(route, ()) is None:
            raise self._failure((), route)

    def _next(self, route: Route, without: Collection[str]) -> Upstream | None:
        able = [
            upstream
            for upstream in self._upstreams.values()
            if not upstream.problem
            and upstream.url not in without
            and (route.adapter is None or route.adapter in upstream.adapters)
        ]
        # If all are in doubt, one bad request may be the cause: other requests still get a server.
        loads = {
            upstream.url: upstream.num_outstanding
            for upstream in [upstream for upstream in able if upstream.is_healthy] or able
        }
        return self._upstreams[preferred(route.prefix, loads)[0]] if loads else None

    async def _hedged(
        self,
        route: Route,
        first: Upstream,
        ways: tuple[Callable[[Upstream], Awaitable[T]], Callable[[T], None]],
        tried: dict[str, UpstreamError],
    ) -> T | None:
        """The answer of `first`, or of a second upstream that is asked when `first` takes too long.

        None if neither answers; `tried` then has their errors. The slower request is cancelled.
        """
        ask, drop = ways
        tasks: dict[asyncio.Future[T], Upstream] = {asyncio.ensure_future(ask(first)): first}
        try:
            done, _ = await asyncio.wait(tasks, timeout=self._hedge_after_s)
            second = None if done else self._next(route, {first.url, *tried})  # a failure is retried by the caller
            if second is not None:
                self.num_hedges += 1
                tasks[asyncio.ensure_future(ask(second))] = second
            while tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                task = done.pop()
                upstream = tasks.pop(task)
                try:
                    answer = task.result()
                except UpstreamError as error:
                    tried[upstream.url] = error
                    self._suspect(upstream, error)
                else:
                    self.num_hedges_won += upstream is not first
                    return answer
            return None
        finally:
            for task in tasks:  # not awaited: a cancellation here would lose the winning answer
                task.cancel()
                task.add_done_callback(partial(_drop, drop))

    def _failure(self, errors: Sequence[UpstreamError], route: Route) -> ServerError:
        if not errors:
            return Unavailable(self.problem or f"no upstream that answers has the adapter {route.adapter}")
        busy = [error for error in errors if isinstance(error, UpstreamBusy)]
        if len(busy) == len(errors):
            return Overloaded(str(busy[0]), retry_after_s=min(error.retry_after_s for error in busy))
        if all(error.is_unreachable for error in errors):
            return Unavailable(str(errors[-1]))
        return EngineFailed(str(next(error for error in errors if not isinstance(error, UpstreamBusy))))

    def _suspect(self, upstream: Upstream, error: UpstreamError) -> None:
        """Have an upstream checked. One that is unreachable or has failed gets no requests until then."""
        if isinstance(error, UpstreamBusy):
            return
        logger.warning("%s", error)
        if upstream.is_healthy:  # others are checked after their pause
            self._suspects[upstream.url].set()
        if error.is_unreachable:
            upstream.problem = str(error)
        elif error.is_failure:
            upstream.doubt = str(error)

    async def _watch(self, upstream: Upstream) -> None:
        """Check an upstream repeatedly: at long intervals while it is healthy, else at growing ones."""
        pause_s = FIRST_RETRY_S
        suspect = self._suspects[upstream.url]
        while True:
            try:
                async with asyncio.timeout(
                    (CHECK_EVERY_S if upstream.is_healthy else pause_s) * random.uniform(0.8, 1.2)
                ):
                    await suspect.wait()
            except TimeoutError:
                pass
            if suspect.is_set():
                suspect.clear()
                if not upstream.is_healthy:  # it has just failed: wait a little
                    await asyncio.sleep(FIRST_RETRY_S)
            was_healthy = upstream.is_healthy
            problem = await self._check(upstream)
            if problem and not upstream.problem:
                logger.warning("upstream %s is left out: %s", upstream.url, problem)
            elif not problem and not was_healthy:
                logger.info("upstream %s answers", upstream.url)
            if problem or not suspect.is_set():  # else a newer failure has come meanwhile
                upstream.problem = problem
            pause_s = min(pause_s * 2, LAST_RETRY_S) if problem else FIRST_RETRY_S

    async def _check(self, upstream: Upstream) -> str:
        """The problem with an upstream, "" if there is none."""
        try:
            listed = await upstream.models()
            _compare(upstream, listed)
            await self._greet(upstream)
            if upstream.profile is not None:
                upstream.adapters = adapters_of(upstream.profile.model, listed)
        except UpstreamError as error:
            return str(error)
        except ServerError as error:
            return f"{upstream.url}: {error.message}"
        except Exception as error:  # whatever a server sends, watching goes on
            logger.exception("upstream %s cannot be checked", upstream.url)
            return f"{upstream.url}: {type(error).__name__}"
        return ""


def _compare(upstream: Upstream, listed: Sequence[Model]) -> None:
    """Raises: UpstreamError if the upstream no longer lists the model of its profile."""
    profile = upstream.profile
    if profile is None:
        return
    model = next((entry for entry in listed if entry.id == profile.model), None)
    if model is None:
        upstream.is_known = False
        raise UpstreamError(f"{upstream.url} no longer lists model {profile.model}")
    if (model.context_len, model.kind) != (profile.max_model_len, profile.kind):
        upstream.is_known = False


def _drop(drop: Callable[[T], None], task: asyncio.Future[T]) -> None:
    if not task.cancelled() and task.exception() is None:
        drop(task.result())
