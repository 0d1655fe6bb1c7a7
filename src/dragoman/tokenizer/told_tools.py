"""Describes tools in plain messages, in the form of the parser `hermes`, for chat templates that have no place for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.tokenizer.conversation import SYSTEM, TOOL, USER, Message, merged_message

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
    told = {"role": SYSTEM, "content": _DESCRIPTION.format(tools="\n".join(map(_json, tools)))}
    first = messages[:1] if messages and messages[0].get("role") == SYSTEM else ()
    found: list[Message] = [merged_message(first[0], told) if first else told]
    was_result = False
    for message in messages[len(first) :]:
        is_result = message.get("role") == TOOL
        said = _result(message) if is_result else _calls(message)
        if was_result and said.get("role") == USER:  # templates require alternating turns
            found[-1] = merged_message(found[-1], said)
        else:
            found.append(said)
        was_result = is_result
    return found


def _calls(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    said = {name: value for name, value in message.items() if name != "tool_calls"}
    texts = "\n".join(f"<tool_call>\n{_call(call)}\n</tool_call>" for call in calls)
    return merged_message(said, {"content": texts}, between="\n")


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
