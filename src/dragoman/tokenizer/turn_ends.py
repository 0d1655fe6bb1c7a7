"""Finds the tokens with which a chat template ends the assistant's turn, by rendering two small conversations.

Some models' files name only the end of a text, not of a turn (<|im_end|>, <end_of_turn>).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from dragoman.errors import ServerError
from dragoman.tokenizer.base import Tokenizer
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import ChatPrompt

_WORDS = "dragoman-turn-end"
_CONVERSATIONS: tuple[tuple[dict[str, Any], ...], ...] = (
    ({"role": "user", "content": "?"}, {"role": "assistant", "content": _WORDS}),
    (
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": _WORDS},
        {"role": "user", "content": "!"},
    ),
)


def turn_end_ids(template: ChatTemplate, tokens: Tokenizer, inside: Collection[int] = ()) -> frozenset[int]:
    """The first control tokens after the assistant's words, at the end and before another turn. `inside`: not these."""
    found = (_first_special(_tail(template, messages), tokens, inside) for messages in _CONVERSATIONS)
    return frozenset(token_id for token_id in found if token_id is not None and token_id != tokens.bos_token_id)


def _tail(template: ChatTemplate, messages: Sequence[dict[str, Any]]) -> str:
    try:
        text = template.render(ChatPrompt(tuple(messages), template_kwargs={"add_generation_prompt": False}))
    except ServerError:
        return ""  # a template may refuse such a conversation
    return text.rpartition(_WORDS)[2] if _WORDS in text else ""


def _first_special(tail: str, tokens: Tokenizer, inside: Collection[int]) -> int | None:
    for token_id in tokens.encode(tail.lstrip(), add_special_tokens=False):
        if token_id in inside or not tokens.token_bytes(token_id).strip():
            continue
        return token_id if tokens.is_special(token_id) else None
    return None
