"""The block of text that says, once the model is loaded, what is served, where, and how to try it.

Does: text only. Does not: print, or decide which routes exist (the APIs do). Called by `serve`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from dragoman import __version__
from dragoman.server.apis import all_apis
from dragoman.server.operations import Api
from dragoman.server.pooling import PoolingKind

PLACEHOLDER = re.compile(r"{\w+}")

TITLE_WIDTH = 11


@dataclass(frozen=True, slots=True)
class BannerFacts:
    """What the banner tells. `host` and `port` are where the server listens; `details` are short facts of the model.

    `others`: one line for each further model. `can_generate` False = the model has only an operator's own handler.
    `chat_format`: the option of that name, `has_lmi_signs`: whether `auto` means LMI's there.
    `is_tls`: HTTPS is spoken. `has_playground`: there is a page to
    try the model in a browser. `pooling`: what the model does with texts if it generates none.
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
    has_lmi_signs: bool = False
    is_tls: bool = False
    has_playground: bool = True
    pooling: PoolingKind | None = None


def base_url(host: str, port: int, *, is_tls: bool = False) -> str:
    """The URL by which this machine reaches the server; addresses that mean "all" become the local one."""
    local = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{local}]:{port}" if ":" in local else f"{scheme}://{local}:{port}"


def banner(facts: BannerFacts) -> str:
    """The block, with a line to copy."""
    url = base_url(facts.host, facts.port, is_tls=facts.is_tls)
    details = f" ({', '.join(facts.details)})" if facts.details else ""
    lines = ["", f"dragoman {__version__} serves {facts.name} at {url}", f"  {facts.model_dir}{details}"]
    lines += [f"  and {other}" for other in facts.others]
    lines.append("")
    served = [api for api in all_apis() if facts.can_generate or not api.needs_engine]
    lines += [f"  {api.title:<{TITLE_WIDTH}} {calls}" for api in served if (calls := calls_of(api, facts.name))]
    if facts.has_playground:
        lines.append(f"  {'browsers':<{TITLE_WIDTH}} {url}/playground")
    if not facts.can_generate:
        return "\n".join([*lines, ""])  # what the handler wants to be asked, only its author knows
    if facts.has_chat_template and facts.pooling is None:
        lines += ["", _shape_line(facts)]
    return "\n".join([*lines, "", "Try it:", *_curl_lines(facts, url), ""])


def calls_of(api: Api, model: str) -> str:
    """The calls of an API on one line, by method; names in paths are the model's. "" = there is nothing to show."""
    paths: dict[str, list[str]] = {}
    for operation in api.operations:
        if operation.in_banner:
            path = PLACEHOLDER.sub(lambda _: model, operation.path)
            paths.setdefault(operation.method, []).append(path)
    return "   ".join(f"{method:<4} {'  '.join(found)}" for method, found in paths.items())


def empty_banner(store: str, host: str, port: int, *, is_tls: bool = False) -> str:
    """The block where no model is served yet."""
    url = base_url(host, port, is_tls=is_tls)
    lines = [
        "",
        f"dragoman {__version__} serves no model yet at {url}",
        f"  models are loaded from {store} on demand",
        "",
    ]
    return "\n".join(lines)


def _shape_line(facts: BannerFacts) -> str:
    """Whose shape a plain call gets on the route that two APIs document, and how to change it."""
    shapes = {"lmi": "LMI's shape", "openai": "OpenAI's shape"}
    if facts.chat_format in shapes:
        changes = " or ".join(name for name in ("auto", *shapes) if name != facts.chat_format)
        return f"  /v1/chat/completions answers in {shapes[facts.chat_format]}; change it with --chat-format {changes}"
    if facts.has_lmi_signs:
        return (
            "  /v1/chat/completions answers in LMI's shape, as it is configured so; change it with --chat-format openai"
        )
    if facts.needs_key:  # LMI's example has none
        return "  /v1/chat/completions answers in OpenAI's shape to calls with a key; change it with --chat-format lmi"
    return (
        "  /v1/chat/completions answers a plain curl in LMI's shape, all others in OpenAI's; --chat-format openai: all"
    )


def _curl_lines(facts: BannerFacts, url: str) -> list[str]:
    key = " -H 'Authorization: Bearer YOUR_KEY'" if facts.needs_key else ""
    path, body = _call_to_try(facts)
    text = json.dumps(body)
    return [f"  curl {url}{path} -H 'Content-Type: application/json'{key} \\", f"    -d '{text}'"]


def _call_to_try(facts: BannerFacts) -> tuple[str, dict[str, object]]:
    """A path and a body that the model answers."""
    question, beginning = "What is deep learning?", "Deep learning is"
    match facts.pooling:
        case PoolingKind.EMBED:
            return "/v1/embeddings", {"input": [question]}
        case PoolingKind.SCORE:
            documents = [f"{beginning} a kind of machine learning.", "Bread is made of flour."]
            return "/v1/rerank", {"query": question, "documents": documents}
    sampling = {"max_tokens": 64, "temperature": 0}
    if facts.has_chat_template:
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": question}], **sampling}
    return "/v1/completions", {"prompt": beginning, **sampling}
