"""Fits a conversation to the rules of chat templates for the order of messages, whichever API it came from.

Describes tools in plain messages, in the form of the parser `hermes`, for templates that have no place for them.
"""

from __future__ import annotations

import json
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
        run = list(takewhile(lambda message: message.get("role") == TOOL, messages[position:]))
        order = {call.get("id"): place for place, call in enumerate(calls) if isinstance(call, Mapping)}
        ids = [result.get("tool_call_id") for result in run]
        if len(set(ids)) == len(ids) and all(call_id is not None and call_id in order for call_id in ids):
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
        turn = {**message, "role": USER} if is_moved else message
        joins = bool(found) and found[-1].get("role") == turn.get("role") == USER and (is_moved or was_moved)
        if joins:
            found[-1] = merged_message(found[-1], turn)
        else:
            found.append(turn)
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
    earlier, other = first.get("content"), second.get("content")
    if isinstance(earlier, str) and isinstance(other, str):
        content: Any = between.join(text for text in (earlier, other) if text)
    else:
        content = [*_parts(earlier), *_parts(other)]
    return {**first, "content": content}


def _parts(content: Any) -> list[Any]:
    if content is None or content == "":
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


# --- tools in plain messages ------------------------------------------------------------------------------------------

FORMS = ("auto", "hermes")
"""The values of `option.tool_call_parser` with which such calls are read."""

_DESCRIPTION = """You may call functions to help with the user's request. Available functions, one JSON object per line:
<tools>
{tools}
</tools>

To call a function, write its name and arguments as a JSON object between these tags, once per call:
<tool_call>
{{"name": "the function's name", "arguments": {{"argument": "value"}}}}
</tool_call>
End your message after the last call. Results are returned between <tool_response> and </tool_response>. \
If no function helps, answer without a call."""


def with_told_tools(messages: Sequence[Message], tools: Sequence[Message]) -> list[Message]:
    """The messages, with `tools` described in the system message, and calls and results as texts of turns."""
    instructions = {"role": SYSTEM, "content": _DESCRIPTION.format(tools="\n".join(map(_json, tools)))}
    first = messages[:1] if messages and messages[0].get("role") == SYSTEM else ()
    found: list[Message] = [merged_message(first[0], instructions) if first else instructions]
    was_result = False
    for message in messages[len(first) :]:
        is_result = message.get("role") == TOOL
        turn = _result(message) if is_result else _calls(message)
        if was_result and turn.get("role") == USER:  # templates require alternating turns
            found[-1] = merged_message(found[-1], turn)
        else:
            found.append(turn)
        was_result = is_result
    return found


def _calls(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    texts = "\n".join(f"<tool_call>\n{_call(call)}\n</tool_call>" for call in calls)
    return merged_message(kept, {"content": texts}, between="\n")


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return _json(call)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = _json({} if arguments is None else arguments)
    return f'{{"name": {_json(function.get("name"))}, "arguments": {arguments.strip() or "{}"}}}'


def _result(message: Message) -> Message:
    opened = merged_message({"role": USER, "content": "<tool_response>"}, message, between="\n")
    return merged_message(opened, {"content": "</tool_response>"}, between="\n")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
