"""The messages between a server and the engine of a node: pickled, each behind its length.

Both ends are this program, parent and child, over a private socket: so no stranger can abuse pickle.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.config.resolve import Config
from dragoman.engine.base import EngineStats, Health, PromptProgress
from dragoman.engine.spread import Description, Failure
from dragoman.types import EngineOutput, EngineRequest

_LENGTH = struct.Struct("<Q")


# --- to the node ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """The first message: load this model as this node. `shares`: other models compute on the same cores."""

    config: Config
    name: str
    shares: bool
    num_nodes: int


@dataclass(frozen=True, slots=True)
class Build:
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Generate:
    """`key`: unique among the requests to this node."""

    key: int
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    key: int


@dataclass(frozen=True, slots=True)
class AskProgress:
    """Answered with ToldProgress; again after the next step if it is not known yet."""

    key: int
    request_id: str


@dataclass(frozen=True, slots=True)
class ChangeAdapter:
    """Load an adapter, or with `directory` None unload it. Answered with Changed."""

    number: int
    name: str
    directory: Path | None
    is_replacing: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process; the last message."""


# --- from the node ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loading:
    stage: str
    fraction: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """The weights are loaded; free memory can be divided now."""


@dataclass(frozen=True, slots=True)
class Built:
    description: Description
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The load failed for these reasons. `is_config`: options are wrong, not the model."""

    problems: tuple[str, ...]
    is_config: bool


@dataclass(frozen=True, slots=True)
class Replied:
    """Outputs of a step by their requests' keys; None = that request has ended."""

    items: tuple[tuple[int, EngineOutput | Failure | None], ...]


@dataclass(frozen=True, slots=True)
class ToldProgress:
    key: int
    progress: PromptProgress | None


@dataclass(frozen=True, slots=True)
class Changed:
    """The node's adapters after a change, which failed unless `error` is None."""

    number: int
    error: Exception | None
    adapters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gauged:
    health: Health
    stats: EngineStats


def packed(message: object) -> bytes:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def read(link: socket.socket) -> Any:
    """The next message; waits for it. Raises: EOFError if the other end is gone."""
    (length,) = _LENGTH.unpack(_exactly(link, _LENGTH.size))
    return pickle.loads(_exactly(link, length))


def _exactly(link: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        try:
            part = link.recv(min(size - len(received), 1 << 20))
        except OSError as error:
            raise EOFError(str(error)) from error
        if not part:
            raise EOFError
        received += part
    return bytes(received)


async def receive(reader: asyncio.StreamReader) -> Any:
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except OSError as error:
        raise EOFError(str(error)) from error
