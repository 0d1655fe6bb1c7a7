"""`dragoman explain`: explains a call without running it, by a server elsewhere or a model loaded here.

`server.explaining` explains. Called by `main`, on the main thread.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec

from dragoman.cli.commands import FAILED
from dragoman.cli.explain.arguments import ExplainArguments
from dragoman.cli.local_app import local_model, registry_of
from dragoman.cli.progress import ProgressDisplay
from dragoman.cli.run_command import Console
from dragoman.config.resolve import Config, ConfigError
from dragoman.errors import EngineDead, ServerError
from dragoman.host.settings import server_config
from dragoman.models import ModelError
from dragoman.server.api import HttpCall
from dragoman.server.apis import all_apis
from dragoman.server.endpoints import Endpoints
from dragoman.server.explaining.explain import explain
from dragoman.server.security.gate import Gate

FAILURES = (ConfigError, ModelError, ServerError, EngineDead, OSError, ValueError)
_TIMEOUT_S = 120.0


def run(config: Config | None, asked: ExplainArguments, console: Console) -> int:
    """Print the explanation. Returns the exit code, 1 if the call would be refused. `config` None: `asked.url` explains."""
    api_key = console.variables.get("DRAGOMAN_API_KEY", "")
    explained = _asked(asked, api_key) if config is None else asyncio.run(_explained(config, asked, console.display))
    text = json.dumps(explained, indent=2, ensure_ascii=False) if asked.json else "\n".join(_lines(explained))
    console.stdout.write(text + "\n")
    return FAILED if explained["refusal"] else 0


def _asked(asked: ExplainArguments, api_key: str) -> Any:
    """The explanation of the server at `asked.url`. Raises: OSError, ValueError with its error."""
    headers = {"content-type": "application/json"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    url = f"{str(asked.url).rstrip('/')}/explain"
    try:
        request = urllib.request.Request(url, asked.call, headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode("utf-8", "replace").strip()
        raise ValueError(f"{url} answered {error.code}: {text[:500]}") from None


async def _explained(config: Config, asked: ExplainArguments, display: ProgressDisplay) -> Any:
    async with local_model(config, display) as served:
        settings = server_config(config)
        gate = Gate(settings.max_request_size_bytes)
        endpoints = Endpoints(all_apis(), registry_of(served), gate, switches=settings.switches)
        made = await explain(HttpCall("POST", "/explain", asked.call, request_id="explained"), endpoints)
    return msgspec.to_builtins(made)


def _lines(told: Any) -> Iterator[str]:
    yield f"{told['operation']}, API {told['api']}, model {told['model'] or '?'}" + (
        f", adapter {told['adapter']}" if told["adapter"] else ""
    )
    for prompt in told["prompts"]:
        yield f"prompt: {prompt['tokens']} tokens, room for {prompt['max_tokens']} more"
        yield from (f"  | {line}" for line in prompt["text"].splitlines())
    decided = [one for one in told["parameters"] if one["source"] != "API default"]
    others = [one for one in told["parameters"] if one["source"] == "API default"]
    for one in decided:
        names = f" ({', '.join(one['names'])})" if one["names"] else ""
        yield f"{one['name']} = {json.dumps(one['value'], ensure_ascii=False)}: {one['source']}{names}"
    if others:
        pairs = (f"{one['name']} {json.dumps(one['value'], ensure_ascii=False)}" for one in others)
        yield "by the API's defaults: " + ", ".join(pairs)
    for one in told["ignored"]:
        yield f"ignored: {one['name']}: {one['why']}"
    yield from (f"note: {note}" for note in told["notes"])
    if told["limits"]:
        limits = dict(told["limits"])
        limits.pop("others")
        yield "limits: " + ", ".join(f"{name} {value}" for name, value in limits.items() if value is not None)
    refusal = told["refusal"]
    yield f"refused with {refusal['status']}: {refusal['body'].strip()}" if refusal else "it would be answered"
