"""What is asked: tasks of five kinds, each of one or several turns.

Does: name the kinds and hold a task's prompts. Does not: make them (`copier_texts`, `demo_texts`), or ask. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CHAT, SUMMARY, EDIT, JSON, AGENT = "chat", "summary", "edit", "json", "agent"
KINDS = (CHAT, SUMMARY, EDIT, JSON, AGENT)


@dataclass(frozen=True, slots=True)
class Turn:
    """One question. `ids`: the whole prompt as token ids; or else `text`: what is added to the conversation so far.

    `grammar`: what a request's body has besides. `ignores_eos`: the answer is as long as it may be.
    """

    max_tokens: int
    ids: tuple[int, ...] = ()
    text: str = ""
    grammar: dict[str, Any] = field(default_factory=dict)
    ignores_eos: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """A conversation: the prompt of each turn holds the turns and answers before it."""

    kind: str
    turns: tuple[Turn, ...]
