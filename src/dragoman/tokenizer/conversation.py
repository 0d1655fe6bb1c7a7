"""Fits a conversation to the rules of chat templates for the order of messages, whichever API it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

Message = Mapping[str, Any]

SYSTEM, USER, TOOL = "system", "user", "tool"
_BETWEEN = "\n\n"  # between merged texts


def with_sorted_results(messages: Sequence[Message]) -> list[Message]:
    """The messages, with results in the order of their calls, if ids name these: templates pair them by position."""
    found: list[Message] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        found.append(message)
        position += 1
        calls = message.get("tool_calls")
        if not calls:
            continue
        run = list(takewhile(lambda one: one.get("role") == TOOL, messages[position:]))
        order = {call.get("id"): place for place, call in enumerate(calls) if isinstance(call, Mapping)}
        ids = [result.get("tool_call_id") for result in run]
        if len(set(ids)) == len(ids) and all(one is not None and one in order for one in ids):
            run.sort(key=lambda result: order[result["tool_call_id"]])
        found += run
        position += len(run)
    return found


def has_system(messages: Sequence[Message]) -> bool:
    return any(message.get("role") == SYSTEM for message in messages)


def with_one_leading(messages: Sequence[Message]) -> list[Message]:
    leading = list(takewhile(lambda message: message.get("role") == SYSTEM, messages))
    if len(leading) < 2:
        return list(messages)
    merged = leading[0]
    for message in leading[1:]:
        merged = merged_message(merged, message)
    return [merged, *messages[len(leading) :]]


def with_system_in_turns(messages: Sequence[Message], *, keeps_leading: bool) -> list[Message]:
    """The messages, with system messages merged into the user's turn beside them. `keeps_leading`: but the first."""
    found: list[Message] = []
    was_moved = False
    for position, message in enumerate(messages):
        is_moved = message.get("role") == SYSTEM and not (keeps_leading and position == 0)
        said = {**message, "role": USER} if is_moved else message
        joins = bool(found) and found[-1].get("role") == said.get("role") == USER and (is_moved or was_moved)
        if joins:
            found[-1] = merged_message(found[-1], said)
        else:
            found.append(said)
        was_moved = is_moved
    return found


def with_whole_tools(tools: Sequence[Message]) -> list[Message]:
    """The tools, each with the description and the parameters that the reference makes optional."""
    return [_whole(tool) for tool in tools]


def _whole(tool: Message) -> Message:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    usual = {"description": "", "parameters": {"type": "object", "properties": {}}}
    parameters = function.get("parameters")
    if isinstance(parameters, Mapping) and "properties" not in parameters:
        usual["parameters"] = {"type": "object", "properties": {}, **parameters}
        function = {name: value for name, value in function.items() if name != "parameters"}
    return {**tool, "function": {**function, **{name: usual[name] for name in usual if name not in function}}}


def merged_message(first: Message, second: Message, between: str = _BETWEEN) -> Message:
    """One message with the content of both, and the first one's other fields. `between`: goes between texts."""
    one, other = first.get("content"), second.get("content")
    if isinstance(one, str) and isinstance(other, str):
        content: Any = between.join(text for text in (one, other) if text)
    else:
        content = [*_parts(one), *_parts(other)]
    return {**first, "content": content}


def _parts(content: Any) -> list[Any]:
    if content is None or content == "":
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
