"""Finds tool calls in a model's text as it comes, and leaves the rest as content. Runs on the event loop.

Every character is content or part of a call, however the text is cut. Only white space around calls may go, or come
between two texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dragoman.server.generation.output_parsers.base import first_marker, num_open
from dragoman.server.generation.output_parsers.call_reader import (
    CallReader,
    CallStart,
    JsonCallReader,
    MakeReader,
    Progress,
    Schemas,
)
from dragoman.server.generation.text_until_stop import ParsedText
from dragoman.types import ToolCallDelta


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """The text around calls.

    `starts`: beginnings of calls, "" = any other beginning. `call_closes`: marks after each call; `closes`: after the last
    call that one mark opened. `is_list`: the calls may be an array. `repeats`: `separators` may be missing. `is_bare`: an
    answer may begin with a call of a known tool without a mark. `unopened`: beginnings of such calls anywhere.
    `unseen`: a mark that ends messages and begins one of `opens`; elsewhere it is left out of the content.
    """

    opens: tuple[str, ...] = ()
    starts: tuple[tuple[str, MakeReader], ...] = (("{", JsonCallReader),)
    call_closes: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    is_list: bool = False
    separators: str = ""
    repeats: bool = False
    is_bare: bool = False
    unopened: tuple[str, ...] = ()
    unseen: str = ""


class CallParser:
    """`guaranteed`: the mark after which a grammar guarantees calls, so that incomplete arguments are passed on.

    It is "" for the beginning of the answer, None without a grammar. `only_known`: calls of tools outside `schemas` are
    content. `num_calls` may be set before the first text. `since_call`: the last piece's content after the first call.
    """

    def __init__(
        self,
        syntax: CallSyntax,
        new_id: Callable[[], str],
        schemas: Schemas,
        guaranteed: str | None = None,
        *,
        only_known: bool = False,
    ) -> None:
        self.num_calls = 0
        self.since_call = ""
        self._only_known = only_known
        self._num_before: int | None = None  # pieces of content before the first call, None = there is no call yet
        self._syntax = syntax
        self._new_id = new_id
        self._schemas = schemas
        self._guaranteed = guaranteed
        self._read_on = self._begin if syntax.is_bare else self._outside  # does what it can, and sets the next method
        self._buffer = ""  # not looked at yet, or not decided on
        self._opened = ""  # what was read since the marker: content after all, if no call follows
        self._mark = ""  # before these calls; without one, only a known name makes a call
        self._in_list = False
        self._reader: CallReader | None = None
        self._content: list[str] = []
        self._deltas: list[ToolCallDelta] = []
        self._space: list[str] = []  # white space that is dropped if a call comes next
        self._dropped = ""  # the white space before the last calls
        self._follows_call = False
        self._has_content = False

    def push(self, text: str, *, is_last: bool) -> ParsedText:
        self._buffer += text
        while self._read_on(is_last):
            pass
        if is_last:
            self._content += [] if self._follows_call else self._space
            self._space.clear()
        parsed = ParsedText("".join(self._content), "", tuple(self._deltas))
        if self._num_before is not None:
            self.since_call = "".join(self._content[self._num_before :])
            self._num_before = 0
        self._content, self._deltas = [], []
        return parsed

    # --- states: each does what it can and says whether another one should go on ---------------------------------------

    def _begin(self, is_last: bool) -> bool:
        """The beginning of a text that may be a bare call."""
        start, syntax = self._buffer.lstrip(), self._syntax
        if not is_last and (not start or _may_become(start, syntax.opens)):
            return False
        self._read_on = self._outside
        firsts = [text for text, _ in syntax.starts] if not syntax.is_list else ["["]
        if start.startswith(tuple(firsts)):
            self._open(self._buffer[: len(self._buffer) - len(start)], start, mark="")
        return True

    def _outside(self, is_last: bool) -> bool:
        unopened = self._syntax.unopened
        opens = (*self._syntax.opens, *unopened)
        found = first_marker(self._buffer, opens)
        if found is None:
            size = 0 if is_last else num_open(self._buffer, *opens)
            self._emit(self._buffer[: len(self._buffer) - size])
            self._buffer = self._buffer[len(self._buffer) - size :]
            return False
        position, mark = found
        self._emit(self._buffer[:position])
        if mark in unopened:
            self._open("", self._buffer[position:], mark="")
        else:
            self._open(mark, self._buffer[position + len(mark) :], mark=mark)
        return True

    def _after_opening(self, is_last: bool) -> bool:
        """A call must come now."""
        rest = self._buffer.lstrip()
        if not is_last and (not rest or _may_become(rest, [text for text, _ in self._syntax.starts])):
            return False
        self._opened += self._buffer[: len(self._buffer) - len(rest)]
        self._buffer = rest
        if rest.startswith("[") and self._syntax.is_list and not self._in_list:
            self._in_list = True
            self._opened += "["
            self._buffer = rest[1:]
            return True
        reader = self._made_reader(rest)
        if reader is None:
            self._give_up(rest)
        else:
            self._reader, self._read_on = reader, self._inside
        return True

    def _inside(self, is_last: bool) -> bool:
        reader = self._reader
        assert reader is not None  # made when this state was entered
        rest = reader.feed(self._buffer)
        self._take(reader)
        if reader.progress is Progress.OPEN and not is_last:
            self._buffer = ""
            return False
        if reader.progress is Progress.DONE:
            self.num_calls += 1
            self._buffer, self._opened, self._read_on = rest, "", self._between
        elif reader.is_begun:  # cut off in the middle, after parts of the call were given on
            self.num_calls += 1
            self._buffer, self._opened, self._read_on = rest, "", self._outside
        else:
            self._give_up(reader.raw + rest)
        return True

    def _between(self, is_last: bool) -> bool:
        """After a call."""
        rest, syntax = self._buffer.lstrip(), self._syntax
        starts = [text for text, _ in syntax.starts if text] if syntax.repeats else []
        closes = () if self._in_list else syntax.closes
        if not rest or _may_become(rest, (*syntax.call_closes, *closes, *starts)):
            self._buffer = "" if is_last else self._buffer  # an answer cut off within the closing mark lost nothing
            return False
        if close := _beginning(rest, syntax.call_closes):
            self._buffer = rest[len(close) :]
        elif self._in_list and rest[0] == "]":
            self._buffer, self._in_list, self._read_on = rest[1:], False, self._closing
        elif rest[0] in syntax.separators and (self._in_list or not syntax.is_list):
            self._open(rest[0], rest[1:], mark=self._mark)
        elif _beginning(rest, closes):
            self._read_on = self._closing
        elif _beginning(rest, starts) or (syntax.repeats and self._made_reader(rest) is not None):
            self._open("", rest, mark=self._mark)
        else:
            self._in_list, self._read_on = False, self._outside
        return True

    def _closing(self, is_last: bool) -> bool:
        """After the last call of a block."""
        rest = self._buffer.lstrip()
        if _may_become(rest, self._syntax.closes):
            self._buffer = "" if is_last else self._buffer
            return False
        self._buffer = rest[len(_beginning(rest, self._syntax.closes)) :] if rest else self._buffer
        self._read_on = self._outside
        return True

    # --- their tools --------------------------------------------------------------------------------------------------

    def _made_reader(self, rest: str) -> CallReader | None:
        make = next((made for text, made in self._syntax.starts if rest.startswith(text)), None)
        if make is None or not rest:
            return None
        guaranteed = self._guaranteed
        streams = self._mark == guaranteed or (bool(guaranteed) and self._mark.startswith(str(guaranteed)))
        needs_known_name = self._only_known or not self._mark
        return make(CallStart(self.num_calls, self._new_id(), streams, self._schemas, needs_known_name))

    def _open(self, opened: str, rest: str, *, mark: str) -> None:
        self._opened, self._buffer, self._mark, self._read_on = opened, rest, mark, self._after_opening

    def _give_up(self, rest: str) -> None:
        if not self._opened:
            self._opened = _beginning(rest, self._syntax.unopened)
            rest = rest[len(self._opened) :]
        self._emit(self._opened)
        self._opened, self._buffer, self._in_list, self._reader = "", rest, False, None
        self._read_on = self._outside

    def _take(self, reader: CallReader) -> None:
        deltas = reader.deltas()
        if deltas:
            self._deltas += deltas
            if not self._follows_call:
                self._dropped = "".join(self._space)
            self._num_before = len(self._content) if self._num_before is None else self._num_before
            self._space.clear()
            self._follows_call = True

    def _emit(self, text: str) -> None:
        """Content, but for white space that touches a call; texts before and after one are kept apart by some of it."""
        text = text.replace(self._syntax.unseen, "") if self._syntax.unseen else text
        shown = text.rstrip()
        if shown:
            whole = "".join([*self._space, shown])
            if self._follows_call:
                after = whole.lstrip()
                gap = self._dropped or whole[: len(whole) - len(after)] or "\n"
                whole = gap + after if self._has_content else after
            self._content.append(whole)
            self._has_content = True
            self._space.clear()
            self._follows_call = False
        self._space.append(text[len(shown) :])


def _beginning(text: str, marks: Sequence[str]) -> str:
    return next((mark for mark in marks if mark and text.startswith(mark)), "")


def _may_become(text: str, marks: Sequence[str]) -> bool:
    return any(mark.startswith(text) and mark != text for mark in marks)
