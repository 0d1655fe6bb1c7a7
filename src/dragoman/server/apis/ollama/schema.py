"""The wire schema of Ollama's API. Source: Ollama API reference (docs/api.md) and its API types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.server.apis.ollama.options import OllamaOptions
from dragoman.server.apis.openai_wire.conversation import Tool

Nanoseconds = Annotated[int, Meta(description="nanoseconds")]
DoneReason = Literal["stop", "length", "load", "unload"]
Rfc3339 = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]

# --- requests ---------------------------------------------------------------------------------------------------------


class OllamaBody(msgspec.Struct, kw_only=True):
    """Fields that `/api/generate` and `/api/chat` share; None = not given. `stream` absent = true.

    `format`: "json", or a JSON schema. `think`: true, false, or how much the model reasons first. `keep_alive`: seconds, or
    a duration like "5m".
    """

    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: float | str | None = None
    options: OllamaOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None
    shift: bool | None = None


class OllamaGenerateBody(OllamaBody, kw_only=True):
    """The body of POST /api/generate. `images`: base64. `context`: the token ids that an earlier answer gave."""

    prompt: str | None = None
    suffix: str | None = None
    images: list[str] | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None


class OllamaFunction(msgspec.Struct, kw_only=True):
    """The function of a tool call that was made earlier in the conversation."""

    name: str
    arguments: dict[str, Any] | None = None


class OllamaToolCall(msgspec.Struct, kw_only=True):
    """A tool call that the assistant made earlier in the conversation."""

    function: OllamaFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, kw_only=True):
    """One message of the conversation. `tool_name`: of role `tool`, whose result this is. `images`: base64."""

    role: str | None = None
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatBody(OllamaBody, kw_only=True):
    """The body of POST /api/chat."""

    messages: list[OllamaMessage] | None = None
    tools: list[Tool] | None = None


class OllamaEmbedBody(msgspec.Struct, kw_only=True):
    """The body of POST /api/embed. `truncate` absent = true."""

    model: str | None = None
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    keep_alive: float | str | None = None
    options: dict[str, Any] | None = None


class OllamaEmbeddingsBody(msgspec.Struct, kw_only=True):
    """The body of POST /api/embeddings, which `/api/embed` has replaced."""

    model: str | None = None
    prompt: str | None = None
    keep_alive: float | str | None = None
    options: dict[str, Any] | None = None


class OllamaShowBody(msgspec.Struct, kw_only=True):
    """The body of POST /api/show; `name` is what `model` was called before."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class OllamaPullBody(msgspec.Struct, kw_only=True):
    """The body of POST /api/pull; `name` is what `model` was called before. `stream` absent = true."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
    insecure: bool | None = None


# --- answers ----------------------------------------------------------------------------------------------------------


class OllamaTopLogprob(msgspec.Struct):
    """A candidate."""

    token: str
    logprob: float | None
    bytes: list[int]


class OllamaLogprob(msgspec.Struct):
    """A generated token; `bytes` are its own, however its character was pieced together."""

    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: list[OllamaTopLogprob] | UnsetType = UNSET


class OllamaCalledFunction(msgspec.Struct):
    """The function that a tool call names; `index` counts the calls of the answer."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(msgspec.Struct):
    """A tool call of an answer."""

    id: str
    function: OllamaCalledFunction


class OllamaAnswerMessage(msgspec.Struct):
    """The assistant's message, or what a line adds to it."""

    role: str
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaGenerated(msgspec.Struct, kw_only=True):
    """The answer of /api/generate, or one line of it: the last one is `done`, and has how it ended and how long it took.

    `load_duration`: until the first step, which is waiting, and loading the model if the call had to wait for that;
    `prompt_eval_duration`: until the first token, `eval_duration`: from there on. `context`: all tokens, for the next call.
    """

    model: str
    created_at: Rfc3339
    response: str
    thinking: str | UnsetType = UNSET
    done: bool
    done_reason: DoneReason | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET
    total_duration: Nanoseconds | UnsetType = UNSET
    load_duration: Nanoseconds | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: Nanoseconds | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: Nanoseconds | UnsetType = UNSET
    logprobs: list[OllamaLogprob] | UnsetType = UNSET


class OllamaChatted(msgspec.Struct, kw_only=True):
    """The answer of /api/chat, or one line of it, as `OllamaGenerated`."""

    model: str
    created_at: Rfc3339
    message: OllamaAnswerMessage
    done: bool
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: Nanoseconds | UnsetType = UNSET
    load_duration: Nanoseconds | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: Nanoseconds | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: Nanoseconds | UnsetType = UNSET
    logprobs: list[OllamaLogprob] | UnsetType = UNSET


class OllamaEmbedded(msgspec.Struct):
    """The answer of /api/embed: an embedding for each text."""

    model: str
    embeddings: list[list[float]]
    total_duration: Nanoseconds
    load_duration: Nanoseconds
    prompt_eval_count: int


class OllamaEmbedding(msgspec.Struct):
    """The answer of /api/embeddings."""

    embedding: list[float]


# --- models -----------------------------------------------------------------------------------------------------------


class OllamaDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A model's kind. `parameter_size`: "" if not known; `quantization_level`: the data type it runs in."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `size`: bytes of its files. `digest`: of their names, sizes and beginnings."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaListed(OllamaModel, frozen=True, kw_only=True):
    """One model of /api/tags."""

    modified_at: Rfc3339


class OllamaTags(msgspec.Struct, frozen=True):
    """GET /api/tags."""

    models: list[OllamaListed]


class OllamaLoaded(OllamaModel, frozen=True, kw_only=True):
    """One model of /api/ps. `size_vram`: bytes on a GPU."""

    expires_at: Rfc3339
    size_vram: int
    context_length: int


class OllamaRunning(msgspec.Struct, frozen=True):
    """GET /api/ps."""

    models: list[OllamaLoaded]


class OllamaShown(msgspec.Struct, kw_only=True):
    """The answer of /api/show. `template` is Jinja, as the model brings it. `parameters`: what its file says of them."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: Rfc3339
    license: str | UnsetType = UNSET


class OllamaPulled(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /api/pull, or one line of it: the last one is `success`.

    `digest`: the commit of the repository. `total`, `completed`: bytes of all files that are needed, and that are here.
    """

    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


class OllamaVersion(msgspec.Struct, frozen=True):
    """GET /api/version: of the Ollama whose API this is."""

    version: str
