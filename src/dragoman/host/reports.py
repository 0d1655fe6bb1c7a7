"""Reports of loading: receivers of its progress, called on the threads that load, and its failures.

Failures become errors of `dragoman.errors`; unexpected ones are logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from dragoman.config.resolve import ConfigError
from dragoman.config.run_time import NotStored
from dragoman.engine.factory import Progress
from dragoman.errors import (
    Conflict,
    EngineFailed,
    InvalidRequest,
    ModelError,
    NoMemory,
    NotFound,
    ServerError,
    Unavailable,
)
from dragoman.models.stages import READING_STAGES
from dragoman.server.registry import LoadProgress, ModelRegistry

logger = logging.getLogger("dragoman.host")


def noted_progress(registry: ModelRegistry, name: str, bytes_total: int, shown: Progress) -> Progress:
    begin_s, bytes_read = time.monotonic(), 0

    def report(stage: str, fraction: float) -> None:
        nonlocal bytes_read
        if stage in READING_STAGES:  # several graphs may be read, each from its beginning
            bytes_read = max(bytes_read, int(fraction * bytes_total))
        registry.note_progress(name, LoadProgress(stage, fraction, bytes_read, bytes_total, begin_s))
        shown(stage, fraction)

    return report


def log_progress(name: str) -> Progress:
    """A receiver that logs each new stage of a model's load."""

    def report(stage: str, fraction: float) -> None:
        if fraction == 0.0:
            logger.info("model %s: %s", name, stage)

    return report


logger = logging.getLogger("dragoman.host")

T = TypeVar("T")


async def told(work: Coroutine[Any, Any, T], name: str) -> T:
    try:
        return await work
    except (InvalidRequest, NotFound, Conflict, NoMemory, Unavailable):
        raise
    except NotStored as error:
        raise NotFound("; ".join(error.problems), param="model") from error
    except ConfigError as error:
        raise InvalidRequest("; ".join(error.problems)) from error
    except ModelError as error:
        raise InvalidRequest(f"Model {name} cannot be used: {error}") from error
    except Exception as error:  # load boundary: any error of a loader ends only this load
        logger.exception("loading model %s failed", name)
        raise EngineFailed(f"Model {name} could not be loaded: {type(error).__name__}: {error}") from error


async def tried(work: Coroutine[Any, Any, object], name: str, failures: dict[str, str]) -> bool:
    """True if `work` succeeded, else its failure is noted."""
    try:
        await work
    except ServerError as error:
        failures[name] = error.message
        return False
    return True
