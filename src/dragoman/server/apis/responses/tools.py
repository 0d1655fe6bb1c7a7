"""The tools of a request: functions as templates and grammars take them, and the wish about them.

Does: check them, refuse by name the tools that OpenAI's service runs itself. Does not: call anything.
Called by the dialect, on the event loop. Source: OpenAI API reference, responses, tools and tool_choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from dragoman.errors import UnsupportedFeature
from dragoman.server.apis.openai_wire.chat.messages import ToolUse, checked_function, tools_passed_over
from dragoman.server.apis.openai_wire.fields import check_count, shown
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.responses.schema import ResponsesBody
from dragoman.types import Limits, ToolChoice

_WISHES = ("none", "auto", "required")
TOOL_FIELDS = ("name", "description", "parameters", "strict")
"""What is told of a function."""


def read_tools(body: ResponsesBody, limits: Limits, profile: Profile) -> ToolUse:
    """The tools that may be called, and the wish. Raises: InvalidRequest."""
    sent = body.tools or []
    check_count("tools", len(sent), limits.max_tools, profile)
    tools = tuple(_tool(tool, f"tools[{position}]", profile) for position, tool in enumerate(sent))
    places = {tool["function"]["name"]: _place(sent[i], f"tools[{i}]") for i, tool in enumerate(tools)}
    names = [tool["function"]["name"] for tool in tools]
    choice = body.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed, choice = _allowed(choice, names, profile)
        tools = tuple(tool for tool in tools if tool["function"]["name"] in allowed)
        names = [tool["function"]["name"] for tool in tools]
    wish, name = _wish(choice, names, profile)
    if wish == "none":
        return ToolUse((), wish, name)
    functions = {places[tool["function"]["name"]]: tool["function"] for tool in tools}
    return ToolUse(tools, wish, name, tools_passed_over(functions, profile))


def _place(tool: Mapping[str, Any], path: str) -> str:
    """The place of the function's fields: OpenVINO Model Server also takes the nested form that conversations have."""
    return path if tool.get("function") is None else f"{path}.function"


def _tool(tool: Mapping[str, Any], path: str, profile: Profile) -> dict[str, Any]:
    """A function."""
    kind = tool.get("type")
    if kind not in (None, "function"):
        message = f"{path}.type {shown(kind)} is not supported: only function tools are called here"
        raise UnsupportedFeature(message, param=f"{path}.type")
    nested = tool.get("function")
    if nested is not None and not isinstance(nested, dict):
        raise profile.fault(f"{path}.function", "type", f"{path}.function must be an object, got {shown(nested)}")
    function, path = tool if nested is None else nested, _place(tool, path)
    if not isinstance(function.get("name"), str):
        problem = "missing" if function.get("name") is None else "type"
        said = "is missing" if problem == "missing" else f"must be a string, got {shown(function['name'])}"
        raise profile.fault(f"{path}.name", problem, f"{path}.name {said}")
    for name, kinds, words in (("description", str, "a string"), ("parameters", dict, "an object"), _STRICT):
        value = function.get(name)
        if value is not None and not isinstance(value, kinds):
            raise profile.fault(f"{path}.{name}", "type", f"{path}.{name} must be {words}, got {shown(value)}")
    own = {name: function[name] for name in TOOL_FIELDS if name in function}
    return {"type": "function", "function": checked_function(own, path, profile)}


_STRICT = ("strict", bool, "true or false")


def _allowed(choice: Mapping[str, Any], names: Sequence[str], profile: Profile) -> tuple[set[str], str]:
    """The names that `allowed_tools` leaves, and its mode."""
    mode, tools = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        message = f"tool_choice.mode must be auto or required, got {shown(mode)}"
        raise profile.fault("tool_choice.mode", "value", message)
    if not isinstance(tools, list) or not tools:
        message = f"tool_choice.tools must be an array of at least one tool, got {shown(tools)}"
        raise profile.fault("tool_choice.tools", "value", message)
    allowed: set[str] = set()
    for position, tool in enumerate(tools):
        allowed.add(_named(tool, f"tool_choice.tools[{position}]", names, profile))
    return allowed, mode


def _named(tool: Any, path: str, names: Sequence[str], profile: Profile) -> str:
    """The name of a function that must be one of `names`."""
    if not isinstance(tool, dict):
        raise profile.fault(path, "type", f"{path} must be an object, got {shown(tool)}")
    kind = tool.get("type", "function")
    if kind != "function":
        message = f"{path}.type {shown(kind)} is not supported: only function tools are called here"
        raise UnsupportedFeature(message, param=f"{path}.type")
    nested = tool.get("function")
    name = nested.get("name") if isinstance(nested, dict) else tool.get("name")
    if name in names and isinstance(name, str):
        return name
    raise profile.fault(f"{path}.name", "value", f"{path}.name must be one of tools, got {shown(name)}")


def _wish(choice: str | dict[str, Any] | None, names: Sequence[str], profile: Profile) -> tuple[ToolChoice | None, str]:
    """The choice, None without tools, and the name of the tool that it names."""
    if isinstance(choice, dict):
        return "named", _named(choice, "tool_choice", names, profile)
    if choice is not None and choice not in _WISHES:
        message = f"tool_choice must be none, auto, required, a function or allowed_tools, got {shown(choice)}"
        raise profile.fault("tool_choice", "value", message)
    if choice == "required" and not names:
        raise profile.fault("tool_choice", "without_tools", "tool_choice required needs at least one entry in tools")
    return (cast(ToolChoice, choice or "auto") if names else None), ""
