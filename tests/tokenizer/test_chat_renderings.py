"""Templates of the families render as transformers renders them; what it refuses is refused."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from dragoman.errors import InvalidRequest, UnsupportedFeature
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import ChatPrompt
from tests.support.tables import table
from tests.support.tiers import everything
from tests.tokenizer.conversations import CONVERSATIONS, FOLDER, NOW, RENDERINGS, SPECIAL_TOKENS

FAMILIES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
RECORDED: dict[str, dict[str, str | None]] = json.loads(RENDERINGS.read_text(encoding="utf-8"))


@cache
def source(family: str) -> str:
    """The family's template."""
    return Path(FOLDER / f"{family}.jinja").read_text(encoding="utf-8")


@cache
def template_of(family: str, is_vouched: bool) -> ChatTemplate:
    """Made once: it must be the same for every conversation. Vouched for, it renders in this process."""
    return ChatTemplate(source(family), special_tokens=SPECIAL_TOKENS, now=lambda: NOW, is_vouched=is_vouched)


# How each conversation is rendered: here, in another process, or both.
WAYS = {name: (True, False) if everything() or name in ("question", "tools") else (True,) for name in CONVERSATIONS}


@table(("name", "is_vouched"), [(name, way) for name, ways in WAYS.items() for way in ways])
@table("family", FAMILIES)
def test_a_conversation_becomes_the_prompt_that_transformers_makes_of_it(
    family: str, name: str, is_vouched: bool
) -> None:
    conversation, expected = CONVERSATIONS[name], RECORDED[family][name]
    template = template_of(family, is_vouched)
    kwargs = {**conversation.kwargs, **({} if conversation.prompts else {"add_generation_prompt": False})}
    prompt = ChatPrompt(conversation.as_sent(), conversation.tools, conversation.continues, kwargs)
    if conversation.tools and "tools" not in source(family):
        text = template.render(prompt)  # transformers leaves the tools out without a word; here messages describe them
        assert all(tool["function"]["name"] in text for tool in conversation.tools)
        with pytest.raises(UnsupportedFeature):
            template.without_told_tools().render(prompt)
        return
    if expected is None and any(message["role"] == "system" for message in prompt.messages):
        text = template.render(prompt)  # transformers refuses it; here it is a part of the user's turn
        assert all(message["content"].strip() in text for message in prompt.messages[:2])
        return
    if expected is None:
        with pytest.raises(InvalidRequest):
            template.render(prompt)
        return
    assert template.render(prompt) == expected


def test_every_template_is_recorded() -> None:
    assert sorted(RECORDED) == FAMILIES
    assert all(list(recorded) == list(CONVERSATIONS) for recorded in RECORDED.values())
    assert all(any(recorded.values()) for recorded in RECORDED.values())
