"""Conversations that `/load` reads from files, which anybody may have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.terminal.conversation import Conversation
from tests.support.tables import table

ASKED = {"role": "user", "content": "What is the weather in Oslo?"}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL, {**CALL, "id": "2"}]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "rain"}


def loaded(messages: list[Any], directory: Path) -> Conversation:
    path = directory / "kept.json"
    path.write_text(json.dumps({"messages": messages}), encoding="utf-8")
    conversation = Conversation()
    conversation.load(path)
    return conversation


def test_a_call_without_its_result_is_waited_for(tmp_path: Path) -> None:
    conversation = loaded([ASKED, CALLED, RESULT], tmp_path)
    assert [call["id"] for call in conversation.waiting_calls()] == ["2"]
    conversation.say("snow")
    assert conversation.messages[-1] == {"role": "tool", "tool_call_id": "2", "content": "snow"}


@table(
    ("message", "told"),
    [
        ({"role": "tool", "content": "rain"}, "messages[1]: must have a tool_call_id, as it is the result of a call"),
        ({**CALLED, "tool_calls": 5}, "messages[1].tool_calls: must be an array of calls, each with an id and a "),
        ({**CALLED, "tool_calls": [{"function": {"name": "weather"}}]}, "messages[1].tool_calls: must be an array"),
        ({**CALLED, "tool_calls": [CALL, {"id": "2"}]}, "messages[1].tool_calls: must be an array"),
    ],
)
def test_calls_and_results_that_cannot_be_paired_are_refused(message: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r".*") as caught:
        loaded([ASKED, message], tmp_path)
    assert str(caught.value).startswith(told)
