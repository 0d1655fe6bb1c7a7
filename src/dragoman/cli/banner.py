"""The block of text that says, once the model is loaded, what is served, where, and how to try it.

Does: text only. Does not: print, or decide which routes exist. Called by `serve`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from dragoman import __version__

ROUTES: tuple[tuple[str, str], ...] = (
    ("LMI", "POST /invocations  /predictions/{name}  /models/{name}/invoke"),
    ("OpenAI", "POST /v1/chat/completions  /v1/completions   GET /v1/models"),
    ("OpenVINO", "POST /v3/chat/completions  /v3/completions   GET /v3/models"),
    ("SageMaker", "POST /endpoints/{name}/invocations  /endpoints/{name}/invocations-response-stream"),
    ("TGI", "POST /  /generate  /generate_stream          GET /info"),
    ("plain text", "POST /api/generate-one  /api/generate-batch"),
    ("operation", "GET  /ping  /health  /v2/health/live  /v2/health/ready  /metrics"),
)
"""Family of clients and its routes; a test calls every one of them."""

OF_HANDLERS = ("LMI", "SageMaker", "operation")  # what is left where nothing can be generated


@dataclass(frozen=True, slots=True)
class BannerFacts:
    """What the banner tells. `host` and `port` are where the server listens; `details` are short facts of the model.

    `others`: one line for each further model. `can_generate` False = the model has only an operator's own handler.
    `chat_format`: the option of that name.
    """

    name: str
    model_dir: str
    host: str
    port: int
    details: tuple[str, ...] = ()
    has_chat_template: bool = True
    needs_key: bool = False
    others: tuple[str, ...] = ()
    can_generate: bool = True
    chat_format: str = "auto"


def base_url(host: str, port: int) -> str:
    """The URL by which this machine reaches the server; addresses that mean "all" become the local one."""
    local = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{local}]:{port}" if ":" in local else f"http://{local}:{port}"


def banner(facts: BannerFacts) -> str:
    """The block, with a line to copy."""
    url = base_url(facts.host, facts.port)
    details = f" ({', '.join(facts.details)})" if facts.details else ""
    lines = ["", f"dragoman {__version__} serves {facts.name} at {url}", f"  {facts.model_dir}{details}"]
    lines += [f"  and {other}" for other in facts.others]
    lines.append("")
    served = [(family, routes) for family, routes in ROUTES if facts.can_generate or family in OF_HANDLERS]
    lines += [f"  {family:<11} {routes.format(name=facts.name)}" for family, routes in served]
    if not facts.can_generate:
        return "\n".join([*lines, ""])  # what the handler wants to be asked, only its author knows
    if facts.has_chat_template:
        lines += ["", _shape_line(facts)]
    return "\n".join([*lines, "", "Try it:", *_curl_lines(facts, url), ""])


def _shape_line(facts: BannerFacts) -> str:
    """Whose shape a plain call gets on the route that two APIs document, and how to change it."""
    shapes = {"lmi": "LMI's shape", "openai": "OpenAI's shape"}
    if facts.chat_format in shapes:
        changes = " or ".join(name for name in ("auto", *shapes) if name != facts.chat_format)
        return f"  /v1/chat/completions answers in {shapes[facts.chat_format]}; change it with --chat-format {changes}"
    if facts.needs_key:  # a key is what only OpenAI's clients send
        return "  /v1/chat/completions answers in OpenAI's shape to calls with a key; change it with --chat-format lmi"
    return "  /v1/chat/completions answers a plain curl in LMI's shape, OpenAI clients in theirs; --chat-format openai: all"


def _curl_lines(facts: BannerFacts, url: str) -> list[str]:
    key = " -H 'Authorization: Bearer YOUR_KEY'" if facts.needs_key else ""
    body: dict[str, object]
    if facts.has_chat_template:
        path, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": "What is deep learning?"}]}
    else:
        path, body = "/v1/completions", {"prompt": "Deep learning is"}
    text = json.dumps({**body, "max_tokens": 64, "temperature": 0})
    return [f"  curl {url}{path} -H 'Content-Type: application/json'{key} \\", f"    -d '{text}'"]
