"""The options of `dragoman explain` itself; all others are the server's, for a model that is loaded for the purpose.

Does: list them, read the call. Does not: read the server's options. Called by `main`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.command_options import CommandOption, as_url, options_text, read_options
from dragoman.config.kinds import Switch, Text

OPTIONS = (
    CommandOption("request", Text("FILE"), "a file with the call, - = the standard input", is_needed=True),
    CommandOption("path", Text("PATH"), "the call's path; the file is then its body only [as the file says]"),
    CommandOption("url", Text("URL"), "ask the server there instead of loading a model [none]"),
    CommandOption("json", Switch(), "print JSON instead of a table", False),
)


@dataclass(frozen=True, slots=True)
class ExplainArguments:
    """What is to be explained. `call`: the body of `POST /explain`. `url` None = by a model that is loaded here."""

    call: bytes
    url: str | None
    json: bool


def read_explain_arguments(words: Sequence[str]) -> tuple[ExplainArguments | None, list[str], list[str]]:
    """(What is asked for, None if something is wrong; the server's words; one line for each problem)."""
    _, values, others, problems = read_options(OPTIONS, words)
    call = b""
    if not problems:
        try:
            call = _call(str(values["request"]), values["path"])
        except (OSError, ValueError) as error:
            problems.append(f"--request={values['request']} (command line): {error}")
    if values["url"] is not None and others:
        problems.append(f"{others[0]} (command line): is not for --url: the server there has its own options")
    if problems:
        return None, others, problems
    url = values["url"]
    return ExplainArguments(call, None if url is None else as_url(str(url)), bool(values["json"])), others, []


def _call(name: str, path: object) -> bytes:
    """The body of `POST /explain`. Raises: OSError, ValueError."""
    content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    text = content.decode()
    if path is None:
        if not isinstance(json.loads(text), dict):
            raise ValueError("must hold an object with path and body, or there must be --path")
        return content
    try:
        json.loads(text)
        body = text
    except ValueError:  # a prompt as plain text, say
        body = json.dumps(text)
    return f'{{"path": {json.dumps(path)}, "body": {body}}}'.encode()


def explain_help() -> str:
    """The list of these options, for `--help`."""
    return _USAGE + options_text(OPTIONS)


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
