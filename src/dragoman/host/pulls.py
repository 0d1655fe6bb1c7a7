"""Brings models of the hub to this machine while the server runs: implements `server.hosting.ModelPulling`.

A download runs on a thread, and goes on when its clients have left. It ends with the process; the next one continues.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from dragoman.errors import InvalidParameter, Overloaded, ServerError, Unavailable
from dragoman.hub.download import Arrived, bring
from dragoman.hub.environment import HubEnvironment
from dragoman.hub.names import FORM, HubError, HubModel, hub_model
from dragoman.server.hosting import PullStep

MAX_AT_ONCE = 2  # models; each downloads several files at once
RETRY_S = 30  # retry time while too many run: a download takes minutes
MAX_SHOWN_LENGTH = 100  # of a client's name

logger = logging.getLogger("dragoman.host")


class ModelPulls:
    def __init__(self, environment: HubEnvironment) -> None:
        self._environment = environment
        self._running: dict[HubModel, _Download] = {}
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def pull(self, name: str) -> AsyncGenerator[PullStep]:
        if self._is_closed:
            raise Unavailable("the server is shutting down")
        model = hub_model(name)
        if model is None:
            raise InvalidParameter(
                f"model must be served here, or {FORM} as on the hub, got {name[:MAX_SHOWN_LENGTH]!r}", param="model"
            )
        download = self._running.get(model)
        if download is None:
            if len(self._running) >= MAX_AT_ONCE:
                busy = ", ".join(map(str, self._running))
                raise Overloaded(
                    f"{busy} are being downloaded, at most {MAX_AT_ONCE} downloads may run at the same time",
                    retry_after_s=RETRY_S,
                )
            download = _Download(model, self._environment, self._forget)
            download.start()
            self._running[model] = download
        return download.steps()

    async def aclose(self) -> None:
        self._is_closed = True
        for download in self._running.values():
            download.let_go(Unavailable("the server is shutting down; what has come is kept"))

    def _forget(self, model: HubModel) -> None:
        self._running.pop(model, None)


class _Download:
    """One running download. `forget` is called at its end."""

    def __init__(self, model: HubModel, environment: HubEnvironment, forget: Callable[[HubModel], None]) -> None:
        self._model = model
        self._environment = environment
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._step = PullStep(str(model))
        self._failure: ServerError | None = None
        self._is_over = False

    def start(self) -> None:
        logger.info("downloading %s, which a client has asked for", self._model)
        threading.Thread(target=self._run, name="pull-model", daemon=True).start()

    async def steps(self) -> AsyncGenerator[PullStep]:
        """The steps, from now to the end; a slow reader gets only the newest. Raises: ServerError if the download fails."""
        seen: PullStep | None = None
        while True:
            changed = self._changed  # before reading: later changes set this one
            if self._step is not seen:
                seen = self._step
                yield seen
            elif self._is_over:
                break
            else:
                await changed.wait()
        if self._failure is not None:
            raise self._failure

    def let_go(self, failure: ServerError | None) -> None:
        self._failure, self._is_over = failure, True
        self._wake()

    def _run(self) -> None:
        failure: ServerError | None = None
        try:
            path = bring(self._model, self._environment, lambda stage, fraction: None, self._note, self._count)
            logger.info("%s is here: %s", self._model, path)
        except HubError as error:
            failure = ServerError(str(error))
            logger.warning("%s", error)
        except Exception:  # thread boundary: waiting clients get the error
            failure = ServerError(f"{self._model}: cannot be downloaded, see the server's log")
            logger.exception("downloading %s failed", self._model)
        self._on_loop(lambda: self._end(failure))

    def _note(self, text: str) -> None:
        logger.warning("%s", text)
        self._on_loop(lambda: self._tell(PullStep(str(self._model), note=text)))

    def _count(self, arrived: Arrived) -> None:
        self._on_loop(lambda: self._tell(PullStep(str(self._model), arrived.commit, arrived.num_bytes, arrived.size)))

    def _on_loop(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has closed: the process ends
            self._loop.call_soon_threadsafe(act)

    def _tell(self, step: PullStep) -> None:
        if step != self._step:
            self._step = step
            self._wake()

    def _end(self, failure: ServerError | None) -> None:
        self._forget(self._model)
        self.let_go(failure)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
