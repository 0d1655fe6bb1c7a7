"""Where chat templates put pictures: those that take parts, those that take strings, texts that say it themselves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import InvalidRequest, TextOnly
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import ChatPrompt
from tests.support.tables import table
from tests.support.tiers import everything
from tests.tokenizer.conversations import FOLDER, SPECIAL_TOKENS

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}

# As the families write them: strings and parts, parts only, images first.
QWEN_VL = """
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.content is string %}{{ m.content }}{% else %}
{%- for part in m.content %}
{%- if part.type == 'image' or 'image' in part or 'image_url' in part %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
SMOLVLM = """
{%- for m in messages %}{{ m.role | capitalize }}{{ ':' if m.content[0]['type'] == 'image' else ': ' }}
{%- for part in m.content %}{% if part['type'] == 'text' %}{{ part['text'] }}
{%- elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}
{%- endfor %}{{ '<end_of_utterance>\\n' }}{% endfor %}
"""
LLAVA = """
{%- for m in messages %}{{ m.role.upper() + ': ' }}
{%- for part in m.content | selectattr('type', 'equalto', 'image') %}{{ '<image>\\n' }}{% endfor %}
{%- for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text + ' ' }}{% endfor %}{% endfor %}
"""
INTERNVL = """
{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['content'] is string %}{{ m['content'] }}{% else %}
{%- for part in m['content'] %}{% if part['type'] == 'image' %}{{ '<image>\\n' }}
{%- elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
INTERNVL_STRINGS = """
{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
STRINGS = "{% for m in messages %}[{{ m.role }}]{{ m.content + '' }}{% endfor %}"
GEMMA3 = Path(FOLDER / "gemma3.jinja").read_text(encoding="utf-8")

QWEN_MARKER = "<|vision_start|><|image_pad|><|vision_end|>"


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def seeing(source: str, marker: str) -> ChatTemplate:
    return ChatTemplate(source, special_tokens=SPECIAL_TOKENS).with_pictures(marker)


def rendered(source: str, marker: str, *contents: Any, **options: Any) -> str:
    """A conversation of these contents, the user's and the assistant's in turn."""
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": one} for i, one in enumerate(contents)]
    return seeing(source, marker).render(ChatPrompt(tuple(messages), **options))


@table(
    ("source", "marker", "expected"),
    [
        (
            QWEN_VL,
            QWEN_MARKER,
            f"<|im_start|>user\na\nb{QWEN_MARKER}c{QWEN_MARKER}{QWEN_MARKER}<|im_end|>\n<|im_start|>assistant\n",
        ),
        (SMOLVLM, "<image>", "User: a\nb<image>c<image><image><end_of_utterance>\n"),
        (LLAVA, "<image>", "USER: <image>\n<image>\n<image>\na\nb c "),
        (STRINGS, "<pic>", "[user]<pic>\n<pic>\n<pic>\na\nb\nc"),
    ],
    ids=["qwen", "smolvlm", "llava", "strings"],
)
def test_each_template_gets_pictures_in_the_form_it_understands(source: str, marker: str, expected: str) -> None:
    assert rendered(source, marker, [text("a"), text("b"), IMAGE, text("c"), IMAGE, IMAGE]) == expected


@table(
    "source",
    [INTERNVL, INTERNVL_STRINGS, INTERNVL.replace("<image>", "<IMG_CONTEXT>")],
    ids=["parts", "strings", "other marker"],
)
@table(
    "content", [[IMAGE, IMAGE, text("What?")], [IMAGE, IMAGE, text("<image>\n<image>\nWhat?")]], ids=["parts", "told"]
)
def test_internvl_gets_pictures_on_lines_before_the_text_by_all_templates_that_it_came_with(
    source: str, content: Any
) -> None:
    shown = "<|im_start|>user\n<image>\n<image>\nWhat?<|im_end|>\n<|im_start|>assistant\n"
    assert rendered(source, "<image>", content) == shown


def test_a_familys_own_template_writes_its_marker() -> None:
    shown = rendered(GEMMA3, "<start_of_image>", [IMAGE, text("What is it?")])
    assert "<start_of_turn>user\n<start_of_image>What is it?<end_of_turn>" in shown


@table("source", [QWEN_VL, SMOLVLM, LLAVA, STRINGS], ids=["qwen", "smolvlm", "llava", "strings"])
def test_conversations_without_pictures_are_the_same_for_a_model_that_sees(source: str) -> None:
    prompt = ChatPrompt(
        (
            {"role": "system", "content": "s"},
            {"role": "user", "content": [text("a"), text(f"b {QWEN_MARKER}<image>")]},
            {"role": "assistant", "content": None},
        )
    )
    blind = ChatTemplate(source, special_tokens=SPECIAL_TOKENS)
    assert blind.with_pictures("<image>").render(prompt) == blind.render(prompt)
    assert blind.with_pictures(QWEN_MARKER).render(prompt) == blind.render(prompt)


@table(
    ("content", "expected"),
    [
        ([text("<pic> or <pic>?"), IMAGE, IMAGE], "[user]<pic> or <pic>?"),
        ([text("<pic> or?"), IMAGE, IMAGE], "[user]<pic>\n<pic> or?"),
        ([IMAGE, text("is"), text("<pic>?")], "[user]is\n<pic>?"),
        ([IMAGE], "[user]<pic>"),
    ],
)
def test_markers_in_the_text_are_the_pictures_places_and_others_come_before_it(content: Any, expected: str) -> None:
    assert rendered(STRINGS, "<pic>", content) == expected


def test_markers_in_the_text_work_for_templates_that_take_parts() -> None:
    assert rendered(SMOLVLM, "<image>", [text("x <image> y"), IMAGE]) == "User: x <image> y<end_of_utterance>\n"
    assert QWEN_MARKER + " y<|im_end|>" in rendered(QWEN_VL, QWEN_MARKER, [text(f"{QWEN_MARKER} y"), IMAGE])


@table(
    "contents",
    [
        ([text("<image><image>"), IMAGE],),
        ([text("<image>"), IMAGE], "<image>"),
        ("<image>", "", [IMAGE]),
    ],
)
@table("source", [QWEN_VL, SMOLVLM, LLAVA, STRINGS], ids=["qwen", "smolvlm", "llava", "strings"])
def test_more_markers_than_pictures_are_refused(source: str, contents: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidRequest, match=r"<image>.*got 2") as caught:
        rendered(source, "<image>", *contents)
    assert caught.value.param == "messages"


def test_a_role_that_the_template_does_not_show_cannot_have_pictures() -> None:
    source = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(InvalidRequest, match=r"1 times <image>.*got 0"):
        rendered(source, "<image>", "a", [IMAGE])


@table("source", [QWEN_VL, SMOLVLM, STRINGS], ids=["qwen", "smolvlm", "strings"])
def test_a_final_message_with_pictures_is_continued_after_its_text(source: str) -> None:
    marker = QWEN_MARKER if source == QWEN_VL else "<image>"
    shown = rendered(source, marker, "a", [IMAGE, text("It is")], continue_final_message=True)
    assert shown.endswith("It is")
    shown = rendered(source, marker, "a", [text("It is"), IMAGE], continue_final_message=True)
    assert shown.endswith("It is" if source == STRINGS else marker)


def test_a_template_for_a_model_that_takes_text_only_refuses_the_part() -> None:
    prompt = ChatPrompt(({"role": "user", "content": [text("a"), IMAGE]},))
    with pytest.raises(TextOnly, match=r"messages\[0\].content\[1\] of type image_url is not supported: .* text only"):
        ChatTemplate(QWEN_VL).render(prompt)


# --- markers with numbers ---------------------------------------------------------------------------------------------

NUMBERED = "<|image_{}|>"


def test_numbered_markers_count_the_pictures_of_a_conversation() -> None:
    shown = rendered(STRINGS, NUMBERED, [IMAGE, text("a"), IMAGE], "b", [text("c"), IMAGE])
    assert shown == "[user]<|image_1|>\n<|image_2|>\na[assistant]b[user]<|image_3|>\nc"


def test_a_text_may_name_its_pictures_in_any_order() -> None:
    shown = rendered(STRINGS, NUMBERED, [text("<|image_2|> or <|image_1|>?"), IMAGE, IMAGE, IMAGE])
    assert shown == "[user]<|image_3|>\n<|image_2|> or <|image_1|>?"


def test_without_pictures_numbered_markers_are_text() -> None:
    assert rendered(STRINGS, NUMBERED, "<|image_1|> and <|image_9|>") == "[user]<|image_1|> and <|image_9|>"


@table(
    ("contents", "problem"),
    [
        (([text("<|image_1|><|image_1|>"), IMAGE],), r"content must hold <\|image_1\|> at most 1 times.* got 2"),
        (([text("<|image_2|>"), IMAGE],), r"once <\|image_1\|>, .* got <\|image_1\|>, <\|image_2\|>"),
        (([text("<|image_01|>"), IMAGE],), r"once <\|image_1\|>, .* got <\|image_1\|>, <\|image_01\|>"),
        (([IMAGE, IMAGE], "", "<|image_2|>"), r"once each of <\|image_1\|> to <\|image_2\|>, .* got <\|image_1\|>"),
        (([text(f"<|image_{'9' * 5000}|>"), IMAGE],), r"once <\|image_1\|>, once for each image"),
    ],
    ids=["twice", "no such picture", "another way to write it", "of another message", "huge"],
)
def test_a_numbered_marker_too_many_is_refused(contents: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        rendered(STRINGS, NUMBERED, *contents)


def test_a_conversation_without_messages_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="messages must hold at least one message, got none"):
        rendered(STRINGS, NUMBERED)


@table(
    "contents",
    [[[IMAGE]] * (60_000 if everything() else 15_000), [[text("x" * 1_000_000), *[IMAGE] * 20_000]]],
    ids=["many messages", "many pictures beside a long text"],
)
def test_many_numbered_pictures_take_no_longer_than_their_number(contents: list[Any]) -> None:
    begin = time.process_time()
    shown = rendered(STRINGS, NUMBERED, *contents)
    assert time.process_time() - begin < (5.0 if everything() else 2.5)
    assert shown.count("<|image_") == sum(content.count(IMAGE) for content in contents)


def test_a_template_that_writes_numbered_markers_gets_parts() -> None:
    source = (
        "{% set seen = namespace(n=0) %}{% for m in messages %}{% for part in m.content %}{% if part.type == 'image' %}"
        "{% set seen.n = seen.n + 1 %}<|image_{{ seen.n }}|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
    )
    assert rendered(source, NUMBERED, [text("a"), IMAGE, text("b"), IMAGE]) == "a<|image_1|>b<|image_2|>"
