"""Writes the text after a start: the served model, its address, and a command to try it. Called by `serve`."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from dragoman import __version__
from dragoman.server.apis import all_apis
from dragoman.server.operations import GenerateOperation
from dragoman.server.pooling.base import PoolingKind


@dataclass(frozen=True, slots=True)
class Address:
    """The place where the server listens. `unix_socket`: "" = at `host` and `port`."""

    host: str
    port: int
    is_tls: bool = False
    unix_socket: str = ""
    path_prefix: str = ""

    @property
    def url(self) -> str:
        if self.unix_socket:
            return f"{'https' if self.is_tls else 'http'}://localhost{self.path_prefix}"
        return base_url(self.host, self.port, is_tls=self.is_tls) + self.path_prefix

    def __str__(self) -> str:
        return f"{self.unix_socket} ({self.url})" if self.unix_socket else self.url


@dataclass(frozen=True, slots=True)
class BannerFacts:
    """Facts for the banner.

    `can_generate` False = the model has only an operator's own handler. `has_lmi_signs`: `auto` means LMI's format
    there. `pooling`: the kind of a model that generates no text. `is_mixed`: some of the others are of another kind.
    """

    name: str
    model_dir: str
    address: Address
    details: tuple[str, ...] = ()
    has_chat_template: bool = True
    needs_key: bool = False
    others: tuple[str, ...] = ()
    can_generate: bool = True
    chat_format: str = "auto"
    has_lmi_signs: bool = False
    has_playground: bool = True
    pooling: PoolingKind | None = None
    is_mixed: bool = False


def base_url(host: str, port: int, *, is_tls: bool = False) -> str:
    """The URL for this machine; addresses that mean "all" become the local one."""
    local = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{local}]:{port}" if ":" in local else f"{scheme}://{local}:{port}"


def banner(facts: BannerFacts) -> str:
    """At most eight lines, one of them to copy."""
    url = facts.address.url
    details = f" ({', '.join(facts.details)})" if facts.details else ""
    lines = [f"dragoman {__version__} serves {facts.name} at {facts.address}", f"  {facts.model_dir}{details}"]
    if facts.others:
        lines.append(f"  and {', '.join(facts.others)} (`curl {url}/v1/models` lists all)")
    lines.append(f"  speaks {', '.join(spoken(facts))}; every route: {url}/docs")
    if facts.has_playground and not facts.address.unix_socket and facts.can_generate and facts.pooling is None:
        lines.append(f"  to try it in a browser: {url}/playground")
    if facts.can_generate:  # only a handler's author knows its requests
        if facts.has_chat_template and facts.pooling is None:
            lines.append(_shape_line(facts))
        lines += _curl_lines(facts, url)
    return "\n".join([*lines, ""])


def spoken(facts: BannerFacts) -> list[str]:
    served = [api for api in all_apis() if facts.can_generate or not api.needs_engine]
    kinds = {True, False} if facts.is_mixed else {facts.pooling is not None}
    return [
        api.title
        for api in served
        if any(
            isinstance(operation, GenerateOperation) and any(operation.is_of(is_pooling=kind) for kind in kinds)
            for operation in api.operations
        )
    ]


def empty_banner(store: str, address: Address) -> str:
    """The text without a served model."""
    return f"dragoman {__version__} serves no model yet at {address}\n  models are loaded from {store} on demand\n"


def _shape_line(facts: BannerFacts) -> str:
    """A line on the API whose format a plain call gets on the route that two APIs document, and how to change it."""
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
    path_of_socket = facts.address.unix_socket
    socket = f" --unix-socket {shlex.quote(path_of_socket)}" if path_of_socket else ""
    return [f"  curl{socket} {url}{path} -H 'Content-Type: application/json'{key} \\", f"    -d '{text}'"]


def _call_to_try(facts: BannerFacts) -> tuple[str, dict[str, object]]:
    question, beginning = "What is deep learning?", "Deep learning is"
    match facts.pooling:
        case PoolingKind.CLASSIFY:
            return "/classify", {"input": [question]}
        case PoolingKind.SPARSE:
            return "/embed_sparse", {"inputs": [question]}
        case PoolingKind.TOKENS:
            return "/pooling", {"input": [question]}
        case PoolingKind.EMBED:
            return "/v1/embeddings", {"input": [question]}
        case PoolingKind.SCORE:
            documents = [f"{beginning} a kind of machine learning.", "Bread is made of flour."]
            return "/v1/rerank", {"query": question, "documents": documents}
    sampling = {"max_tokens": 64, "temperature": 0}
    if facts.has_chat_template:
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": question}], **sampling}
    return "/v1/completions", {"prompt": beginning, **sampling}
