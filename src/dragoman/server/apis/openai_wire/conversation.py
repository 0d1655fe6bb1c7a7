"""A conversation and its tools in OpenAI's wire format: the body, and what chat templates see of it. On the event loop.

Sources: OpenAI API reference, chat; LMI 0.30, chat completions API schema; vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, cast

import msgspec
from msgspec import Meta

from dragoman.errors import InvalidParameter, UnsupportedFeature
from dragoman.server.apis.openai_wire.fields import check_count, check_length, check_word, shown
from dragoman.server.apis.openai_wire.grammars import parts_passed_over, schema_problem
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.openai_wire.sampling import SharedBody
from dragoman.server.apis.openai_wire.thinking import ReasoningBody
from dragoman.server.json_body import NotJson, TooMuchJson, decode_json
from dragoman.tokenizer.message_content import DETAILS, PART_SEPARATOR
from dragoman.types import ChatPrompt, Limits, ToolChoice

# --- the body ---------------------------------------------------------------------------------------------------------

ImageDetail = Annotated[str, Meta(extra_json_schema={"enum": list(DETAILS)})]


class ImageUrl(msgspec.Struct, kw_only=True):
    """`image_url` of a content part. `url`: `data:image/...;base64,...`, an http(s) address or bare base64 data."""

    url: str | None = None
    detail: ImageDetail | None = None


class ContentPart(msgspec.Struct, kw_only=True):
    """One part of a message's content: text, a refusal, or an image."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None


class MessageFunction(msgspec.Struct, kw_only=True):
    """The function of a tool call in the conversation; `arguments` as JSON text or, from some clients, as an object."""

    name: str
    arguments: str | dict[str, Any] | None = None


class MessageToolCall(msgspec.Struct, kw_only=True):
    """A tool call that the assistant made earlier in the conversation."""

    function: MessageFunction
    id: str | None = None
    type: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    """One message of the conversation. `prefix: true` on the last one asks to continue it.

    `function_call`, and the role `function` for what it gave, are the form that calls had before there were tools.
    """

    role: str | None = None
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    function_call: MessageFunction | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    prefix: bool | None = None


class ToolFunction(msgspec.Struct, kw_only=True):
    """A function the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """One entry of `tools`."""

    function: ToolFunction
    type: str | None = None


class NamedFunction(msgspec.Struct, kw_only=True):
    """The function that `tool_choice` or `function_call` names."""

    name: str


class AllowedTools(msgspec.Struct, kw_only=True):
    """The tools that may be called, and whether one must be: `mode` is auto or required."""

    mode: str | None = None
    tools: list[dict[str, Any]] | None = None


class ChosenTool(msgspec.Struct, kw_only=True):
    """`tool_choice` as an object: one function must be called, or with the type allowed_tools only some may be."""

    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None
    type: str | None = None


class ChatBody(SharedBody, kw_only=True):
    return_progress: bool | None = None
    messages: list[ChatMessage] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    n_probs: int | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ChosenTool | None = None
    functions: list[ToolFunction] | None = None
    function_call: str | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[Any] | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningBody | None = None
    include_reasoning: bool | None = None
    echo: bool | None = None
    return_token_ids: bool | None = None
    return_tokens: bool | None = None

    def reasoning_tokens(self) -> int | None:
        return None if self.reasoning is None else self.reasoning.max_tokens


# --- for templates ----------------------------------------------------------------------------------------------------

_IMAGE_URL = re.compile(r"data:image/|https?://\S", re.IGNORECASE)
# What base64 data begin with.
_IMAGE_SIGNATURES = {"iVBORw0KGgo": "png", "/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp", "Qk": "bmp"}
_BASE64 = "base64,"
_URL_ALLOWED = (
    "data:image/...;base64,..., base64,..., an http(s) address, or base64 data of a png, jpeg, gif, webp or bmp image"
)
FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_TOOL_CHOICES = ("none", "auto", "required")


CONVERSATION_FIELDS = frozenset((
    "messages", "model", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools", "tool_choice",
    "functions", "function_call",
))  # fmt: skip
"""The fields that shape a prompt made of a conversation; all else in a body has no effect on it."""


class ToolUse(NamedTuple):
    """The tools that a template sees, and which are to be called; `choice` None = there are none."""

    tools: tuple[Mapping[str, Any], ...]
    choice: ToolChoice | None
    called_tool: str = ""
    passed_over: Mapping[str, str] = MappingProxyType({})  # what is not enforced of their schemas, and why

    def request_fields(self) -> dict[str, Any]:
        """The fields of a request that follow from it."""
        return {
            "parse_tool_calls": self.choice not in (None, "none"),
            "tool_choice": self.choice,
            "called_tool": self.called_tool,
            "passed_over": self.passed_over,
        }


def check_sizes(body: ChatBody, limits: Limits, profile: Profile) -> None:
    messages = body.messages or []
    check_count("messages", len(messages), limits.max_messages, profile)
    num_parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    check_count("messages[].content", num_parts, limits.max_messages, profile)
    calls = [call for message in messages for call in message.tool_calls or ()]
    check_count("messages[].tool_calls", len(calls), limits.max_messages, profile)
    functions = [
        *(call.function for call in calls),
        *(message.function_call for message in messages if message.function_call),
    ]
    arguments = [function.arguments for function in functions if isinstance(function.arguments, str)]
    check_length("messages[].tool_calls[].function.arguments", sum(map(len, arguments)), limits.max_text_chars, profile)
    check_count("tools", len(body.tools or ()), limits.max_tools, profile)
    check_count("functions", len(body.functions or ()), limits.max_tools, profile)


def template_messages(messages: Sequence[ChatMessage] | None, profile: Profile) -> tuple[dict[str, Any], ...]:
    if messages is None:
        raise profile.missing("messages", "an array of messages")
    if not messages:
        raise profile.fault("messages", "empty", "messages must hold at least one message, got []")
    entries: list[dict[str, Any]] = []
    call_id = ""
    for position, message in enumerate(messages):
        entry = _message(message, f"messages[{position}]", profile)
        if message.function_call is not None:
            call_id = f"call{position:05}"
            entry["tool_calls"] = [{"id": call_id, **_tool_call(MessageToolCall(function=message.function_call))}]
        elif message.role == "function":
            # What a function gave, in the words that templates know; they want to see which call it belongs to.
            entry |= {"role": "tool", **({"tool_call_id": call_id} if call_id else {})}
        entries.append(entry)
    return tuple(entries)


def conversation(body: ChatBody, tools: ToolUse, profile: Profile, **variables: Any) -> ChatPrompt:
    """The prompt of a body. `variables`: further ones of the template. Raises: InvalidRequest."""
    messages = template_messages(body.messages, profile)
    continues = continues_final_message(body, profile)
    if body.add_generation_prompt is False and not continues:
        variables["add_generation_prompt"] = False
    return ChatPrompt(messages, tools.tools, continues, variables | (body.chat_template_kwargs or {}))


def bare_conversation(body: ChatBody, raw: Mapping[str, Any], profile: Profile) -> ChatPrompt:
    """The prompt of a body of which nothing is generated; `raw` is the body as sent. Raises: InvalidRequest."""
    check_sizes(body, Limits(), profile)
    return conversation(body, tool_use(body, raw, profile), profile)


def check_restricted(messages: Sequence[Mapping[str, Any]], profile: Profile) -> None:
    """Raises InvalidRequest if a conversation with images has a text that is not allowed beside them."""
    contents = [message["content"] for message in messages]
    if not profile.restricted_beside_images or all(isinstance(content, str) for content in contents):
        return
    for position, content in enumerate(contents):
        texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
        if any(profile.restricted_beside_images in text for text in texts):
            path = f"messages[{position}].content"
            message = f"{path} must not hold {profile.restricted_beside_images} beside images"
            raise profile.fault(path, "restricted", message)


def continues_final_message(body: ChatBody, profile: Profile) -> bool:
    """True if the answer continues the last message instead of beginning a new one. Raises: InvalidRequest."""
    last = (body.messages or [ChatMessage()])[-1]
    if not (body.continue_final_message or last.prefix):
        return False
    named = "continue_final_message" if body.continue_final_message else f"messages[{len(body.messages or ()) - 1}]"
    if last.role != "assistant":
        message = f"{named} can only continue a message of role assistant, the last one is of role {shown(last.role)}"
        raise profile.fault(named, "role", message)
    if body.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt cannot both be true: give one of them"
        raise profile.fault("add_generation_prompt", "conflict", message)
    return True


def tool_use(body: ChatBody, raw: Mapping[str, Any], profile: Profile) -> ToolUse:
    """The tools and the wish about them; `raw` is the body as sent. Raises: InvalidRequest."""
    if body.functions or body.function_call is not None:
        return _function_use(body, raw.get("functions", []) if body.functions else [], profile)
    raw_tools: Sequence[Mapping[str, Any]] = raw.get("tools", []) if body.tools else []  # the text "null" is none
    functions = {f"tools[{i}].function": _function(tool, f"tools[{i}]", profile) for i, tool in enumerate(raw_tools)}
    wish = body.tool_choice
    if isinstance(wish, ChosenTool) and wish.type == "allowed_tools":
        allowed = wish.allowed_tools or AllowedTools()
        functions, wish = with_allowed_tools(
            functions, "tool_choice.allowed_tools", allowed.mode, allowed.tools, profile
        )
    choice, name = _tool_choice(wish, [function["name"] for function in functions.values()], profile)
    return used_tools(functions, choice, name, profile)


def with_allowed_tools(
    functions: Mapping[str, dict[str, Any]], path: str, mode: Any, tools: Any, profile: Profile
) -> tuple[dict[str, dict[str, Any]], str]:
    """The functions, by their places, that a wish for some tools leaves, and its mode. Raises: InvalidRequest."""
    if mode not in ("auto", "required"):
        raise profile.wrong(f"{path}.mode", "auto or required", mode)
    if not isinstance(tools, list) or not tools:
        raise profile.wrong(f"{path}.tools", "an array of at least one tool", tools)
    names = [function["name"] for function in functions.values()]
    allowed = {named_tool(tool, f"{path}.tools[{position}]", names, profile) for position, tool in enumerate(tools)}
    return {place: function for place, function in functions.items() if function["name"] in allowed}, mode


def named_tool(tool: Any, path: str, names: Sequence[str], profile: Profile) -> str:
    """The name of the function that an object names, itself or in `function`. Raises: InvalidRequest."""
    if not isinstance(tool, dict):
        raise profile.wrong(path, "an object", tool, "type")
    kind = tool.get("type", "function")
    if kind != "function":
        message = f"{path}.type {shown(kind)} is not supported: only function tools are called here"
        raise UnsupportedFeature(message, param=f"{path}.type")
    nested = tool.get("function")
    name = nested.get("name") if isinstance(nested, dict) else tool.get("name")
    if name in names and isinstance(name, str):
        return name
    raise profile.wrong(f"{path}.name", "one of tools", name)


def _function_use(body: ChatBody, raw_functions: Sequence[Mapping[str, Any]], profile: Profile) -> ToolUse:
    """The same for `functions` and `function_call`, which are tools of which one may be called."""
    for name in ("tools", "tool_choice"):
        if getattr(body, name):
            legacy = "functions" if body.functions else "function_call"
            raise profile.conflict(legacy, name)
    places = [f"functions[{i}]" for i in range(len(raw_functions))]
    functions = {
        place: checked_function(function, place, profile) for place, function in zip(places, raw_functions, strict=True)
    }
    choice = body.function_call
    if isinstance(choice, NamedFunction):
        if choice.name not in [function["name"] for function in functions.values()]:
            raise profile.wrong("function_call.name", "one of functions", choice.name)
        return used_tools(functions, "named", choice.name, profile)
    if choice not in (None, "none", "auto"):
        raise profile.wrong("function_call", "none, auto or a function", choice)
    wish: ToolChoice = "none" if choice == "none" else "auto"
    return used_tools(functions, wish if functions else None, "", profile)


def used_tools(
    functions: Mapping[str, Mapping[str, Any]],
    choice: ToolChoice | None,
    called_tool: str,
    profile: Profile,
    schema_field: str = "parameters",
) -> ToolUse:
    """The use of these functions, by their places in the body, of which none is shown if none may be called.

    `schema_field`: where a function's schema is below its place. Raises: InvalidParameter for a strict one's schema of
    which a part is not enforced.
    """
    if choice == "none":
        return ToolUse((), choice, called_tool)
    passed_over: dict[str, str] = {}
    for path, function in functions.items():
        is_strict = function.get("strict") in (True, "true")
        place, schema, of = f"{path}.{schema_field}", function.get("parameters", {}), f" of tool {function['name']}"
        passed_over |= parts_passed_over(place, schema, profile, of=of, is_strict=is_strict, has_faults=True)
    tools = tuple({"type": "function", "function": function} for function in functions.values())
    return ToolUse(tools, choice, called_tool, passed_over)


# --- messages ---------------------------------------------------------------------------------------------------------


def _message(message: ChatMessage, path: str, profile: Profile) -> dict[str, Any]:
    if not message.role:
        raise profile.fault(f"{path}.role", "missing", f"{path}.role is missing: every message must have a role")
    content = _content(message.content, f"{path}.content", profile)
    entry: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        entry["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    reasoning = message.reasoning_content or message.reasoning
    optional = {"name": message.name, "tool_call_id": message.tool_call_id, "reasoning_content": reasoning}
    return entry | {name: value for name, value in optional.items() if value is not None}


def _content(content: str | list[ContentPart] | None, path: str, profile: Profile) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    return joined_content([_part(part, f"{path}[{position}]", profile) for position, part in enumerate(content)])


def _part(part: ContentPart, path: str, profile: Profile) -> dict[str, Any]:
    match part.type:
        case "text" | "refusal":
            text = part.text if part.type == "text" else part.refusal
            if text is None:
                raise profile.missing(f"{path}.{part.type}")
            return {"type": "text", "text": text}
        case "image_url":
            place = f"{path}.image_url"
            seen = picture(part.image_url, place, profile, (f"{place}.url", f"{place}.detail"))
            return {"type": "image_url", "image_url": seen}
        case None:
            raise profile.missing(f"{path}.type", "text or image_url")
        case other:
            raise profile.wrong(f"{path}.type", "text or image_url", other)


def picture(
    image: ImageUrl | str | None, path: str, profile: Profile, places: tuple[str, str], detail: str | None = None
) -> dict[str, str]:
    """The image as templates' parts have it. `places`: of address and detail, for errors. Raises: InvalidRequest."""
    image = ImageUrl(url=image) if isinstance(image, str) else image
    if image is None:
        raise profile.missing(path)
    if image.url is None:
        raise profile.missing(f"{path}.url")
    detail = image.detail if detail is None else detail
    address = {"url": image_url(image.url, places[0], profile)}
    check_word(places[1], detail, DETAILS, profile)
    return address if detail is None else {**address, "detail": detail}


def joined_content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Text as one string; with images the parts, in their order."""
    if all(part["type"] == "text" for part in parts):
        return PART_SEPARATOR.join(part["text"] for part in parts)
    return parts


def image_url(url: str, path: str, profile: Profile) -> str:
    """The address; base64 data become a data address: bare, as LMI's documentation shows, or as OVMS takes them."""
    if _IMAGE_URL.match(url):
        return url
    if url[: len(_BASE64)].lower() == _BASE64:
        return f"data:image/any;{url}"
    for signature, kind in _IMAGE_SIGNATURES.items():
        if url.startswith(signature):
            return f"data:image/{kind};base64,{url}"
    raise profile.wrong(path, _URL_ALLOWED, url)


def _tool_call(call: MessageToolCall) -> dict[str, Any]:
    arguments: Any = call.function.arguments if call.function.arguments is not None else {}
    if isinstance(arguments, str):
        arguments = parsed_arguments(arguments)
    entry: dict[str, Any] = {"type": "function", "function": {"name": call.function.name, "arguments": arguments}}
    return entry if call.id is None else {"id": call.id, **entry}


def parsed_arguments(text: str) -> Any:
    """The object, as templates print JSON themselves; text that is none stays as it is. Raises: InvalidParameter."""
    try:
        parsed = decode_json(text.encode()) if text.strip() else {}
    except TooMuchJson as error:
        raise InvalidParameter(error.of("the arguments of a tool call"), param="arguments") from None
    except NotJson:
        return text
    return parsed if isinstance(parsed, dict) else text


# --- tools ------------------------------------------------------------------------------------------------------------


def _function(tool: Mapping[str, Any], path: str, profile: Profile) -> dict[str, Any]:
    """The function as the client wrote it, without nulls; types were checked with the body."""
    _check_type(tool, path, profile)
    return checked_function(tool["function"], f"{path}.function", profile)


def check_tool_types(raw: Mapping[str, Any], profile: Profile) -> None:
    """Raises InvalidRequest for a tool of another type, before its `function` is missed."""
    tools = raw.get("tools")
    for position, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict):
            _check_type(tool, f"tools[{position}]", profile)


def _check_type(tool: Mapping[str, Any], path: str, profile: Profile) -> None:
    if (tool.get("type") or "function") != "function":
        raise profile.wrong(f"{path}.type", "function", tool["type"])


def checked_function(sent: Mapping[str, Any], path: str, profile: Profile) -> dict[str, Any]:
    function = {name: value for name, value in sent.items() if value is not None}
    name = function["name"]
    if not FUNCTION_NAME.fullmatch(name):
        allowed = "1 to 64 letters, digits, underscores, dots or hyphens"
        raise profile.wrong(f"{path}.name", allowed, name)
    problem = schema_problem(function.get("parameters", {}))
    if problem:
        message = f"{path}.parameters must be a JSON schema: {problem}"
        raise profile.fault(f"{path}.parameters", "value", message)
    return function


def _tool_choice(
    choice: str | ChosenTool | None, names: Sequence[str], profile: Profile
) -> tuple[ToolChoice | None, str]:
    if isinstance(choice, ChosenTool):
        if choice.function is None:
            raise profile.fault("tool_choice.function", "missing", "tool_choice.function is missing")
        name = choice.function.name
        if name in names:
            return "named", name
        raise profile.wrong("tool_choice.function.name", "one of tools", name)
    if choice in names and choice not in _TOOL_CHOICES:  # as clients of TGI write it
        return "named", str(choice)
    return plain_choice(choice, names, "none, auto, required or a function", profile), ""


def plain_choice(choice: str | None, names: Sequence[str], allowed: str, profile: Profile) -> ToolChoice | None:
    """The choice that names no tool; None where there are none. `allowed`: in words. Raises: InvalidRequest."""
    if choice is not None and choice not in _TOOL_CHOICES:
        raise profile.wrong("tool_choice", allowed, choice)
    if choice == "required" and not names:
        raise profile.fault("tool_choice", "without_tools", "tool_choice required needs at least one entry in tools")
    return cast(ToolChoice, choice or "auto") if names else None
