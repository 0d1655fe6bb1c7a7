"""Conversations become prompts: the families' conventions, what templates refuse, and runaway templates."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import InvalidRequest, UnsupportedFeature
from dragoman.tokenizer.chat_template import ChatTemplate, load_chat_template
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.tokenizer.template_environment import RenderLimits
from dragoman.types import ChatPrompt
from tests.support.tables import table
from tests.tokenizer.vocabularies import byte_level, write_model_dir

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA3 = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + strftime_now("%d %b %Y") + "\\n" + system_message }}
{%- if tools is not none %}{{- "\\n" + tools | tojson }}{%- endif %}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
MISTRAL = """
{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant, "' + message['role'] + '" came') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}{{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- else %}{{- ' ' + message['content'] + eos_token }}{%- endif %}
{%- endfor %}
"""
PARTS_ONLY = """
{%- for message in messages %}
    {{- message.role + ':' }}
    {%- for part in message.content %}{%- if part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}
{%- endfor %}
"""
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def message(role: str, content: Any = "", **more: Any) -> dict[str, Any]:
    """A message as clients send it."""
    return {"role": role, "content": content, **more}


def rendered(source: str, *messages: Mapping[str, Any], **options: Any) -> str:
    """The prompt text of a conversation on 5 March 2024."""
    template = ChatTemplate(source, special_tokens=TOKENS, now=lambda: datetime(2024, 3, 5))
    return template.render(ChatPrompt(messages, **options))


@table(
    ("source", "messages", "expected"),
    [
        (CHATML, [message("user", "Hi")], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        (
            LLAMA3,
            [message("system", " Be brief. "), message("user", "Hi")],
            "<s><|start_header_id|>system<|end_header_id|>\n\nToday: 05 Mar 2024\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            MISTRAL,
            [message("user", "Hi"), message("assistant", "Yes?"), message("user", "Bye")],
            "<s>[INST] Hi [/INST] Yes?</s>[INST] Bye [/INST]",
        ),
    ],
    ids=["chatml", "llama3", "mistral"],
)
def test_the_families_of_templates_render_as_their_models_were_trained(
    source: str, messages: list[dict[str, Any]], expected: str
) -> None:
    assert rendered(source, *messages) == expected


def test_messages_that_the_template_forbids_are_refused_with_its_own_words() -> None:
    with pytest.raises(InvalidRequest, match='Roles must alternate user/assistant, "assistant" came') as caught:
        rendered(MISTRAL, message("assistant", "Be brief."), message("user", "Hi"))
    assert caught.value.param == "messages"


@table(
    ("content", "expected"),
    [
        ("a", "a"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (["a", {"type": "text", "text": "b"}], "a\nb"),
    ],
)
@table("source", [CHATML, PARTS_ONLY], ids=["strings", "parts"])
def test_content_reaches_the_template_in_the_form_it_understands(source: str, content: Any, expected: str) -> None:
    wrap = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n" if source == CHATML else "user:{}"
    assert rendered(source, message("user", content)) == wrap.format(expected)


def test_a_template_that_prints_parts_as_python_values_gets_strings() -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert rendered(source, message("user", [{"type": "text", "text": "a"}])) == "a"


@table(
    ("content", "error", "says"),
    [
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}], UnsupportedFeature, "image_url"),
        ([{"type": "input_audio"}], UnsupportedFeature, "input_audio"),
        ([{"type": "text"}], InvalidRequest, r"messages\[0\].content\[0\]"),
        ([3], InvalidRequest, r"messages\[0\].content\[0\]"),
        (3, InvalidRequest, r"messages\[0\].content must be .* got int"),
    ],
)
def test_content_that_is_not_text_is_refused_by_its_place(content: Any, error: type[InvalidRequest], says: str) -> None:
    with pytest.raises(error, match=says):
        rendered(CHATML, message("user", content))


def test_no_messages_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one message"):
        rendered(CHATML)


def test_the_developer_is_the_system_unless_the_template_knows_developers() -> None:
    said = message("developer", "Be brief.")
    assert "<|im_start|>system\nBe brief." in rendered(CHATML, said)
    knowing = "{% for m in messages %}{{ m.role if m.role != 'developer' else 'DEV' }}{% endfor %}"
    assert rendered(knowing, said) == "DEV"


@table("source", [CHATML, LLAMA3, PARTS_ONLY], ids=["chatml", "llama3", "parts"])
@table("words", ["The answer is", "The answer is ", "a", "x\n\ny"])
def test_a_final_message_is_continued_where_it_stopped_and_trimmed_where_the_template_trims(
    source: str, words: str
) -> None:
    question = message("user", f"Say: {words}")
    text = rendered(source, question, message("assistant", words), continue_final_message=True)
    assert text.endswith(words.rstrip() if source == LLAMA3 else words)
    assert text.startswith(rendered(source, question, template_kwargs={"add_generation_prompt": False}))


def test_a_final_message_that_the_template_hides_cannot_be_continued() -> None:
    with pytest.raises(InvalidRequest, match="continue_final_message"):
        rendered("{{ messages[0].content }}", message("user"), message("assistant", "a"), continue_final_message=True)


def test_tools_reach_the_template_unescaped() -> None:
    tools = ({"type": "function", "function": {"name": "f", "description": "<b> & 'é'"}},)
    assert json.dumps(tools, ensure_ascii=False) in rendered(LLAMA3, message("user", "Hi"), tools=tools)


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
    {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": {"city": "Århus"}}},
]
WITH_RESULTS = (
    message("system", "Be brief."),
    message("user", "Where is it warm?"),
    message("assistant", "I look.", tool_calls=CALLS),
    message("tool", "3 °C", tool_call_id="c1"),
    message("tool", [{"type": "text", "text": "9 °C"}], tool_call_id="c2"),
    message("user", "Well?"),
)


def test_a_template_without_a_place_for_tools_gets_messages_that_tell_them() -> None:
    prompt = rendered(CHATML, *WITH_RESULTS, tools=(WEATHER,))
    system, user, assistant, results, end = prompt.removeprefix("<|im_start|>").split("<|im_end|>\n<|im_start|>")
    assert system.startswith("system\nBe brief.\n\nYou may call functions")
    assert f"<tools>\n{json.dumps(WEATHER)}\n</tools>" in system
    assert user == "user\nWhere is it warm?"
    assert assistant == (
        'assistant\nI look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Århus"}}\n</tool_call>'
    )
    assert results == ("user\n<tool_response>\n3 °C\n</tool_response>\n<tool_response>\n9 °C\n</tool_response>\nWell?")
    assert end == "assistant\n"
    assert rendered(CHATML, message("user", "Hi"), tools=(WEATHER,)).startswith(
        "<|im_start|>system\nYou may call functions"
    )
    assert rendered(MISTRAL, *WITH_RESULTS, tools=(WEATHER,)).startswith(
        "<s>[INST] Be brief.\n\nYou may call functions"
    )
    assert rendered(CHATML, message("user", "Hi")) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_tools_are_refused_if_describing_them_would_be_wrong() -> None:
    prompt = ChatPrompt((message("user", "Hi"),), tools=(WEATHER,))
    for template in (
        ChatTemplate(CHATML).without_told_tools(),
        ChatTemplate({"default": CHATML, "rag": "{{ tools }}"}),
    ):
        with pytest.raises(UnsupportedFeature, match="tools are not supported"):
            template.render(prompt)


def test_templates_that_read_firefunctions_variables_get_them() -> None:
    """Its template reads `functions`, JSON text, in place of tools, and `datetime`."""
    source = "{%- set told = 'functools: ' + functions + ' ' + datetime %}{{ told }}"
    now = ChatTemplate(source, now=lambda: datetime(2026, 5, 4, 3, 2, 1))
    assert now.render(ChatPrompt((message("user"),))) == "functools: [] May 04 2026 03:02:01"
    told = now.render(ChatPrompt((message("user"),), tools=(WEATHER,), template_kwargs={"datetime": "now"}))
    assert told == f"functools: {json.dumps([WEATHER], indent=2)} now"
    unread = "{% set functions = 'own' %}{{ functions }} {{ datetime is defined }} {{ messages[0].functions }}"
    assert rendered(unread, message("user", functions="mine")) == "own False mine"


def test_the_template_for_tools_is_used_only_when_there_are_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "with {{ tools | length }} tools"})
    assert template.render(ChatPrompt((message("user"),))) == "plain"
    assert template.render(ChatPrompt((message("user"),), tools=({}, {}))) == "with 2 tools"


@table(
    ("arguments", "expected"),
    [('{"a": 1}', '{"a": 1}'), ({"a": 1}, '{"a": 1}'), ("", "{}"), ("not json", '"not json"'), ("[1]", '"[1]"')],
)
def test_arguments_of_tool_calls_reach_the_template_as_objects(arguments: Any, expected: str) -> None:
    source = "{% for m in messages %}{{ m.tool_calls[0].function.arguments | tojson }}{% endfor %}"
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    assert rendered(source, message("assistant", None, tool_calls=[call])) == expected


@table(
    "source",
    [
        "{% for m in messages if m.tool_calls %}{{ '#' + m.tool_calls[0].function.arguments }}{% endfor %}",
        "{% for m in messages if m.tool_calls %}#{{ m.tool_calls[0].function.arguments }}{% endfor %}",
    ],
)
@table(("arguments", "expected"), [('{"a":  1}', '{"a":  1}'), ({"a": "é"}, '{"a": "é"}'), ("", "{}")])
def test_templates_that_take_arguments_for_text_get_text(source: str, arguments: Any, expected: str) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    assert rendered(source, message("assistant", None, tool_calls=[call])) == f"#{expected}"


@table("given", ["reasoning_content", "reasoning", "thinking"])
def test_templates_get_reasoning_under_the_name_they_read(given: str) -> None:
    source = "{% for m in messages %}{{ m.reasoning_content }} {{ m.thinking }}{% endfor %}"
    assert rendered(source, message("assistant", "x", **{given: "Hm."})) == "Hm. Hm."


def test_template_kwargs_reach_the_template_but_replace_neither_messages_nor_tokens() -> None:
    source = "{{ mood }} {{ bos_token }} {{ messages[0].content }} {{ documents }}"
    kwargs = {"mood": "fine", "bos_token": "no", "messages": [message("user", "no")]}
    assert rendered(source, message("user", "yes"), template_kwargs=kwargs) == "fine <s> yes None"


def test_a_conversation_overrides_default_kwargs_one_by_one() -> None:
    template = ChatTemplate("{{ mood }} {{ pace }}").with_default_kwargs({"mood": "fine", "pace": "slow"})
    told: tuple[dict[str, Any], ...] = ({}, {"pace": "fast"}, {"mood": None, "pace": "fast"})
    texts = [template.render(ChatPrompt((message("user", "?"),), template_kwargs=kwargs)) for kwargs in told]
    assert texts == ["fine slow", "fine fast", "None fast"]


@table(
    ("source", "expected"),
    [
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}"
         "{% endfor %}", "013"),
        ("{% generation %}a{{ 1 ~ 'b' ~ nothing }}{% endgeneration %}", "a1b"),
        ("{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}", "21"),
        ("{{ '<é>' | tojson }}", '"<é>"'),
        ("{{ {'b': [1], 'a': 2} | tojson(indent=1) }}", '{\n "b": [\n  1\n ],\n "a": 2\n}'),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('a') ~ loop }}", "aa"),
        ("{% for m in messages recursive %}{{ loop.index }}{% endfor %}", "1"),
        ("{{ 2 ** 3 + 4 * 2 }}{{ 'ab' * 2 }}{{ ([1] + [2]) | length }}", "16abab2"),
    ],
)  # fmt: skip
def test_templates_have_hugging_faces_extras(source: str, expected: str) -> None:
    assert rendered(source, message("user")) == expected


@table(
    ("source", "says"),
    [
        ("{% for i in range(900) %}{{ 'aaaaaaaaaaaaaaaa' }}{% endfor %}", "rendered more than 10000 characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages[0].content.nope.nope }}", "UndefinedError"),
        ("{{ messages[0].content / 0 }}", "TypeError"),
    ],
)
@table("is_vouched", [True, False], ids=["here", "in a process"])
def test_a_template_that_fails_is_an_error_of_the_request(source: str, says: str, is_vouched: bool) -> None:
    guarded = f"{{% if messages[0].content == 'Hi' %}}{source}{{% endif %}}"  # else it would not even load
    template = ChatTemplate(guarded, limits=RenderLimits(max_size=10_000), is_vouched=is_vouched)
    with pytest.raises(InvalidRequest, match=says) as caught:
        template.render(ChatPrompt((message("user", "Hi"),)))
    assert "\n" not in str(caught.value)


RUNAWAYS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "calls": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a comparison that holds the interpreter's lock": "{% set ns = namespace(a=1, b=1) %}{% for i in range(40) %}"
    "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
    "a number that holds the interpreter's lock": "{% set n = 7 ** (9999999 + messages | length) %}{{ n // 3 }}",
    "a text": "{% set ns = namespace(a='a') %}{% for i in range(99) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
    "a list": "{{ ([1] * 10 ** 9) | length }}",
    "a kept text": "{% set a %}{% for i in range(99999) %}{{ 'x'.ljust(99999) }}{% endfor %}{% endset %}",
    "a date": "{{ strftime_now('%c' * 99999999) | length }}",
}


@pytest.mark.varies("how much memory and time the same template takes is the Python's own")
def test_a_template_that_runs_away_is_ended_from_outside() -> None:
    """Whatever it does: time and memory are bounded by the kernel. The next conversation is rendered."""
    limits = RenderLimits(max_cpu_s=0.1, max_bytes=64 << 20)
    for name, source in RUNAWAYS.items():
        template = ChatTemplate(f"{{% if messages[0].content == 'Hi' %}}{source}{{% endif %}}", limits=limits)
        with pytest.raises(InvalidRequest, match=r"it took more than (0\.1 s or )?64 MiB") as caught:
            template.render(ChatPrompt((message("user", "Hi"),)))
        assert str(caught.value).startswith("messages cannot be rendered by the model's chat template: "), name
        assert template.render(ChatPrompt((message("user", "Hello"),))) == "", name


def test_a_template_that_takes_too_much_for_a_word_stops_the_start() -> None:
    limits = RenderLimits(max_cpu_s=0.1)
    for source, says in {
        RUNAWAYS["loops"]: "of a few words, it took more",
        "{{ 7 ** 99999999 }}": "not compile: it took",
    }.items():
        with pytest.raises(ValueError, match=says):
            ChatTemplate(source, limits=limits)


def test_a_vouched_template_is_bounded_too_where_a_client_made_the_conversation_large() -> None:
    template = ChatTemplate(
        RUNAWAYS["loops"].replace("99999", "messages | length * 200"),
        is_vouched=True,
        limits=RenderLimits(max_cpu_s=0.1),
    )
    assert template.render(ChatPrompt((message("user"),))) == ""
    with pytest.raises(InvalidRequest, match=r"it took more than 0\.1 s"):
        template.render(ChatPrompt((message("user", "a long word " * 10),) * 99))


def test_a_conversation_can_have_any_mappings_that_json_can_express() -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}, {{ m.more }}{% endfor %}"
    assert rendered(source, OrderedDict(message("user", "\ud800", more=OrderedDict(a=1)))) == "user: \ud800, {'a': 1}"
    with pytest.raises(InvalidRequest, match="messages must hold values that JSON can express"):
        rendered(source, message("user", "a", more=object()))


@table(
    ("expression", "expected"),
    [
        ("'a-b'.replace('-', '+') ~ 'aa'.replace('a', 'b', 1)", "a+bba"),
        ("'a' | center(3) ~ 'a'.ljust(2) ~ 'a'.rjust(2) ~ '7'.zfill(2)", " a a  a07"),
        ("'%s-%3d%%' % ('a', 1) ~ '%(a)s' % {'a': 2} ~ '%s' | format(3)", "a-  1%23"),
        ("'{}-{:>3}{a!r}'.format('a', 1, a='b') ~ '{a}'.format_map({'a': 1})", "a-  1'b'1"),
        ("','.join(['a', 'b']) ~ [1, 2] | join(';') ~ messages | join(',', attribute='role')", "a,b1;2user"),
        ("['a', 'b'] | map('upper') | join ~ ','.join(['a', 'b'] | map('upper'))", "ABA,B"),
        ("'a\\nb' | indent(2) ~ 'a b' | wordwrap(1)", "a\n  ba\nb"),
        ("'a b'.split() ~ 'a,b'.split(',', 1) ~ 'a,b'.rsplit(',', maxsplit=1)", "['a', 'b']['a', 'b']['a', 'b']"),
        ("[1, 2, 3] | batch(2, 0) | list ~ [1, 2, 3] | slice(2) | list", "[[1, 2], [3, 0]][[1, 2], [3]]"),
        ("(('<' | safe) + '<') ~ ('%s' | safe) % '<'", "<&lt;&lt;"),
        ("'é'.encode().decode() ~ 'a\\tb'.expandtabs(2) ~ 'ab'.title()", "éa bAb"),
        ("[[1], [2]] | sum(start=[]) ~ 1.25 | round(1) ~ {'a': [1]}", "[1, 2]1.2{'a': [1]}"),
        ("nothing ~ none ~ true", "NoneTrue"),
    ],
)
@table("place", ["{{ @ }}", "{% for m in messages %}{{ @ }}{% endfor %}"], ids=["plain", "loop"])
def test_expressions_that_make_values_work_within_the_bounds(place: str, expression: str, expected: str) -> None:
    assert rendered(place.replace("@", expression), message("user")) == expected


@table(
    ("source", "says"),
    [
        ("{% if %}", "default does not compile: line 1"),
        ({"tool_use": "x"}, "named default"),
        ({"a\n": "x"}, r"templates a\\n lack"),
    ],
)
def test_a_template_that_cannot_be_used_stops_the_start(source: str | dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ChatTemplate(source)


def test_templates_are_found_in_every_place_where_models_keep_them(tmp_path: Path) -> None:
    def prompt(directory: Path) -> str | None:
        template = load_chat_template(load_tokenizer(directory))
        return None if template is None else template.render(ChatPrompt((message("user"),)))

    assert prompt(write_model_dir(tmp_path, byte_level())) is None
    named = [{"name": "default", "template": "listed {{ eos_token }}"}, {"name": "tool_use", "template": "x"}]
    config = {"eos_token": {"content": "</s>"}}
    assert prompt(write_model_dir(tmp_path, byte_level(), tokenizer_config=config | {"chat_template": named})) == (
        "listed </s>"
    )
    config["chat_template"] = "in the config {{ eos_token }}"  # type: ignore[assignment]
    assert prompt(write_model_dir(tmp_path, byte_level(), tokenizer_config=config)) == "in the config </s>"
    assert prompt(write_model_dir(tmp_path, byte_level(), chat_template={"chat_template": "of a processor"})) == (
        "of a processor"
    )
    config["chat_template"] = {"default": "by name", "rag": "x"}
    assert prompt(write_model_dir(tmp_path, byte_level(), tokenizer_config=config, chat_template={})) == "by name"
    (tmp_path / "chat_template.jinja").write_text("its own file", encoding="utf-8")
    assert prompt(tmp_path) == "its own file"
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("with {{ tools | length }}", encoding="utf-8")
    template = load_chat_template(load_tokenizer(tmp_path))
    assert template is not None
    assert template.render(ChatPrompt((message("user"),), tools=({},))) == "with 1"
    assert prompt(tmp_path) == "its own file"
