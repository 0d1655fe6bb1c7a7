"""A small server that answers OpenAI's completions without a model, as well or as badly as a test wants it to.

It runs on the test's own event loop, so that a test knows when something has happened without waiting for time to pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

OPENAI = frozenset({"model", "prompt", "max_tokens", "stream", "temperature", "top_p", "seed", "presence_penalty"})


@dataclass
class FakeUpstream:
    """Says `pieces` one after the other, to each prompt, and the seed before them when it is not greedy.

    `accepts`: parameters; None = all, which it then ignores. `takes_ids`: prompts may be token ids. `token_ids`: those of
    the pieces, told if they are asked for. `logprobs`: "" = none, "ids" = as vLLM tells them, "content" = as llama.cpp does.
    `num_cached_tokens`: told with the usage. `adapters`: name -> the model that it is listed with. The others
    decide what becomes of the next requests: `status` of a refusal, pieces after which it `dies` or `hangs`.
    `num_hanging`: requests that do now.
    """

    pieces: Sequence[str] = ("one", " two", " three")
    owner: str = "somebody"
    model: str = "m"
    max_model_len: int | None = 64
    meta: Mapping[str, Any] | None = None
    accepts: frozenset[str] | None = OPENAI | {"frequency_penalty", "logit_bias"}
    takes_ids: bool = False
    token_ids: Sequence[int] | None = None
    logprobs: str = ""
    status: int = 200
    error: Mapping[str, Any] = field(default_factory=lambda: {"error": {"message": "it does not want to"}})
    dies_after: int | None = None
    hangs_after: int | None = None
    num_cached_tokens: int | None = None
    ended: str = "stop"  # the word for an answer that ends by itself
    adapters: Mapping[str, str] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    num_running: int = 0
    num_hanging: int = 0
    url: str = ""
    _runner: web.AppRunner | None = None
    _port: int = 0

    async def start(self) -> None:
        """Listen, on the same port if it has listened before."""
        app = web.Application()
        app.add_routes([web.get("/v1/models", self._models), web.post("/v1/completions", self._complete)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}/v1"

    async def stop(self) -> None:
        """Stop listening, and break what runs off."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def forget(self) -> None:
        """Forget the requests that it has seen."""
        self.bodies.clear()
        self.headers.clear()

    async def _models(self, request: web.Request) -> web.Response:
        entry = {
            "id": self.model,
            "object": "model",
            "owned_by": self.owner,
            "max_model_len": self.max_model_len,
            "meta": self.meta,
        }
        adapters = [{**entry, "id": name, "parent": parent} for name, parent in self.adapters.items()]
        return web.json_response({"object": "list", "data": [entry, *adapters]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers)
        unknown = [] if self.accepts is None else sorted(set(body) - self.accepts)
        if unknown and unknown != ["return_token_ids"]:
            return web.json_response(
                {"error": {"message": f"{unknown[0]} is unknown", "param": unknown[0]}}, status=400
            )
        if not self.takes_ids and not isinstance(body["prompt"], str):
            return web.json_response({"detail": "prompt must be a string"}, status=422)
        if self.status != 200:
            return web.json_response(self.error, status=self.status, headers={"retry-after": "7"})
        self.num_running += 1
        try:
            if body.get("prompt_logprobs") is not None and self.logprobs == "ids":
                return _prompt_logprobs(body["prompt"])
            return await self._stream(request, body)
        finally:
            self.num_running -= 1

    async def _stream(self, request: web.Request, body: Mapping[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        pieces = [*([f"{body.get('seed')}"] if body.get("temperature") else []), *self.pieces][: body["max_tokens"]]
        has_ended = len(pieces) < body["max_tokens"]
        for position, piece in enumerate(pieces):
            await self._pause(request, position)
            choice: dict[str, Any] = {"index": 0, "text": piece, "finish_reason": None}
            self._tell_tokens(choice, body, position)
            await response.write(_event(choice))
        await self._pause(request, len(pieces))
        await response.write(_event({"index": 0, "text": "", "finish_reason": self.ended if has_ended else "length"}))
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens_details": {"cached_tokens": self.num_cached_tokens}}
            await response.write(b"data: " + msgspec.json.encode({"choices": [], "usage": usage}) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    def _tell_tokens(self, choice: dict[str, Any], body: Mapping[str, Any], position: int) -> None:
        if self.token_ids is None:
            return
        token_id = self.token_ids[position]
        if body.get("return_token_ids") and self.logprobs != "content":
            choice["token_ids"] = [token_id]
        if body.get("logprobs") is None:
            return
        if self.logprobs == "ids":
            name = f"token_id:{token_id}"
            choice["logprobs"] = {"tokens": [name], "token_logprobs": [-0.5], "top_logprobs": [{name: -0.5}]}
        elif self.logprobs == "content":
            told = {"id": token_id, "token": choice["text"], "logprob": -0.5}
            choice["logprobs"] = {"content": [told | {"top_logprobs": [told]}]}

    async def _pause(self, request: web.Request, position: int) -> None:
        assert request.transport is not None
        if self.dies_after == position:
            request.transport.abort()
        if position in (self.dies_after, self.hangs_after):
            self.num_hanging += 1
            try:
                await asyncio.Event().wait()  # until the client goes away: then this is cancelled
            finally:
                self.num_hanging -= 1
        await asyncio.sleep(0)


def _prompt_logprobs(prompt: Sequence[int]) -> web.Response:
    told = [None, *({str(token): {"logprob": -0.5, "rank": 1}} for token in prompt[1:])]
    return web.json_response({"choices": [{"index": 0, "text": "", "prompt_logprobs": told}]})


def _event(choice: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode({"object": "text_completion", "choices": [choice]}) + b"\n\n"


@asynccontextmanager
async def listening(*upstreams: FakeUpstream) -> AsyncIterator[None]:
    """All of them listen."""
    for upstream in upstreams:
        await upstream.start()
    try:
        yield
    finally:
        for upstream in upstreams:
            await upstream.stop()
