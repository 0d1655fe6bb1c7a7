"""The options of `dragoman explain` itself; all others are the server's, for a model loaded here."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.arguments import SOURCE
from dragoman.cli.command_options import Command, ReadWords, as_url, option, options_of
from dragoman.config.kinds import Switch, Text

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


def read_explain(words: ReadWords, _: Mapping[str, str]) -> ExplainArguments | None:
    call = b""
    if not words.problems:
        try:
            call = _call(words.values["request"], words.values["path"])
        except (OSError, ValueError) as error:
            words.refuse("request", str(error))
    url = words.values["url"]
    if url is None:
        words.server_words = words.others
    else:
        words.values["url"] = as_url(url)
        if words.others:
            told = "is not for --url: the server there has its own options"
            words.problems.append(f"{words.others[0]} ({SOURCE}): {told}")
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


COMMAND = Command(
    _USAGE, options_of(ExplainArguments), read_explain, "dragoman.cli.explain.command", takes_server_options=True
)
