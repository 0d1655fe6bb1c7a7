"""Translates failures of loading into errors of `dragoman.errors`, and logs unexpected ones."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from dragoman.config.resolve import ConfigError
from dragoman.config.run_time import NotStored
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
