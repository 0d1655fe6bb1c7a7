"""Turns system prompt, messages and tools into the conversation that chat templates see. On the event loop.

    user       [tool_result, tool_result, text, image]  ->  tool, tool, user (the results' images first)
    assistant  [thinking, text, tool_use]               ->  assistant with reasoning_content and tool_calls

Source: Anthropic API reference, messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dragoman.errors import UnsupportedFeature
from dragoman.server.apis.anthropic.request import (
    ANTHROPIC,
    ImageSource,
    InputBlock,
    InputMessage,
    PromptBody,
    ToolWish,
)
from dragoman.server.apis.openai_wire.conversation import ToolUse, used_tools
from dragoman.server.apis.openai_wire.fields import check_count, shown
from dragoman.server.apis.openai_wire.grammars import schema_problem
from dragoman.tokenizer.message_content import PART_SEPARATOR
from dragoman.types import Limits, ToolChoice

ALLOWED: Mapping[str, tuple[str, ...]] = {
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}
IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
NOT_OFFERED = re.compile(
    r"document|search_result|tool_reference|container_upload|compaction|browser_state|fallback"
    r"|server_tool_use|mcp_tool_use|\w+_tool_result|mid_conv_system"
)
BILLING_HEADER = "x-anthropic-billing-header:"
"""Claude Code's accounting line before its system prompt. It changes with every call and is not for models."""

ERROR_PREFIX = "Error: "
_WEB_ADDRESS = re.compile(r"https?://\S", re.IGNORECASE)

Part = dict[str, Any]


@dataclass(slots=True)
class _Turn:
    """One message of a template in the making. `only`: its entries besides the content."""

    role: str
    parts: list[Part] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    only: dict[str, Any] = field(default_factory=dict)

    def message(self) -> dict[str, Any]:
        parts = self.parts
        is_text = all(part["type"] == "text" for part in parts)
        content = PART_SEPARATOR.join(part["text"] for part in parts) if is_text else parts
        message = {"role": self.role, "content": content, **self.only}
        if self.thoughts:
            message["reasoning_content"] = PART_SEPARATOR.join(self.thoughts)
        return {**message, "tool_calls": self.calls} if self.calls else message


def refuse_unoffered_blocks(raw: Mapping[str, Any]) -> None:
    """Raises: UnsupportedFeature for the first block of a kind that is not offered; it may have any form."""
    messages = raw.get("messages")
    for position, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            _refuse_in(message.get("content"), f"messages[{position}].content")


def conversation(body: PromptBody, limits: Limits) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """The messages as templates take them, and the names of parts that were left out. Raises: InvalidRequest."""
    messages = body.messages
    if messages is None:
        raise ANTHROPIC.missing("messages", "an array of messages")
    if not messages:
        raise ANTHROPIC.fault("messages", "empty", "messages must hold at least one message, got []")
    _check_sizes(body, limits)
    system, ignored = _system(body)
    turns = [] if not system else [_Turn("system", system)]
    names: dict[str, str] = {}  # of tools, by the ids of their calls
    for position, message in enumerate(messages):
        for turn in _turns(message, f"messages[{position}]", names):
            _append(turns, turn)
    if messages[-1].role == "assistant" and turns[-1].calls:
        path = f"messages[{len(messages) - 1}].content"
        message_text = f"{path} must not end the conversation: the results of its tool_use blocks have to follow"
        raise ANTHROPIC.fault(path, "calls", message_text)
    return tuple(turn.message() for turn in turns), ignored


def _append(turns: list[_Turn], turn: _Turn) -> None:
    if turns and turns[-1].role == turn.role != "tool":
        last = turns[-1]
        last.parts += turn.parts
        last.thoughts += turn.thoughts
        last.calls += turn.calls
    else:
        turns.append(turn)


def _refuse_in(content: Any, path: str) -> None:
    for position, block in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(block, dict):
            continue
        place, kind = f"{path}[{position}]", block.get("type")
        if isinstance(kind, str) and kind != "tool_result" and NOT_OFFERED.fullmatch(kind):
            raise UnsupportedFeature(f"{place}.type {shown(kind)} is not offered here", param=f"{place}.type")
        source = block.get("source")
        if kind == "image" and isinstance(source, dict) and source.get("type") == "file":
            message = f'{place}.source.type "file" is not offered here: send the image as base64 or url'
            raise UnsupportedFeature(message, param=f"{place}.source.type")
        if kind == "tool_result":
            _refuse_in(block.get("content"), f"{place}.content")


def _check_sizes(body: PromptBody, limits: Limits) -> None:
    messages = body.messages or []
    check_count("messages", len(messages), limits.max_messages, ANTHROPIC)
    contents = [message.content for message in messages if isinstance(message.content, list)]
    inner = [block.content for content in contents for block in content if isinstance(block.content, list)]
    check_count("messages[].content", sum(map(len, (*contents, *inner))), limits.max_messages, ANTHROPIC)
    check_count("tools", len(body.tools or ()), limits.max_tools, ANTHROPIC)
    if isinstance(body.system, list):
        check_count("system", len(body.system), limits.max_messages, ANTHROPIC)


def _system(body: PromptBody) -> tuple[list[Part], tuple[str, ...]]:
    """The parts of the system prompt, and the names of those that are not for the model."""
    if isinstance(body.system, str):
        return ([{"type": "text", "text": body.system}] if body.system else []), ()
    parts: list[Part] = []
    ignored: list[str] = []
    for position, block in enumerate(body.system or ()):
        path = f"system[{position}]"
        part = _text(_checked(block, path, "system"), path)
        if part["text"].startswith(BILLING_HEADER):
            ignored.append(path)
        else:
            parts.append(part)
    return parts, tuple(ignored)


# --- messages ---------------------------------------------------------------------------------------------------------


def _turns(message: InputMessage, path: str, names: dict[str, str]) -> Sequence[_Turn]:
    role = message.role
    if role is None or role not in ALLOWED:
        allowed = "user, assistant or system"
        place = f"{path}.role"
        raise ANTHROPIC.missing(place, allowed) if role is None else ANTHROPIC.wrong(place, allowed, role)
    if message.content is None:
        raise ANTHROPIC.missing(f"{path}.content", "a string or an array of blocks")
    if isinstance(message.content, str):
        return [_Turn(role, [{"type": "text", "text": message.content}])]
    places = [f"{path}.content[{i}]" for i in range(len(message.content))]
    blocks = [(_checked(block, place, role), place) for block, place in zip(message.content, places, strict=True)]
    if role == "user":
        return _user(blocks, names)
    turn = _Turn(role)
    for block, place in blocks:
        match block.type:
            case "text":
                turn.parts.append(_text(block, place))
            case "thinking":
                turn.thoughts.append(_given(block.thinking, f"{place}.thinking"))
            case "tool_use":
                turn.calls.append(_call(block, place, names))
    return [turn]


def _user(blocks: Sequence[tuple[InputBlock, str]], names: Mapping[str, str]) -> list[_Turn]:
    """The results of tools, then the user's words. Templates have room for pictures only in the latter."""
    results: list[_Turn] = []
    pictures: list[Part] = []
    texts: list[Part] = []
    for block, place in blocks:
        if block.type == "tool_result":
            result, seen = _result(block, place, names)
            results.append(result)
            pictures += seen
        else:
            texts.append(_text(block, place) if block.type == "text" else _image(block.source, f"{place}.source"))
    parts = [*pictures, *texts]
    return [*results, *([_Turn("user", parts)] if parts or not results else [])]


def _result(block: InputBlock, path: str, names: Mapping[str, str]) -> tuple[_Turn, list[Part]]:
    call_id = _given(block.tool_use_id, f"{path}.tool_use_id")
    if call_id not in names:
        raise ANTHROPIC.wrong(f"{path}.tool_use_id", "the id of a tool_use block before it", call_id)
    content = block.content or ""
    parts: list[Part] = [{"type": "text", "text": content}] if isinstance(content, str) else []
    for position, inner in enumerate(content if isinstance(content, list) else ()):
        place = f"{path}.content[{position}]"
        if inner.type not in ("text", "image"):
            raise ANTHROPIC.wrong(f"{place}.type", "text or image", inner.type)
        parts.append(_text(inner, place) if inner.type == "text" else _image(inner.source, f"{place}.source"))
    text = PART_SEPARATOR.join(part["text"] for part in parts if part["type"] == "text")
    result = f"{ERROR_PREFIX}{text}" if block.is_error else text
    turn = _Turn("tool", [{"type": "text", "text": result}], only={"tool_call_id": call_id, "name": names[call_id]})
    return turn, [part for part in parts if part["type"] != "text"]


def _call(block: InputBlock, path: str, names: dict[str, str]) -> dict[str, Any]:
    call_id, name = _given(block.id, f"{path}.id"), _given(block.name, f"{path}.name")
    if block.input is None:
        raise ANTHROPIC.missing(f"{path}.input", "an object")
    names[call_id] = name
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": block.input}}


# --- blocks -----------------------------------------------------------------------------------------------------------


def _checked(block: InputBlock, path: str, role: str) -> InputBlock:
    allowed = ALLOWED[role]
    if block.type not in allowed:
        words = allowed[0] if len(allowed) == 1 else f"{', '.join(allowed[:-1])} or {allowed[-1]}"
        where = "" if role == "system" else f" in a message of role {role}"
        raise ANTHROPIC.wrong(f"{path}.type", f"{words}{where}", block.type)
    return block


def _given(value: str | None, path: str) -> str:
    if value is None:
        raise ANTHROPIC.missing(path, "a string")
    return value


def _text(block: InputBlock, path: str) -> Part:
    return {"type": "text", "text": _given(block.text, f"{path}.text")}


def _image(source: ImageSource | None, path: str) -> Part:
    source = source or ImageSource()
    match source.type:
        case "base64":
            if source.media_type not in IMAGE_TYPES:
                raise ANTHROPIC.wrong(f"{path}.media_type", f"one of {', '.join(IMAGE_TYPES)}", source.media_type)
            url = f"data:{source.media_type};base64,{_given(source.data, f'{path}.data')}"
        case "url":
            url = _given(source.url, f"{path}.url")
            if not _WEB_ADDRESS.match(url):
                raise ANTHROPIC.wrong(f"{path}.url", "an http(s) address", url)
        case other:
            raise ANTHROPIC.wrong(f"{path}.type", "base64 or url", other)
    return {"type": "image_url", "image_url": {"url": url}}


# --- tools ------------------------------------------------------------------------------------------------------------

TOOL_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
CHOICES = ("auto", "any", "tool", "none")
_WISHES: Mapping[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}


def refuse_built_in(raw: Mapping[str, Any]) -> None:
    """Raises: UnsupportedFeature for a tool of another type than custom: it has no schema that a model could follow."""
    tools = raw.get("tools")
    for position, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind not in (None, "custom"):
            message = f"tools[{position}].type {shown(kind)} is not offered here: only tools of type custom are"
            raise UnsupportedFeature(message, param=f"tools[{position}].type")


def tool_use(body: PromptBody, raw: Mapping[str, Any]) -> ToolUse:
    """The tools and the choice; `raw` is the body as sent, whose schemas keep their order. Raises: InvalidRequest."""
    sent: Sequence[Mapping[str, Any]] = raw.get("tools", ()) if body.tools else ()
    functions = {f"tools[{i}]": _function(tool, f"tools[{i}]") for i, tool in enumerate(sent)}
    names: list[str] = []
    for place, function in functions.items():
        if function["name"] in names:
            message = f"{place}.name must differ from those of other tools, got {shown(function['name'])}"
            raise ANTHROPIC.fault(f"{place}.name", "value", message)
        names.append(function["name"])
    wish, name = _wish(body.tool_choice or ToolWish(type="auto"), names)
    return used_tools(functions, wish, name, ANTHROPIC, "input_schema")


def has_parallel_calls(body: PromptBody) -> bool:
    return body.tool_choice is None or not body.tool_choice.disable_parallel_tool_use


def _function(tool: Mapping[str, Any], path: str) -> dict[str, Any]:
    name, schema = tool["name"], tool["input_schema"]
    if not TOOL_NAME.fullmatch(name):
        raise ANTHROPIC.wrong(f"{path}.name", "1 to 128 letters, digits, underscores, dots or hyphens", name)
    problem = schema_problem(schema)
    if problem:
        message = f"{path}.input_schema must be a JSON schema: {problem}"
        raise ANTHROPIC.fault(f"{path}.input_schema", "value", message)
    optional = {"description": tool.get("description"), "strict": tool.get("strict")}
    present = {field: value for field, value in optional.items() if value is not None}
    return {"name": name, **present, "parameters": schema}


def _wish(choice: ToolWish, names: Sequence[str]) -> tuple[ToolChoice | None, str]:
    if choice.type not in CHOICES:
        raise ANTHROPIC.wrong("tool_choice.type", "auto, any, tool or none", choice.type)
    if choice.type == "tool":
        if choice.name is None or choice.name not in names:
            raise ANTHROPIC.wrong("tool_choice.name", "one of tools", choice.name)
        return "named", choice.name
    if choice.type == "any" and not names:
        raise ANTHROPIC.fault("tool_choice", "without_tools", "tool_choice any needs at least one entry in tools")
    return (_WISHES[choice.type] if names else None), ""
