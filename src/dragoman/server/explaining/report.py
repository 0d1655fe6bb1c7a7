"""The body and the answer of `POST /explain`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

SourceKind = Literal["request", "server option", "generation_config.json", "API default", "context length", "drawn"]


class ExplainedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as a client would send it. `body`: JSON, or a text for a body that is not JSON."""

    path: Annotated[str, Meta(min_length=1, description="with the query, if there is one")]
    method: str = "POST"
    headers: dict[str, str] = {}
    body: msgspec.Raw


class Parameter(msgspec.Struct, frozen=True):
    """One parameter in users' words. `names`: of the request's fields, or of the server's options."""

    name: str
    value: Any
    source: SourceKind
    names: list[str] = []


class Ignored(msgspec.Struct, frozen=True):
    name: str
    why: str


class ExplainedPrompt(msgspec.Struct, frozen=True):
    """One prompt of the call. `text`: as the model would see it; pictures are markers."""

    text: str
    tokens: int
    max_tokens: int
    pictures: int = 0


class ExplainedLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of the call; null = no bound. `timeout_s`: the smaller of the client's and the operator's."""

    context_tokens: int
    body_bytes: int
    timeout_s: float | None
    requests_in_flight: int
    requests_allowed: int
    others: dict[str, int | None]


class Refusal(msgspec.Struct, frozen=True):
    kind: str
    message: str
    param: str | None
    status: int
    body: str


class Explanation(msgspec.Struct, kw_only=True):
    """The explanation of a call. Parts that a refused call does not reach are empty or null."""

    api: str
    operation: str
    model: str | None = None
    adapter: str | None = None
    stream: bool | None = None
    prompts: list[ExplainedPrompt] = []
    parameters: list[Parameter] = []
    ignored: list[Ignored] = []
    other_fields: Annotated[list[str], Meta(description="that decide no parameter: the prompt, the answer's form")] = []
    limits: ExplainedLimits | None = None
    refusal: Refusal | None = None
    notes: list[str] = []
