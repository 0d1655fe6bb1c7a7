"""The order of a conversation's messages is fitted to the template: results of calls, system messages, bare tools."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from dragoman.errors import InvalidRequest
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import ChatPrompt

Message = dict[str, Any]

PLAIN = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
ONE_SYSTEM = """
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning') }}{% endif -%}
[{{ m.role }}:{{ m.content }}]
{%- endfor %}"""
NO_SYSTEM = """
{%- for m in messages %}
{%- if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif -%}
[{{ m.role }}:{{ m.content }}]
{%- endfor %}"""
FORGETS = """
{%- if messages[0].role == 'system' %}[system:{{ messages[0].content }}]{% endif -%}
{%- for m in messages %}{% if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endif %}{% endfor %}"""
PARTS = "{% for m in messages %}[{{ m.role }}:{% for p in m.content %}{{ p.text }}{% endfor %}]{% endfor %}"
DEVELOPER = "{# developer #}" + PLAIN
TOOLS = """
{%- for t in tools %}{{ t.function.name + ': ' + t.function.description }}
{%- for name in t.function.parameters.properties %} {{ name }}{% endfor %};{% endfor %}{{ messages[0].content }}"""
RAW_TOOLS = "{% for t in tools %}{{ t | tojson }}{% endfor %}{{ messages[0].content }}"


def said(text: str) -> list[Message]:
    """Messages by their first letters: `s:Be brief. u:Hi`."""
    roles = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
    return [{"role": roles[role], "content": word} for role, _, word in (one.partition(":") for one in text.split())]


def rendered(template: str, messages: Sequence[Message], tools: Sequence[Message] = ()) -> str:
    return ChatTemplate(template, is_vouched=True).render(ChatPrompt(tuple(messages), tuple(tools)))


@pytest.mark.parametrize(
    ("template", "messages", "text"),
    [
        (PLAIN, "s:A u:B", "[system:A][user:B]"),
        (PLAIN, "s:A s:B u:C", "[system:A\n\nB][user:C]"),
        (PLAIN, "s:A d:B u:C s:D u:E", "[system:A\n\nB][user:C][system:D][user:E]"),
        (DEVELOPER, "s:A d:B u:C d:D u:E", "[system:A][developer:B][user:C][developer:D][user:E]"),
        (ONE_SYSTEM, "s:A s:B u:C", "[system:A\n\nB][user:C]"),
        (ONE_SYSTEM, "s:A u:B a:C s:D u:E", "[system:A][user:B][assistant:C][user:D\n\nE]"),
        (ONE_SYSTEM, "u:A s:B a:C s:D", "[user:A\n\nB][assistant:C][user:D]"),
        (ONE_SYSTEM, "u:A u:B a:C", "[user:A][user:B][assistant:C]"),  # what a client sent apart stays apart
        (FORGETS, "s:A u:B a:C s:D u:E", "[system:A][user:B][assistant:C][user:D\n\nE]"),
        (NO_SYSTEM, "s:A u:B a:C s:D u:E", "[user:A\n\nB][assistant:C][user:D\n\nE]"),
        (NO_SYSTEM, "s:A s:B u:C a:D u:E s:F", "[user:A\n\nB\n\nC][assistant:D][user:E\n\nF]"),
        (PARTS, "s:A u:B a:C s:D u:E", "[system:A][user:B][assistant:C][system:D][user:E]"),
    ],
)
def test_system_messages_are_moved_to_where_the_template_takes_them(template: str, messages: str, text: str) -> None:
    assert rendered(template, said(messages)) == text


def test_parts_are_merged_as_parts() -> None:
    parts = [{"type": "text", "text": "B"}, {"type": "text", "text": "C"}]
    messages = [*said("u:A"), {"role": "system", "content": parts}, *said("a:D")]
    assert rendered(ONE_SYSTEM, messages) == "[user:A\nB\nC][assistant:D]"


def test_other_refusals_of_the_template_keep_its_words() -> None:
    with pytest.raises(InvalidRequest, match="Roles must alternate"):
        rendered(NO_SYSTEM, said("s:A u:B u:C"))


def call(name: str) -> Message:
    return {"id": name, "type": "function", "function": {"name": name, "arguments": {}}}


def result(name: str | None, text: str) -> Message:
    return {"role": "tool", "content": text, **({} if name is None else {"tool_call_id": name})}


def test_results_come_in_the_order_of_their_calls() -> None:
    calls = {"role": "assistant", "content": "", "tool_calls": [call("rome"), call("paris"), call("oslo")]}
    sent = [*said("u:?"), calls, result("oslo", "O"), result("rome", "R"), result("paris", "P"), *said("a:! u:??")]
    assert rendered(PLAIN, sent).endswith("[tool:R][tool:P][tool:O][assistant:!][user:??]")
    twice = [*sent, calls, result("paris", "P2"), result("oslo", "O2"), result("rome", "R2")]
    assert rendered(PLAIN, twice).endswith("[tool:R2][tool:P2][tool:O2]")


def test_results_without_known_calls_keep_their_order() -> None:
    calls = {"role": "assistant", "content": "", "tool_calls": [call("rome"), call("paris")]}
    for ids in (("paris", None), ("paris", "other"), ("paris", "paris")):
        sent = [*said("u:?"), calls, result(ids[0], "P"), result(ids[1], "R")]
        assert rendered(PLAIN, sent).endswith("[tool:P][tool:R]"), ids


def tool(**function: Any) -> Message:
    return {"type": "function", "function": {"name": "f", **function}}


def test_tools_get_the_optional_fields_that_the_template_reads() -> None:
    properties = {"type": "object", "properties": {"x": {}}}
    assert rendered(TOOLS, said("u:?"), [tool()]) == "f: ;?"
    assert rendered(TOOLS, said("u:?"), [tool(description="D", parameters=properties)]) == "f: D x;?"
    assert rendered(TOOLS, said("u:?"), [tool(parameters={"type": "object"})]) == "f: ;?"


def test_tools_stay_unchanged_for_other_templates() -> None:
    assert rendered(RAW_TOOLS, said("u:?"), [tool()]) == '{"type": "function", "function": {"name": "f"}}?'


def test_a_conversation_is_rendered_once() -> None:
    rendered_at: list[datetime] = []

    def clock() -> datetime:
        rendered_at.append(datetime(2026, 1, 2))
        return rendered_at[-1]

    tool = {"type": "function", "function": {"name": "look"}}
    for source in (PLAIN, ONE_SYSTEM, FORGETS, NO_SYSTEM, "{# tools #}" + PLAIN):
        template = ChatTemplate(source, now=clock, is_vouched=True)
        rendered_at.clear()
        template.render(ChatPrompt(tuple(said("s:A u:B")), (tool,) if "tools" in source else ()))
        assert len(rendered_at) == 1, source  # what the template takes was tried when it was loaded
