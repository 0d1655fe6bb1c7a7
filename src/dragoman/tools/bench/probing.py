"""Finds out which API a URL has, by requesting one token, and which model it serves. On the event loop."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from dragoman.tools.bench.apis import APIS, BenchApi, Prompt, Question
from dragoman.tools.bench.asking import Asker, failure_of
from dragoman.tools.bench.client import HttpClient, NotHttp, Target
from dragoman.tools.bench.load import BenchError, OptionError

AUTO = "auto"
_ORDER = ("chat", "completions", "ovms", "ovms-completions", "embeddings", "rerank", "tgi", "ollama", "lmi", "text")
_NOT_THERE = ("HTTP 404", "HTTP 405", "HTTP 501")  # statuses of a missing path
_HOPELESS = ("HTTP 401", "HTTP 403")  # statuses that other paths would get too
_UNREACHABLE = ("connection refused", "unknown host", "TLS", "not HTTP")
_MODELS_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Prober:
    """Probes the server at `target`. `model`: the user's choice, "" = the first of the server's list."""

    client: HttpClient
    target: Target
    timeout_s: float
    model: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    _lists: dict[str, str] = field(default_factory=dict)  # the first model by the path of the list, "" = none

    async def find(self, name: str) -> Asker:
        """Calls of the API to use. `name`: of an API, or `auto`. Raises: BenchError, OptionError."""
        if name != AUTO:
            return await self._asker(APIS[name])
        candidates = self._candidates()
        if len(candidates) == 1:
            return await self._asker(candidates[0])
        refusals = []
        for api in candidates:
            asker = await self._asker(api, "default")
            sample = await asker.ask(Question((Prompt("Hello"),), 1, asker.model))
            if sample.error in ("", "empty answer"):  # the token may have been the end
                return asker
            if sample.error in (*_UNREACHABLE, *_HOPELESS):
                raise BenchError(f"{self.target.origin}{asker.path}: {sample.error}: {sample.message}")
            if sample.error not in _NOT_THERE or self.model:
                refusals.append(f"{api.name}: {sample.error}: {sample.message}")
        tried = ", ".join(api.name for api in candidates)
        why = "; ".join(refusals) or "none of their paths is there"
        raise BenchError(
            f"{self.target.origin}{self.target.path}: answers none of the APIs {tried} ({why}); --api names another one"
        )

    def _candidates(self) -> list[BenchApi]:
        """The possible APIs of a URL: the one whose path it ends with, else all of its version, else all."""
        path = self.target.path
        named = [api for api in APIS.values() if path.endswith(api.path)]
        if not named and path.endswith(("/chat/completions", "/completions")):  # another version
            named = [APIS["chat" if path.endswith("/chat/completions") else "completions"]]
        if named:
            return [max(named, key=lambda api: len(api.path))]
        first = "ovms" if path.endswith("/v3") else "chat" if path.rpartition("/")[2].startswith("v") else ""
        versioned = {"ovms": ("ovms", "ovms-completions"), "chat": ("chat", "completions", "embeddings", "rerank")}
        return [APIS[name] for name in versioned.get(first, _ORDER)]

    async def _asker(self, api: BenchApi, usual_model: str = "") -> Asker:
        """Calls of the API, of the user's model, else of the first listed, else of the usual one. Raises: OptionError."""
        path = self.target.endpoint(api.path)
        if api.models_path == "":
            return Asker(self.client, api, path, "", self.timeout_s, self.more)
        model = self.model or await self._listed(api, path) or usual_model
        if not model:
            raise OptionError("model", f"is required: {self.target.origin} does not list its models")
        return Asker(self.client, api, path, model, self.timeout_s, self.more)

    async def _listed(self, api: BenchApi, path: str) -> str:
        """The first model that the server lists, "" if it lists none. Raises: BenchError if there is no server."""
        where = api.models_path or self.target.models_path(path)
        if where is None:
            return ""
        if where not in self._lists:
            self._lists[where] = await self._first_model(where)
        return self._lists[where]

    async def _first_model(self, where: str) -> str:
        try:
            async with asyncio.timeout(_MODELS_TIMEOUT_S):
                answer = await self.client.get(where)
        except (OSError, NotHttp) as error:
            kind, message = failure_of(error)
            raise BenchError(f"{self.target.origin}{where}: {kind}: {message}") from None
        return first_model(answer.body) if answer.status == 200 else ""


def first_model(body: bytes) -> str:
    """The first name in OpenAI's or Ollama's list of models, "" if the body is something else."""
    try:
        found = json.loads(body)
        listed = found.get("data") or found.get("models")
        name = listed[0].get("id") or listed[0].get("name")
    except (ValueError, AttributeError, IndexError, KeyError, TypeError):
        return ""
    return name if isinstance(name, str) else ""
