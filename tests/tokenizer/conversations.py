"""Conversations as clients send them, which the recorded renderings of chat templates are made of.

Used by the tests and by scripts/record_chat_templates.py, which must see the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "chat_templates"
RENDERINGS = FOLDER / "renderings.json"
NOW = datetime(2025, 3, 5, 10, 20, 30)
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

Message = dict[str, Any]


class Conversation(NamedTuple):
    """What a prompt is made of. Arguments of calls are objects, `as_sent` makes them the text that clients send."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    continues: bool = False
    prompts: bool = True
    kwargs: Mapping[str, Any] = MappingProxyType({})

    def as_sent(self) -> tuple[Message, ...]:
        """The messages with arguments as JSON text."""
        return tuple(_with_texts(message) for message in self.messages)


def _with_texts(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _says(content: str, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def _call(call_id: str, name: str, **arguments: Any) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(call_id: str, name: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


_SYSTEM = {"role": "system", "content": "Be <brief>."}
_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The <weather> in Zürich & elsewhere",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where"},
                "unit": {"type": "string", "enum": ["c", "f"]},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["city"],
        },
    },
}
_ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
    },
}
_TALK = (_SYSTEM, _user(" Hi & bye\n"), _says("Hello!"), _user("And now?"))
_ASKED = _call("abcdef123", "weather", city="Zürich", days=[1, 2])
_SUNNY = _result("abcdef123", "weather", "sunny")
_ROUND = (_user("Weather?"), _says("", tool_calls=[_ASKED]), _SUNNY)

CONVERSATIONS = {
    "question": Conversation((_user("Hi"),)),
    "turns": Conversation(_TALK),
    "no_prompt": Conversation(_TALK[1:3], prompts=False),
    "continued": Conversation((*_TALK, _says("It is now ")), continues=True),
    "tools": Conversation((_SYSTEM, _user("Weather?")), (_WEATHER, _ADD)),
    "tool_round": Conversation(_ROUND, (_WEATHER,)),
    "tool_rounds": Conversation((*_ROUND, _says("It is sunny."), _user("Thanks")), (_WEATHER,)),
    "two_calls": Conversation(
        (
            _user("Both?"),
            _says("I look.", tool_calls=[_ASKED, _call("abcdef124", "add", a=1.5)]),
            _SUNNY,
            _result("abcdef124", "add", "3"),
        ),
        (_WEATHER, _ADD),
    ),
    "reasoning": Conversation(
        (_user("Hi"), _says("Hello", reasoning_content="A greeting.\n"), *_ROUND[:1],
         {**_ROUND[1], "reasoning_content": "I must ask."}, _SUNNY),
        (_WEATHER,),
    ),
    "thinking": Conversation((_user("Hi"),), kwargs={"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    "no_thinking": Conversation((_user("Hi"),), kwargs={"enable_thinking": False, "thinking_budget": 0}),
    "documents": Conversation((_user("Hi"),), kwargs={"documents": [{"title": "A", "text": "b & c"}]}),
    "built_in": Conversation(
        (_user("Hi"),), (_ADD,), kwargs={"builtin_tools": ["search", "code_interpreter"], "date_string": "today"}
    ),
}  # fmt: skip
