"""Answers the requests of a batch by a server elsewhere, on the event loop. `batch.run` repeats requests."""

from __future__ import annotations

import asyncio

from dragoman.batch.requests import BatchError
from dragoman.batch.senders import USER_AGENT, Answer, Unreachable
from dragoman.tools.bench.client import Collected, HttpClient, NotHttp
from dragoman.tools.bench.target import read_target

REFUSED = (401, 403)
TIMEOUT_S = 3600.0  # for an answer; bounds silently dead connections


class HttpSender:
    """Sends requests over reused connections. Raises: BatchError for a malformed `url` or a refused key."""

    def __init__(self, url: str, api_key: str) -> None:
        try:
            target = read_target(url)
        except ValueError as error:
            raise BatchError(f"--url={url} (command line): {error}") from None
        key = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._url, self._prefix = url, target.path.removesuffix("/v1")
        self._client = HttpClient(target, {"user-agent": USER_AGENT, **key})

    async def send(self, path: str, body: bytes) -> Answer:
        answer = Collected()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._client.post(self._prefix + path, body, answer)
        except (OSError, NotHttp) as error:
            raise Unreachable(f"{self._url} does not answer: {error or type(error).__name__}") from error
        if answer.status in REFUSED:
            told = answer.body[:300].decode("utf-8", "replace").strip()
            hint = "set the variable DRAGOMAN_API_KEY to a key that it takes"
            raise BatchError(f"{self._url} answered {answer.status}: {' '.join(told.split())}; {hint}")
        return Answer(answer.status, answer.headers, answer.body)

    def close(self) -> None:
        """Close the connections. A cancelled call has closed its own, which ends the request at the server."""
        self._client.close()
