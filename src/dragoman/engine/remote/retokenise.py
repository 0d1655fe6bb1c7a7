"""Turns text of upstreams that send no token ids into ids that decode to exactly that text. On the event loop.

The tokens that the upstream's model chose cannot be found.
"""

from __future__ import annotations

from dragoman.errors import EngineFailed, InvalidRequest
from dragoman.tokenizer.base import Tokenizer


class Retokeniser:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def ids(self, text: str) -> list[int]:
        """Token ids that decode to `text`, in the middle of other text. Raises: EngineFailed if there are none."""
        ids = self._exact(text)
        if ids is None:
            ids = []
            for character in text:
                found = self._exact(character)
                if found is None:
                    problem = f"the upstream's text holds {character!r}, for which the tokenizer here has no tokens"
                    raise EngineFailed(problem)
                ids += found
        return ids

    def mended(self, text: str, told: list[int]) -> list[int]:
        """The token ids of `text`, given only the last id of each character. Raises: EngineFailed if there are none.

        If the result does not end with the given ids, the text counts, not the ids.
        """
        if len(b"".join(map(self._tokenizer.token_bytes, told))) >= len(text.encode("utf-8", "replace")):
            return told  # complete; control tokens show no text
        return self.ids(text)

    def _exact(self, text: str) -> list[int] | None:
        """The token ids, None if they would decode to another text, or are control tokens."""
        tokenizer = self._tokenizer
        ids = tokenizer.encode_continuation(text)
        if any(map(tokenizer.is_special, ids)):
            return None
        return ids if b"".join(map(tokenizer.token_bytes, ids)) == text.encode("utf-8", "replace") else None


def prompt_text(prompt_ids: tuple[int, ...], tokenizer: Tokenizer) -> str:
    """The text that an upstream encodes to these ids; it adds begin-of-sequence itself. Raises: InvalidRequest."""
    for begin in (0, 1):
        text = tokenizer.decode(prompt_ids[begin:], skip_special_tokens=False)
        if tuple(tokenizer.encode(text)) == prompt_ids:
            return text
    raise InvalidRequest(
        "prompt cannot be sent as text, the only form the upstream accepts, because the text would be tokenized differently",
        param="prompt",
    )
