"""Finds tool calls in a model's text as it comes, and leaves the rest as content.

Does: one state machine for every format whose calls are JSON objects; what it looks for is a `CallSyntax`.
Does not: read the objects (`json_call`) or know formats by name. One parser per sequence, on the event loop.
Invariant: apart from white space around calls, every character is content or part of a call, however the text is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from dragoman.server.generation.output_parsers.base import split_at
from dragoman.server.generation.output_parsers.json_call import JsonCallReader, Progress
from dragoman.server.generation.sequence_text import ParsedText
from dragoman.types import ToolCallDelta


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """What stands around the JSON objects.

    `opens`: the text before calls, "" = there is none. `closes`: after each call. `is_list`: the calls are an array.
    `separators`: characters that may stand between calls. `is_bare`: an answer that begins with an object may be a call
    even without `opens`, if it names a known tool.
    """

    opens: str = ""
    closes: str = ""
    is_list: bool = False
    separators: str = ""
    is_bare: bool = False


class _State(Enum):
    START = 1  # of a text that may be a bare call
    OUTSIDE = 2
    OPENED = 3  # a call must come now
    INSIDE = 4
    BETWEEN = 5  # after a call


class CallParser:
    """One sequence's tool calls. `streams`: a grammar guarantees the calls, so their arguments need not be complete."""

    def __init__(
        self, syntax: CallSyntax, new_id: Callable[[], str], known_names: Collection[str], *, streams: bool
    ) -> None:
        self._syntax = syntax
        self._new_id = new_id
        self._known_names = known_names
        self._streams = streams
        self._state = _State.START if syntax.is_bare else _State.OUTSIDE
        self._buffer = ""  # not looked at yet, or not decided on
        self._opened = ""  # what was read since the marker: content after all, if no call follows
        self._is_marked = False  # the marker stood there: whatever follows was meant as a call
        self._in_list = False
        self._reader: JsonCallReader | None = None
        self._num_calls = 0
        self._content: list[str] = []
        self._deltas: list[ToolCallDelta] = []
        self._space = ""  # white space that is dropped if a call comes next
        self._follows_call = False

    def push(self, text: str, *, is_last: bool) -> ParsedText:
        """What this piece of text adds; nothing is held back after the last."""
        self._buffer += text
        steps = {
            _State.START: self._start,
            _State.OUTSIDE: self._outside,
            _State.OPENED: self._after_opening,
            _State.INSIDE: self._inside,
            _State.BETWEEN: self._between,
        }
        while steps[self._state](is_last):
            pass
        if is_last:
            self._content.append("" if self._follows_call else self._space)
            self._space = ""
        parsed = ParsedText("".join(self._content), "", tuple(self._deltas))
        self._content, self._deltas = [], []
        return parsed

    # --- states: each does what it can and says whether another one should go on ---------------------------------------

    def _start(self, is_last: bool) -> bool:
        start, opens = self._buffer.lstrip(), self._syntax.opens
        if not is_last and (not start or (opens.startswith(start) and start != opens)):
            return False
        self._state = _State.OUTSIDE
        if start.startswith("{"):
            self._open(self._buffer[: len(self._buffer) - len(start)], start, is_marked=False)
        return True

    def _outside(self, is_last: bool) -> bool:
        opens = self._syntax.opens
        if not opens:
            self._emit(self._buffer)
            self._buffer = ""
            return False
        before, after, self._buffer = split_at(self._buffer, opens, is_last=is_last)
        self._emit(before)
        if after is None:
            return False
        self._open(opens, after, is_marked=True)
        return True

    def _after_opening(self, is_last: bool) -> bool:
        rest = self._buffer.lstrip()
        if not rest and not is_last:
            return False
        if rest.startswith("[") and self._syntax.is_list and not self._in_list:
            self._in_list = True
            self._opened += self._buffer[: len(self._buffer) - len(rest) + 1]
            self._buffer = rest[1:]
        elif rest.startswith("{"):
            self._opened += self._buffer[: len(self._buffer) - len(rest)]
            self._buffer = rest
            names = None if self._is_marked else self._known_names
            self._reader = JsonCallReader(
                index=self._num_calls, call_id=self._new_id(), streams=self._streams, known_names=names
            )
            self._state = _State.INSIDE
        else:
            self._give_up(self._buffer)
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
            self._num_calls += 1
            self._buffer, self._opened, self._state = rest, "", _State.BETWEEN
        elif reader.is_begun:  # cut off in the middle, after parts of the call were given on
            self._num_calls += 1
            self._buffer, self._opened, self._state = rest, "", _State.OUTSIDE
        else:
            self._give_up(reader.raw + rest)
        return True

    def _between(self, is_last: bool) -> bool:
        rest, closes = self._buffer.lstrip(), self._syntax.closes
        if not rest or (closes and closes.startswith(rest) and rest != closes):
            self._buffer = "" if is_last else self._buffer  # an answer cut off within the closing mark lost nothing
            return False
        if closes and rest.startswith(closes):
            self._buffer, self._state = rest[len(closes) :], _State.OUTSIDE
        elif rest[0] == "]" and self._in_list:
            self._buffer, self._in_list, self._state = rest[1:], False, _State.OUTSIDE
        elif rest[0] in self._syntax.separators and (self._in_list or not self._syntax.is_list):
            self._open(rest[0], rest[1:], is_marked=self._is_marked)
        else:
            self._in_list, self._state = False, _State.OUTSIDE
        return True

    # --- their tools --------------------------------------------------------------------------------------------------

    def _open(self, opened: str, rest: str, *, is_marked: bool) -> None:
        self._opened, self._buffer, self._is_marked, self._state = opened, rest, is_marked, _State.OPENED

    def _give_up(self, rest: str) -> None:
        """What looked like a call is none: its opening is content, and the rest is looked at anew."""
        self._emit(self._opened)
        self._opened, self._buffer, self._in_list, self._reader = "", rest, False, None
        self._state = _State.OUTSIDE

    def _take(self, reader: JsonCallReader) -> None:
        deltas = reader.deltas()
        if deltas:
            self._deltas += deltas
            self._space, self._follows_call = "", True

    def _emit(self, text: str) -> None:
        """Content, but for white space that touches a call."""
        text = self._space + text
        if self._follows_call:
            text = text.lstrip()
        shown = text.rstrip()
        if shown:
            self._content.append(shown)
            self._follows_call = False
        self._space = text[len(shown) :]
