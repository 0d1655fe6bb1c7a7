"""Keeps clients' texts in a conversation from becoming control tokens.

Placeholders replace the texts of control tokens before rendering. The rendered prompt is cut at the control tokens that
the template has written. Pieces with a placeholder get their text back, and a tokenizer without control tokens encodes
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from dragoman.errors import InvalidRequest
from dragoman.tokenizer.hf_tokenizer import HfTokenizer, words_pattern
from dragoman.types import ChatPrompt

_PRIVATE_USE = range(0xE001, 0xF8FF)  # 0xE000 marks the end of a continued message
_AS_SENT = frozenset(("image_url",))  # pictures, which no template writes


class PlainContent:
    def __init__(self, tokenizer: HfTokenizer) -> None:
        self.tokenizer = tokenizer
        controls = tokenizer.control_tokens
        self._controls = re.compile(words_pattern(controls)) if controls else None

    def hidden(self, prompt: ChatPrompt) -> tuple[ChatPrompt, HiddenControls | None]:
        """The conversation with placeholders, and their meaning; None = it has no text of a control token."""
        if self._controls is None:
            return prompt, None
        sent = (prompt.messages, prompt.tools, prompt.template_kwargs)
        texts = _texts_of(sent)
        if not any(self._controls.search(text) for text in texts):
            return prompt, None
        used = set().union(*texts)
        mark = next((chr(code) for code in _PRIVATE_USE if chr(code) not in used), None)
        if mark is None:
            raise InvalidRequest(
                "messages must leave one character of Unicode's private use area unused", param="messages"
            )
        hidden = HiddenControls(self, self._controls, mark)
        messages, tools, kwargs = hidden.put(sent)
        put = msgspec.structs.replace(prompt, messages=tuple(messages), tools=tuple(tools), template_kwargs=kwargs)
        return put, hidden

    @cached_property
    def begins_anew(self) -> bool:
        """True if text after a control token is encoded as at the beginning of a prompt, with an implied blank."""
        control = next(iter(self.tokenizer.control_tokens))
        token_ids = self.tokenizer.encode(control, add_special_tokens=False)
        after = self.tokenizer.encode(f"{control}a", add_special_tokens=False)
        return after == token_ids + self.tokenizer.encode("a", add_special_tokens=False)


class HiddenControls:
    """The placeholders of one conversation: a number between two marks."""

    def __init__(self, plain: PlainContent, controls: re.Pattern[str], mark: str) -> None:
        self._plain = plain
        self._controls = controls
        self._mark = mark
        self._numbers: dict[str, int] = {}
        self._placeholder = re.compile(f"{mark}([0-9]+){mark}")

    def put(self, value: Any) -> Any:
        match value:
            case str():
                return self._controls.sub(self._placeholder_of, value)
            case Mapping():
                return {self.put(key): entry if key in _AS_SENT else self.put(entry) for key, entry in value.items()}
            case Sequence() if not isinstance(value, bytes):
                return [self.put(entry) for entry in value]
            case _:
                return value

    def shown(self, text: str) -> str:
        """A rendered text with the client's words. Raises: InvalidRequest if the template has changed a placeholder."""
        texts = list(self._numbers)
        found = self._placeholder.sub(lambda match: texts[int(match[1])] if int(match[1]) < len(texts) else "", text)
        if self._mark in found:
            raise InvalidRequest(
                f"messages must not hold {', '.join(texts[:3])}: this model's chat template cannot distinguish them "
                "from control tokens",
                param="messages",
            )
        return found

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        tokenizer, ids, begin, ordinary = self._plain.tokenizer, list[int](), 0, 0
        pieces = self._pieces(text)
        for piece, before, after in zip(pieces, ("", *pieces), (*pieces[1:], ""), strict=False):
            end = begin + len(piece)
            if self._mark in piece:
                if begin > ordinary:
                    has_specials = add_special_tokens and not ordinary
                    ids += tokenizer.encode(text[ordinary:begin], add_special_tokens=has_specials)
                said = self._stripped(self.shown(piece), before, after)
                ids += tokenizer.encode_plain(said, is_first=begin == 0 or self._plain.begins_anew)
                ordinary = end
            begin = end
        if ordinary < len(text) or not text:
            ids += tokenizer.encode(text[ordinary:], add_special_tokens=add_special_tokens and not ordinary)
        return ids

    def _stripped(self, text: str, before: str, after: str) -> str:
        """A piece without the white space that the control tokens beside it absorb."""
        tokens = self._plain.tokenizer.control_tokens
        text = text.lstrip() if before in tokens and tokens[before].rstrip else text
        return text.rstrip() if after in tokens and tokens[after].lstrip else text

    def _pieces(self, text: str) -> list[str]:
        pieces, begin = [], 0
        for match in self._controls.finditer(text):
            pieces += [text[begin : match.start()], match[0]]
            begin = match.end()
        return [piece for piece in (*pieces, text[begin:]) if piece]

    def _placeholder_of(self, match: re.Match[str]) -> str:
        number = self._numbers.setdefault(match[0], len(self._numbers))
        return f"{self._mark}{number}{self._mark}"


def _texts_of(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case Mapping():
            kept = [text for key, entry in value.items() if key not in _AS_SENT for text in _texts_of(entry)]
            return [*(key for key in value if isinstance(key, str)), *kept]
        case Sequence() if not isinstance(value, bytes):
            return [text for entry in value for text in _texts_of(entry)]
        case _:
            return []
