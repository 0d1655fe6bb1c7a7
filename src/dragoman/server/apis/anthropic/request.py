"""The body of a message, how its parameters are read, and the errors of Anthropic's API. On the event loop.

Source: Anthropic API reference, messages, errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import CapacityError, ServerError, UnsupportedFeature
from dragoman.parameters import UINT32_MAX, Bounds, Need
from dragoman.server.api import ErrorTeller, HttpCall, Reply
from dragoman.server.apis.openai_wire.fields import check_number, check_word, read_texts, shown, unknown_names
from dragoman.server.apis.openai_wire.grammars import read_json_schema
from dragoman.server.apis.openai_wire.keeping import NOT_KEPT
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.openai_wire.thinking import NO_REASONING
from dragoman.server.descriptions import json_teller, statuses
from dragoman.types import Grammar, Limits

# --- bodies -----------------------------------------------------------------------------------------------------------


class CacheControl(msgspec.Struct, kw_only=True):
    """`cache_control`: the prompt up to here is to be kept for `ttl`. `type`: ephemeral."""

    type: str | None = None
    ttl: str | None = None


class ImageSource(msgspec.Struct, kw_only=True):
    """The source of an image: `base64` with its `data` and `media_type`, or `url`."""

    type: str | None = None
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class InputBlock(msgspec.Struct, kw_only=True):
    """One block of a message: text, image, tool_use, tool_result, thinking or redacted_thinking."""

    type: str | None = None
    text: str | None = None
    source: ImageSource | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[InputBlock] | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    cache_control: CacheControl | None = None


class InputMessage(msgspec.Struct, kw_only=True):
    """One message: of the user, of the assistant, or a system prompt in the midst of the conversation."""

    role: str | None = None
    content: str | list[InputBlock] | None = None


class CustomTool(msgspec.Struct, kw_only=True):
    """A tool that the client runs. `input_schema`: of what it takes."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    type: str | None = None
    cache_control: CacheControl | None = None


class ToolWish(msgspec.Struct, kw_only=True):
    """`tool_choice`: auto, any, none, or tool with its `name`."""

    type: str | None = None
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct, kw_only=True):
    """`thinking`: enabled with `budget_tokens`, adaptive or disabled; whether its text is `summarized` or `omitted`."""

    type: str | None = None
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    """The form of the answer: `json_schema` and the schema."""

    type: str | None = None
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    """`output_config`. `effort`: how much the model may think."""

    effort: str | None = None
    format: OutputFormat | None = None


class AnthropicMetadata(msgspec.Struct, kw_only=True):
    """`metadata`, which names the client's own user."""

    user_id: str | None = None


class PromptBody(msgspec.Struct, kw_only=True):
    """The body of POST /v1/messages/count_tokens: what makes a prompt."""

    messages: list[InputMessage] | None = None
    model: str | None = None
    system: str | list[InputBlock] | None = None
    tools: list[CustomTool] | None = None
    tool_choice: ToolWish | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: CacheControl | None = None


class MessagesBody(PromptBody, kw_only=True):
    """The body of POST /v1/messages."""

    max_tokens: int | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    metadata: AnthropicMetadata | None = None
    service_tier: str | None = None


# --- errors -----------------------------------------------------------------------------------------------------------

STATUSES = statuses(unavailable=529, cancelled=500, engine_dead=500)
TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",  # the caller may come again
    504: "timeout_error",
    529: "overloaded_error",  # there is no engine at the moment
}
"""`error.type` by status, except for general errors of the client or the server."""


class ThreadsNotOffered(UnsupportedFeature):
    """A conversation that the server is to keep; clients that read why send all of it themselves."""


class ErrorCause(msgspec.Struct):
    """The feature that is not offered, for clients that go on without it."""

    error_code: str
    unsupported: list[str]


class ErrorDetails(msgspec.Struct):
    """An error, for programs and people."""

    type: str
    message: str
    details: ErrorCause | UnsetType = UNSET


class AnthropicError(msgspec.Struct, tag_field="type", tag="error"):
    """The body of an error."""

    error: ErrorDetails
    request_id: str


REQUEST_ID = "request-id"
"""The header by which Anthropic's clients know a request; its value is that of `x-request-id`."""

VERSION = "anthropic-version"
"""The header that Anthropic's clients send with every call, and no others."""


def type_of(kind: str) -> str:
    status = STATUSES[kind]
    return TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def error_body(error: ServerError, request_id: str) -> AnthropicError:
    cause = ErrorCause("thread_unsupported_request", ["thread"]) if isinstance(error, ThreadsNotOffered) else UNSET
    return AnthropicError(ErrorDetails(type_of(error.kind), _message(error), cause), request_id)


class ForEitherClient:
    """Tells errors below a path that clients of Anthropic and of another API call."""

    def __init__(self, owner: ErrorTeller) -> None:
        self._owner = owner

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        teller = ERRORS if VERSION in http.headers else self._owner
        return teller.error_reply(error, http)


def _message(error: ServerError) -> str:
    """The message; clients shorten the conversation by themselves when they read how it begins."""
    if isinstance(error, CapacityError) and error.num_prompt_tokens is not None and error.max_model_len is not None:
        sizes = f"{error.num_prompt_tokens} tokens > {error.max_model_len} maximum"
        return f"prompt is too long: {sizes}. {error.message}"
    return error.message


def request_id_header(http: HttpCall) -> dict[str, str]:
    return {REQUEST_ID: http.request_id}


ERRORS = json_teller(
    STATUSES, AnthropicError, lambda error, http: error_body(error, http.request_id), request_id_header
)

# --- parameters -------------------------------------------------------------------------------------------------------

ANTHROPIC = Profile(
    "anthropic",
    bounds={
        "max_tokens": Bounds(0, UINT32_MAX),
        "temperature": Bounds(0.0, 1.0),
        "top_k": Bounds(0, UINT32_MAX),
    },
    clips_overflow=True,
)
"""The ranges that differ from OpenAI's. An answer without room in the context ends where the context does."""

MIN_BUDGET_TOKENS = 1024
EFFORTS = ("low", "medium", "high", "xhigh", "max")
THINKING_TYPES = ("enabled", "adaptive", "disabled")
DISPLAYS = ("summarized", "omitted")
SERVICE_TIERS = ("auto", "standard_only")
INTERLEAVED = "interleaved-thinking"  # a beta in which the budget is that of a whole turn

REFUSED: Mapping[str, str] = {
    "container": "no code runs here",
    "mcp_servers": "the server asks no other servers",
    "thread": "conversations are not kept: send all of their messages",
}
"""Parameters whose absence would change the answer unseen, and why they are refused."""

IGNORED: Mapping[str, str] = {
    "metadata": "nothing is tracked per user",
    "service_tier": "there is one tier",
    "context_management": "the conversation is taken as it is sent",
    "inference_geo": "the server is where it is",
    "speed": "there is one speed",
    "diagnostics": "nothing is kept of earlier requests",
    "user_profile_id": "nothing is tracked per user",
    "citations": "there are no documents to cite",
}
"""Parameters without effect, and why; all of them are reported to the client."""

IGNORED_IN_TOOLS: Mapping[str, str] = {
    "eager_input_streaming": "a tool's input is streamed as it is generated",
    "input_examples": "chat templates have no place for them",
    "defer_loading": "there is no tool search; every tool is shown to the model",
    "allowed_callers": "only the model calls tools",
}
"""The same for tools, where they are named `tools.<name>`."""

_OBJECTS: Mapping[str, type[msgspec.Struct]] = {
    "thinking": ThinkingConfig,
    "output_config": OutputConfig,
    "tool_choice": ToolWish,
}
CACHE_CONTROL = "cache_control"
TTLS: Mapping[str, float] = {"5m": 300.0, "1h": 3600.0}
"""`cache_control.ttl` in seconds, the default first."""

_BUDGET = "thinking.budget_tokens"
_NO_SAMPLING = f"it acts only {Need.SAMPLING}"
_FILTERS: Mapping[str, float] = {"top_k": 0, "top_p": 1.0}  # off at these values
_REASONS: Mapping[str, str] = {
    **IGNORED,
    CACHE_CONTROL: NOT_KEPT,
    f"tools.{CACHE_CONTROL}": NOT_KEPT,
    **{f"tools.{name}": reason for name, reason in IGNORED_IN_TOOLS.items()},
    **dict.fromkeys(_FILTERS, _NO_SAMPLING),
    _BUDGET: NO_REASONING,
    "redacted_thinking": "nobody here can read it",
}


def refuse_unoffered(raw: Mapping[str, Any]) -> None:
    """Raises: UnsupportedFeature for a parameter that asks for something not offered; empty lists ask for nothing."""
    for name, reason in REFUSED.items():
        if raw.get(name):
            kind = ThreadsNotOffered if name == "thread" else UnsupportedFeature
            raise kind(f"{name} is not offered here: {reason}", param=name)


def check_words(body: MessagesBody, limits: Limits) -> None:
    """Raises: InvalidRequest for wrong stop sequences or a wrong tier, and without `max_tokens`."""
    if body.max_tokens is None:
        raise ANTHROPIC.missing("max_tokens", "an integer of at least 0")
    check_word("service_tier", body.service_tier, SERVICE_TIERS, ANTHROPIC)
    read_texts("stop_sequences", body.stop_sequences, limits.max_stop_strings, limits.max_word_chars, ANTHROPIC)


def thinking_kwargs(body: PromptBody, max_tokens: int | None = None, betas: str = "") -> dict[str, Any]:
    """Template variables for thinking. Without `thinking` the template decides. Raises: InvalidRequest."""
    kwargs: dict[str, Any] = {}
    if body.thinking is not None:
        kwargs = _thinking(body, None if INTERLEAVED in betas else max_tokens)
    effort = None if body.output_config is None else body.output_config.effort
    check_word("output_config.effort", effort, EFFORTS, ANTHROPIC)
    if effort is not None:
        kwargs["reasoning_effort"] = "high" if effort in EFFORTS[2:] else effort  # the highest that templates know
    return kwargs


def budget_of(body: PromptBody) -> int | None:
    """Most tokens of thinking, None = not given; checked by `thinking_kwargs`."""
    thinking = body.thinking
    return thinking.budget_tokens if thinking is not None and thinking.type == "enabled" else None


def output_grammar(body: PromptBody) -> Grammar | None:
    """The form that the answer must have, None = free text. Raises: InvalidRequest."""
    nested = None if body.output_config is None else body.output_config.format
    if nested is not None and body.output_format is not None:
        raise ANTHROPIC.conflict("output_format", "output_config.format")
    if nested is not None:
        return _schema("output_config.format", nested)
    return None if body.output_format is None else _schema("output_format", body.output_format)


def cache_ttl(body: PromptBody) -> str | None:
    """The longest time that any mark asks to keep the prompt, None = no mark. Raises: InvalidRequest."""
    longest: str | None = None
    for path, mark in _cache_marks(body):
        if mark.type != "ephemeral":
            got = "is missing: it" if mark.type is None else f"{shown(mark.type)} is not offered here: it"
            problem = "missing" if mark.type is None else "value"
            raise ANTHROPIC.fault(f"{path}.type", problem, f"{path}.type {got} must be ephemeral")
        check_word(f"{path}.ttl", mark.ttl, tuple(TTLS), ANTHROPIC)
        longest = max((ttl for ttl in (longest, mark.ttl or next(iter(TTLS))) if ttl is not None), key=TTLS.__getitem__)
    return longest


def _cache_marks(body: PromptBody) -> Iterator[tuple[str, CacheControl]]:
    if body.cache_control is not None:
        yield CACHE_CONTROL, body.cache_control
    yield from _marks_of("tools", body.tools)
    yield from _marks_of("system", body.system)
    for position, message in enumerate(body.messages or ()):
        yield from _marks_of(f"messages[{position}].content", message.content)


def _marks_of(path: str, parts: str | Sequence[InputBlock | CustomTool] | None) -> Iterator[tuple[str, CacheControl]]:
    for position, part in enumerate(parts if isinstance(parts, list) else ()):
        if part.cache_control is not None:
            yield f"{path}[{position}].{CACHE_CONTROL}", part.cache_control
        yield from _marks_of(f"{path}[{position}].content", getattr(part, "content", None))


def named_without_effect(
    raw: Mapping[str, Any], body: PromptBody, *, is_greedy: bool, keeps_prompts: bool = False, thinks: bool = True
) -> dict[str, str]:
    """Accepted parameters without effect, and why, if that is known. `keeps_prompts`: marks for the cache have an effect."""
    idle = dict.fromkeys(name for name in raw if name in IGNORED or name not in body.__struct_encode_fields__)
    if not keeps_prompts:
        marks = ("tools." if path.startswith("tools") else "" for path, _ in _cache_marks(body))
        idle |= dict.fromkeys(f"{place}{CACHE_CONTROL}" for place in marks)
    if is_greedy:
        idle |= dict.fromkeys(name for name, off in _FILTERS.items() if raw.get(name) not in (None, off))
    thinking = body.thinking
    if thinking is not None and thinking.budget_tokens is not None and not (thinks and thinking.type == "enabled"):
        idle[_BUDGET] = None
    idle |= dict.fromkeys(_named_in_blocks(raw))
    tools = [tool for tool in raw.get("tools", ()) if isinstance(tool, dict)]
    idle |= {f"tools.{name}": None for name in IGNORED_IN_TOOLS if any(tool.get(name) is not None for tool in tools)}
    idle |= {
        f"tools.{name}": None for tool in tools for name in unknown_names(tool, CustomTool) if tool[name] is not None
    }
    idle |= {
        f"{place}.{name}": None
        for place, kind in _OBJECTS.items()
        if isinstance(raw.get(place), dict)
        for name in unknown_names(raw[place], kind)
    }
    return {name: _REASONS.get(name, "") for name in idle}


def _named_in_blocks(raw: Mapping[str, Any]) -> Iterator[str]:
    contents = [raw.get("system"), *(message.get("content") for message in raw.get("messages", ()))]
    for block in (block for content in contents if isinstance(content, list) for block in content):
        if block.get("citations"):
            yield "citations"
        if block.get("type") == "redacted_thinking":
            yield "redacted_thinking"
        if isinstance(block.get("content"), list):
            yield from _named_in_blocks({"system": block["content"]})


def _thinking(body: PromptBody, max_tokens: int | None) -> dict[str, Any]:
    thinking = body.thinking
    assert thinking is not None  # the caller's
    if thinking.type is None:
        raise ANTHROPIC.missing("thinking.type", "enabled or disabled")
    check_word("thinking.type", thinking.type, THINKING_TYPES, ANTHROPIC)
    check_word("thinking.display", thinking.display, DISPLAYS, ANTHROPIC)
    is_on, budget = thinking.type != "disabled", thinking.budget_tokens
    kwargs: dict[str, Any] = {"enable_thinking": is_on, "thinking": is_on}
    if thinking.type != "enabled":
        return kwargs
    if budget is None:
        raise ANTHROPIC.missing(_BUDGET, f"an integer of at least {MIN_BUDGET_TOKENS}")
    check_number(_BUDGET, budget, Bounds(MIN_BUDGET_TOKENS), ANTHROPIC)
    if max_tokens is not None and budget >= max_tokens:
        raise ANTHROPIC.wrong(_BUDGET, f"less than max_tokens ({max_tokens})", budget)
    return kwargs


def _schema(place: str, output_format: OutputFormat) -> Grammar:
    if output_format.type != "json_schema":
        raise ANTHROPIC.wrong(f"{place}.type", "json_schema", output_format.type)
    if output_format.schema is None:
        raise ANTHROPIC.missing(f"{place}.schema", "a JSON schema")
    return read_json_schema(f"{place}.schema", output_format.schema, ANTHROPIC)
