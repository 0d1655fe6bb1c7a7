"""Turns the text of upstreams that do not tell their tokens into tokens that write exactly that text.

Does: encode piece by piece, check each, fail rather than change a character; fill gaps where only some tokens are told.
Does not: find the tokens that the upstream's
model chose; nobody can. One instance per engine, used on the event loop.
"""

from __future__ import annotations

from dragoman.errors import EngineFailed, InvalidRequest
from dragoman.tokenizer.base import Tokenizer


class Retokeniser:
    """Text to tokens, for a model's tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def ids(self, text: str) -> list[int]:
        """Tokens whose texts join to `text`, in the middle of other text. Raises: EngineFailed if there are none."""
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
        """The tokens of `text`, where only the last of each character's are told. Raises: EngineFailed if there are none.

        Those that are missing write the bytes before the told ones; most tokenizers have one way to do that. Where they
        do not end with what is told, the text is kept, and not its tokens.
        """
        if len(b"".join(map(self._tokenizer.token_bytes, told))) >= len(text.encode("utf-8", "replace")):
            return told  # all are there; the text of control tokens is not shown
        return self.ids(text)

    def _exact(self, text: str) -> list[int] | None:
        """The tokens, None if they would write something else, or nothing because they are control tokens."""
        tokenizer = self._tokenizer
        ids = tokenizer.encode_continuation(text)
        if any(map(tokenizer.is_special, ids)):
            return None
        return ids if b"".join(map(tokenizer.token_bytes, ids)) == text.encode("utf-8", "replace") else None


def prompt_text(prompt_ids: tuple[int, ...], tokenizer: Tokenizer) -> str:
    """The text of which an upstream makes these tokens; it adds begin-of-sequence itself, as the tokenizer here does.

    Raises: InvalidRequest if there is none.
    """
    for begin in (0, 1):
        text = tokenizer.decode(prompt_ids[begin:], skip_special_tokens=False)
        if tuple(tokenizer.encode(text)) == prompt_ids:
            return text
    raise InvalidRequest(
        "prompt cannot be sent as text, the only form the upstream accepts, because the text would be tokenized differently",
        param="prompt",
    )
