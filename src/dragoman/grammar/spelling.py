"""Spells a text that a grammar forces in the tokenizer's usual tokens. One per compiler, used by its maskers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

Encode = Callable[[str], Sequence[int]]

_CONTROL = re.compile(rb"\xff\[(\d+)\]")  # the matcher's form of a control token among bytes
_MAX_TOKEN_BYTES = 16  # of most tokens; texts are cut to this length per wanted token
_MAX_CACHED = 2_048  # forced texts, which repeat with each answer to a schema


class Spelling:
    """Spells forced bytes. `encode` gives the tokens of a text after other text."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._tokens_of = lru_cache(_MAX_CACHED)(self._spell)

    def tokens(self, forced: bytes, limit: int) -> tuple[tuple[int, ...], bool]:
        """The first `limit` tokens, and True if there are no more."""
        most = limit * _MAX_TOKEN_BYTES
        token_ids = self._tokens_of(forced[:most])
        if len(forced) > most:  # the last ones may have been cut in two
            token_ids = token_ids[:-2]
        return token_ids[:limit], len(forced) <= most and len(token_ids) <= limit

    def _spell(self, forced: bytes) -> tuple[int, ...]:
        token_ids: list[int] = []
        parts = _CONTROL.split(forced)
        for text, control in zip(parts[::2], [*parts[1::2], None], strict=True):
            known = _valid_front(text)
            token_ids += self._encode(known.decode()) if known else ()
            if len(known) < len(text):
                break
            if control is not None:
                token_ids.append(int(control))
        return tuple(token_ids)


def _valid_front(text: bytes) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start]
    return text
