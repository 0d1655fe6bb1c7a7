"""The protocol of senders, which answer the requests of a batch. Used on the event loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from dragoman import __version__

# On /v1/chat/completions the client's name selects one of two formats; batches are OpenAI's.
USER_AGENT = f"dragoman-batch/{__version__} (openai)"


class Unreachable(Exception):
    """There was no answer; a retry may help."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. `headers`: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Sender(Protocol):
    """Sends requests and returns their answers."""

    async def send(self, path: str, body: bytes) -> Answer:
        """The answer to `POST path`. Raises: Unreachable; BatchError if every further request would fail too."""
        ...
