"""The model that answers a batch, in this process.

Does: build it and the application over it, as `dragoman serve` does, and end both. Does not: listen. Called by the batch
command, on the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.batch.requests import BatchError
from dragoman.cli.batch.in_process import AppSender
from dragoman.cli.local_app import local_app
from dragoman.cli.progress import ProgressDisplay
from dragoman.compose import build_served_model
from dragoman.config.resolve import Config
from dragoman.errors import ServerError
from dragoman.models import ModelError


@asynccontextmanager
async def batch_model(config: Config, display: ProgressDisplay) -> AsyncIterator[AppSender]:
    """The application with this model, as a server has it, but for keys: there are no strangers here.

    Raises: BatchError or ConfigError if it cannot be loaded.
    """
    try:
        composed = await build_served_model(config, display)
    except (ModelError, ServerError) as error:
        raise BatchError(str(error)) from error
    finally:
        display.finish()
    served = composed.served
    try:
        app = local_app(served, config.server)
        try:
            yield AppSender(app, served.engine)
        finally:
            await app.aclose()
    finally:
        await served.engine.shutdown(0.0)
        composed.close()
