"""Remembers models that are being loaded without a client that waits, and how they failed, until a client asks.

Used by LMI's management operations, on the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from dragoman.errors import ServerError
from dragoman.server.hosting import Changes, ModelSource, ModelState, ModelStatus
from dragoman.server.operations import Server

MAX_REMEMBERED = 100  # failures; the oldest are forgotten

logger = logging.getLogger("dragoman.host")


class Scheduled:
    def __init__(self, server: Server) -> None:
        self._changes = server.shared(Changes.of)
        self.statuses: dict[str, ModelStatus] = {}  # by name, in the order in which they were asked for

    def load(self, source: ModelSource, load: Coroutine[Any, Any, ModelStatus]) -> None:
        self._forget_oldest()
        self.statuses[source.name] = ModelStatus(source.name, ModelState.LOADING, source.url, version=source.version)
        self._changes.start(self._run(source.name, load))

    def replace(self, name: str, change: Coroutine[Any, Any, ModelStatus]) -> None:
        """Have `change` done; if it fails, the log tells, and the model that was there stays."""
        self._changes.start(_logged(name, change))

    async def _run(self, name: str, load: Coroutine[Any, Any, ModelStatus]) -> None:
        asked = self.statuses[name]
        failed: ModelStatus | None = None
        try:
            await _logged(name, load)
        except ServerError as error:
            failed = replace(asked, state=ModelState.FAILED, reason=error.message)
            raise
        finally:
            if self.statuses.get(name) is asked:
                del self.statuses[name]
                if failed is not None:
                    self.statuses[name] = failed

    def _forget_oldest(self) -> None:
        failed = [status.name for status in self.statuses.values() if status.state is ModelState.FAILED]
        for name in failed[: max(0, len(failed) - MAX_REMEMBERED + 1)]:
            del self.statuses[name]


async def _logged(name: str, change: Coroutine[Any, Any, ModelStatus]) -> None:
    try:
        await change
    except ServerError as error:
        logger.error("model %s: %s", name, error.message)
        raise
    except Exception:  # task boundary: nobody waits for it
        logger.exception("model %s was not loaded", name)
        raise
