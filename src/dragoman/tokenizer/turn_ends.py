"""Finds the tokens with which a chat template ends what the assistant says.

Does: render two small conversations and look at what follows the assistant's words. Does not: read files. Called once per
model, by the composition root. Some models' files name the end of a text only, not the token that ends a turn
(<|im_end|>, <end_of_turn>); their answers would go on with turns that nobody asked for.
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
    """The control tokens that come first after the assistant's words, in the last turn of a conversation and before others.

    `inside`: control tokens that may stand at the end of the words and do not end the turn. Empty if the template takes no
    such conversation, or writes no control token there.
    """
    found = (_first_special(_tail(template, messages), tokens, inside) for messages in _CONVERSATIONS)
    return frozenset(token_id for token_id in found if token_id is not None and token_id != tokens.bos_token_id)


def _tail(template: ChatTemplate, messages: Sequence[dict[str, Any]]) -> str:
    """The template's text after the assistant's words, "" if it does not write them."""
    try:
        text = template.render(ChatPrompt(tuple(messages), template_kwargs={"add_generation_prompt": False}))
    except ServerError:
        return ""  # a template may refuse a conversation like this
    return text.rpartition(_WORDS)[2] if _WORDS in text else ""


def _first_special(tail: str, tokens: Tokenizer, inside: Collection[int]) -> int | None:
    for token_id in tokens.encode(tail.lstrip(), add_special_tokens=False):
        if token_id in inside or not tokens.token_bytes(token_id).strip():
            continue
        return token_id if tokens.is_special(token_id) else None
    return None
