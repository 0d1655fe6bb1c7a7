"""A desk of batches without a server: what is asked is answered as a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from dragoman.server.api import Reply
from dragoman.server.batches.desk import Desk
from dragoman.server.batches.store import Store, StoreConfig, StoredBatch
from tests.support.patience import PATIENCE_S


def lines(prompts: Sequence[str], **body: Any) -> bytes:
    """The input of a batch: a completion for each prompt."""
    asked = [
        {
            "custom_id": f"c{n}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "m", "prompt": text, **body},
        }
        for n, text in enumerate(prompts)
    ]
    return b"".join(json.dumps(one).encode() + b"\n" for one in asked)


async def good(body: bytes) -> Reply:
    """The answer that all is well."""
    return Reply(200, b"{}", "application/json")


class Case:
    """A desk over a directory, with a clock of its own, whose requests are answered as `reply` says."""

    def __init__(self, directory: Path, reply: Callable[[bytes], Awaitable[Reply]]) -> None:
        self.now_s = 1_000_000.0
        self.store = Store(StoreConfig(directory), lambda: self.now_s)
        self.asked: list[bytes] = []

        async def ask(path: str, body: bytes, caller: str) -> Reply:
            self.asked.append(body)
            return await reply(body)

        self.desk = Desk(self.store, ask)

    async def submit(self, prompts: Sequence[str], max_age_s: int = 100) -> StoredBatch:
        """A batch of these prompts."""
        file = self.store.add_file("", "in", "batch", lines(prompts))
        return await self.desk.submit("batch", "", "/v1/completions", file.id, max_age_s)

    async def until_ended(self, batch: StoredBatch) -> StoredBatch:
        """The batch once it has ended."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := self.store.batch(batch.id, "")).has_ended:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0)
        return found
