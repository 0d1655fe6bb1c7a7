"""Translates a schema's regular expressions from ECMAScript's notation into the compiler's, which checks the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COUNT = re.compile(r"\{\d+(?:,\d*)?\}")
_SURROGATES = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_BRACED = re.compile(r"\\[uxpP]\{[^{}]*\}")
_FLAGS = re.compile(r"\(\?[a-zA-Z-]+\)")
_HEAD = re.compile(r"\((?:\?(?:P?<\w+>|[a-zA-Z-]*:))?")
_LOOKS = ("(?=", "(?!", "(?<=", "(?<!")
_SET_OPERATORS = ("&&", "--", "~~")  # the compiler's own, in a class

ANCHOR_INSIDE = "an anchor inside a pattern cannot be followed"


class NotRegularError(ValueError):
    """A part of a regular expression that the compiler cannot follow."""


@dataclass(slots=True)
class _Branch:
    """The part of an alternative read so far. `begins`: nothing precedes its group; `ends`: an anchor ends it."""

    begins: bool
    is_begun: bool = False
    ends: bool = False
    other_ends: bool = False  # an alternative before it in the group ends so


def translated(pattern: str) -> str:
    """Raises: NotRegularError."""
    return _Translation(pattern).text()


class _Translation:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._branches = [_Branch(begins=True)]

    def text(self) -> str:
        parts = []
        while self._position < len(self._pattern):
            parts.append(self._part())
        return "".join(parts)

    def _part(self) -> str:
        character = self._pattern[self._position]
        match character:
            case "\\":
                return self._escape()
            case "[":
                self._atom()
                return self._class()
            case "(":
                return self._open()
            case ")":
                self._close()
            case "|":
                self._next_branch()
            case "^":
                self._begin_anchor()
            case "$":
                self._end_anchor()
            case "*" | "+" | "?":
                self._repeat()
            case "{":
                return self._count()
            case "}":
                self._atom()
                return self._take(1, "\\}")
            case _:
                self._atom()
        return self._take(1)

    def _take(self, size: int, text: str | None = None) -> str:
        taken = self._pattern[self._position : self._position + size]
        self._position += size
        return taken if text is None else text

    def _escape(self) -> str:
        kind = self._pattern[self._position + 1 : self._position + 2]
        if kind in ("b", "B"):
            raise NotRegularError("a word boundary cannot be followed")
        if kind == "k" or (kind.isdigit() and kind != "0"):
            raise NotRegularError("a back reference cannot be followed")
        if kind == "A":
            self._begin_anchor()
            return self._take(2, "^")
        if kind in ("z", "Z"):
            self._end_anchor()
            return self._take(2, "$")
        self._atom()
        return self._escaped_character()

    def _escaped_character(self) -> str:
        kind = self._pattern[self._position + 1 : self._position + 2]
        letter = self._pattern[self._position + 2 : self._position + 3]
        if kind == "c" and letter.isascii() and letter.isalpha():
            return self._take(3, f"\\x{ord(letter) % 32:02x}")
        if kind == "0":
            return self._take(2, r"\x00")
        if pair := _SURROGATES.match(self._pattern, self._position):
            return self._take(len(pair[0]), _one_character(pair))
        braced = _BRACED.match(self._pattern, self._position)
        return self._take(2 if braced is None else len(braced[0]))

    def _class(self) -> str:
        parts = [self._take(1)]
        if self._pattern.startswith("^", self._position):
            parts.append(self._take(1))
        if self._pattern.startswith("]", self._position):
            parts.append(self._take(1))
        while self._position < len(self._pattern):
            rest = self._pattern[self._position : self._position + 2]
            if rest[0] == "]":
                parts.append(self._take(1))
                break
            if rest == r"\b":
                parts.append(self._take(2, r"\x08"))
            elif rest[0] == "\\":
                parts.append(self._escaped_character())
            elif rest[0] == "[" and rest != "[:":
                parts.append(self._take(1, r"\["))
            elif rest in _SET_OPERATORS:
                parts.append(self._take(2, f"{rest[0]}\\{rest[1]}"))
            else:
                parts.append(self._take(1))
        return "".join(parts)

    def _open(self) -> str:
        rest = self._pattern[self._position : self._position + 4]
        if rest.startswith(_LOOKS):
            raise NotRegularError("look-ahead and look-behind cannot be followed")
        if rest.startswith("(?P="):
            raise NotRegularError("a back reference cannot be followed")
        if rest.startswith(("(?>", "(?(", "(?#")):
            raise NotRegularError(f"a group that begins with {rest[:3]} cannot be followed")
        if flags := _FLAGS.match(self._pattern, self._position):
            return self._take(len(flags[0]))
        outer = self._branches[-1]
        begins = outer.begins and not outer.is_begun
        self._atom()
        self._branches.append(_Branch(begins))
        head = _HEAD.match(self._pattern, self._position)
        assert head is not None  # it begins with the bracket
        return self._take(len(head[0]))

    def _close(self) -> None:
        if len(self._branches) > 1:  # else the compiler says what is wrong
            inner = self._branches.pop()
            self._branches[-1].ends = inner.ends or inner.other_ends

    def _next_branch(self) -> None:
        old = self._branches[-1]
        self._branches[-1] = _Branch(old.begins, other_ends=old.ends or old.other_ends)

    def _begin_anchor(self) -> None:
        branch = self._branches[-1]
        if not branch.begins or branch.is_begun:
            raise NotRegularError(ANCHOR_INSIDE)

    def _end_anchor(self) -> None:
        self._branches[-1].is_begun = True
        self._branches[-1].ends = True

    def _atom(self) -> None:
        """Note that a part which matches text comes next."""
        branch = self._branches[-1]
        if branch.ends:
            raise NotRegularError(ANCHOR_INSIDE)
        branch.is_begun = True

    def _repeat(self) -> None:
        if self._branches[-1].ends:
            raise NotRegularError(ANCHOR_INSIDE)

    def _count(self) -> str:
        found = _COUNT.match(self._pattern, self._position)
        if found is None:
            self._atom()
            return self._take(1, "\\{")
        self._repeat()
        return self._take(len(found[0]))


def _one_character(pair: re.Match[str]) -> str:
    """The character beyond the first 65,536 that two halves stand for."""
    code = 0x10000 + ((int(pair[1], 16) - 0xD800) << 10) + (int(pair[2], 16) - 0xDC00)
    return f"\\u{{{code:x}}}"
