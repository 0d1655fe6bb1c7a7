"""Makes a conversation fit the context. Source: OpenAI API reference, responses, truncation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.errors import CapacityError
from dragoman.server.generation.text_service import TextService
from dragoman.types import ChatPrompt

Message = Mapping[str, Any]

# Of the context, for an input that was too long, where the client does not say how long the answer may be.
_KEPT_SHARE = 0.75


async def fitted(prompt: ChatPrompt, max_tokens: int | None, service: TextService) -> ChatPrompt:
    """The conversation without its oldest messages, until it fits with room for `max_tokens`. Raises: InvalidRequest.

    Instructions, the last message of the user's and what came last stay, even if they do not fit.
    """
    context = service.max_model_len
    if await _fits(prompt, context - (max_tokens or 1), service):
        return prompt
    room = context - max_tokens if max_tokens is not None else int(context * _KEPT_SHARE)
    shorter = list(_shortened(prompt.messages))
    low, high = 0, len(shorter) - 1  # the first that fits is between them, or it is the last whatever its size
    while low < high:
        middle = (low + high) // 2
        if await _fits(msgspec.structs.replace(prompt, messages=shorter[middle]), room, service):
            high = middle
        else:
            low = middle + 1
    return msgspec.structs.replace(prompt, messages=shorter[low]) if shorter else prompt


async def _fits(prompt: ChatPrompt, room: int, service: TextService) -> bool:
    try:
        return len((await service.tokenize(prompt)).token_ids) <= room
    except CapacityError:  # more text than is tokenised at all
        return False


def _shortened(messages: Sequence[Message]) -> Iterator[tuple[Message, ...]]:
    """The conversation, ever shorter: first without its oldest turns, then without what followed the last question."""
    num_leading = next((i for i, one in enumerate(messages) if one["role"] != "system"), len(messages))
    leading, rest = tuple(messages[:num_leading]), messages[num_leading:]
    asked = [i for i, one in enumerate(rest) if one["role"] == "user"]
    for begin in asked[1:] if asked and asked[0] == 0 else asked:
        yield (*leading, *rest[begin:])
    if asked:
        question, after = rest[asked[-1]], rest[asked[-1] + 1 :]
        steps = [i for i, one in enumerate(after) if one["role"] != "tool"]
        for begin in steps[1:]:
            yield (*leading, question, *after[begin:])
