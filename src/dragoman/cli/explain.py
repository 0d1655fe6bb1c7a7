"""`dragoman explain`: explains a call without running it, by a server elsewhere or a model loaded here.

`server.explaining` explains. Called by `main`, on the main thread.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dragoman.cli.commands import FAILED
from dragoman.cli.progress import ProgressDisplay
from dragoman.cli.subcommand import Command, Console, ReadWords, as_url, option, options_of
from dragoman.config.kinds import Switch, Text
from dragoman.config.resolve import Config, ConfigError
from dragoman.errors import EngineDead, ModelError, ServerError

FAILURES = (ConfigError, ModelError, ServerError, EngineDead, OSError, ValueError)
_TIMEOUT_S = 120.0

_USAGE = """\
usage: dragoman explain --request FILE [--path PATH] [--url URL | MODEL [options]]

Says what would be done with a call of any API, without doing it: API and model, the prompt as the model would see it, its
tokens, every parameter with who decided it, what is ignored and why, the limits, and the error if it would be refused. FILE
holds {"path": "/v1/completions", "body": {...}, "headers": {...}}, or with --path just the body. With --url a running server
says so (its key in the variable DRAGOMAN_API_KEY); else MODEL is loaded, with all options of `dragoman serve`. The exit code
is 1 if the call would be refused. See docs/explain.md.

  dragoman explain --request body.json --path /v1/chat/completions --url http://127.0.0.1:8080
  dragoman explain --request call.json ./my-model
"""


@dataclass(frozen=True, slots=True)
class ExplainArguments:
    """`call`: the body of `POST /explain`. `url` None = a model loaded here explains."""

    call: bytes
    request: str = option(Text("FILE"), "a file with the call, - = the standard input", is_needed=True)
    path: str | None = option(Text("PATH"), "the call's path; the file is then its body only [as the file says]")
    url: str | None = option(Text("URL"), "ask the server there instead of loading a model [none]")
    json: bool = option(Switch(), "print JSON instead of a table", False)


def read_explain(words: ReadWords) -> ExplainArguments | None:
    call = b""
    if not words.problems:
        try:
            call = _call(words.values["request"], words.values["path"])
        except (OSError, ValueError) as error:
            words.refuse("request", str(error))
    url = words.values["url"]
    if url is None:
        words.server_words = [*words.others, *words.flags]
    else:
        words.values["url"] = as_url(url)
        words.refuse_server_words(words.others)
    return words.made(ExplainArguments, call=call)


def _call(name: str, path: object) -> bytes:
    content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    text = content.decode()
    if path is None:
        if not isinstance(json.loads(text), dict):
            raise ValueError("must hold an object with path and body, or there must be --path")
        return content
    try:
        json.loads(text)
        body = text
    except ValueError:  # for example a prompt as plain text
        body = json.dumps(text)
    return f'{{"path": {json.dumps(path)}, "body": {body}}}'.encode()


def run(config: Config | None, arguments: ExplainArguments, console: Console) -> int:
    """Print the explanation. Returns the exit code, 1 if the call would be refused. `config` None: `asked.url` explains."""
    import asyncio

    api_key = console.variables.get("DRAGOMAN_API_KEY", "")
    explained = (
        _asked(arguments, api_key) if config is None else asyncio.run(_explained(config, arguments, console.display))
    )
    text = json.dumps(explained, indent=2, ensure_ascii=False) if arguments.json else "\n".join(_lines(explained))
    console.stdout.write(text + "\n")
    return FAILED if explained["refusal"] else 0


def _asked(arguments: ExplainArguments, api_key: str) -> Any:
    """The explanation of the server at `asked.url`. Raises: OSError, ValueError with its error."""
    headers = {"content-type": "application/json"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    url = f"{str(arguments.url).rstrip('/')}/explain"
    try:
        request = urllib.request.Request(url, arguments.call, headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode("utf-8", "replace").strip()
        raise ValueError(f"{url} answered {error.code}: {text[:500]}") from None


async def _explained(config: Config, arguments: ExplainArguments, display: ProgressDisplay) -> Any:
    from dragoman.cli.local_app import local_model, registry_of
    from dragoman.host.settings import server_config
    from dragoman.server.api import HttpCall
    from dragoman.server.apis import all_apis
    from dragoman.server.endpoints import Endpoints
    from dragoman.server.explaining import explain
    from dragoman.server.security.gate import Gate

    async with local_model(config, display) as served:
        settings = server_config(config)
        gate = Gate(settings.max_request_size_bytes)
        endpoints = Endpoints(all_apis(), registry_of(served), gate, switches=settings.switches)
        made = await explain(HttpCall("POST", "/explain", arguments.call, request_id="explained"), endpoints)
    return msgspec.to_builtins(made)


def _lines(explanation: Any) -> Iterator[str]:
    yield f"{explanation['operation']}, API {explanation['api']}, model {explanation['model'] or '?'}" + (
        f", adapter {explanation['adapter']}" if explanation["adapter"] else ""
    )
    for prompt in explanation["prompts"]:
        yield f"prompt: {prompt['tokens']} tokens, room for {prompt['max_tokens']} more"
        yield from (f"  | {line}" for line in prompt["text"].splitlines())
    decided = [parameter for parameter in explanation["parameters"] if parameter["source"] != "API default"]
    others = [parameter for parameter in explanation["parameters"] if parameter["source"] == "API default"]
    for parameter in decided:
        names = f" ({', '.join(parameter['names'])})" if parameter["names"] else ""
        yield f"{parameter['name']} = {json.dumps(parameter['value'], ensure_ascii=False)}: {parameter['source']}{names}"
    if others:
        pairs = (f"{parameter['name']} {json.dumps(parameter['value'], ensure_ascii=False)}" for parameter in others)
        yield "by the API's defaults: " + ", ".join(pairs)
    for field in explanation["ignored"]:
        yield f"ignored: {field['name']}: {field['why']}"
    yield from (f"note: {note}" for note in explanation["notes"])
    if explanation["limits"]:
        limits = dict(explanation["limits"])
        limits.pop("others")
        yield "limits: " + ", ".join(f"{name} {value}" for name, value in limits.items() if value is not None)
    refusal = explanation["refusal"]
    yield f"refused with {refusal['status']}: {refusal['body'].strip()}" if refusal else "it would be answered"


COMMAND = Command(_USAGE, options_of(ExplainArguments), read_explain, "dragoman.cli.explain", takes_server_options=True)
