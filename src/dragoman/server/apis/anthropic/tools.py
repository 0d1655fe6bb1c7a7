"""Turns tools and `tool_choice` into the neutral form. On the event loop. Source: Anthropic API reference, messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.errors import UnsupportedFeature
from dragoman.server.apis.anthropic.parameters import ANTHROPIC
from dragoman.server.apis.anthropic.schema import PromptBody, ToolWish
from dragoman.server.apis.openai_wire.conversation import ToolUse, tools_passed_over
from dragoman.server.apis.openai_wire.fields import shown
from dragoman.server.apis.openai_wire.grammars import schema_problem
from dragoman.types import ToolChoice

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
    functions = [_function(tool, f"tools[{i}]") for i, tool in enumerate(sent)]
    names: list[str] = []
    for position, function in enumerate(functions):
        if function["name"] in names:
            message = f"tools[{position}].name must differ from those of other tools, got {shown(function['name'])}"
            raise ANTHROPIC.fault(f"tools[{position}].name", "value", message)
        names.append(function["name"])
    wish, name = _wish(body.tool_choice or ToolWish(type="auto"), names)
    tools = tuple({"type": "function", "function": function} for function in functions)
    if wish == "none":
        return ToolUse((), wish, name)
    places = {f"tools[{i}]": function for i, function in enumerate(functions)}
    return ToolUse(tools, wish, name, tools_passed_over(places, ANTHROPIC, "input_schema"))


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
    given = {field: value for field, value in optional.items() if value is not None}
    return {"name": name, **given, "parameters": schema}


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
