"""Writes the output of `chat` and `complete`, with a model's control sequences escaped. Used on the main thread."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TextIO

# Characters that control a terminal, except line ends and tabs.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"
_WHOLE_LINE = "\r\x1b[2K"  # go to the line's beginning and clear it


def tame(text: str) -> str:
    """The text with control characters escaped as in Python."""
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text.replace("\r\n", "\n"))


class Screen:
    """The output of an answer. On a terminal reasoning is dim; elsewhere it is left out."""

    def __init__(self, stream: TextIO, errors: TextIO, environ: Mapping[str, str]) -> None:
        self._stream = stream
        self._errors = errors
        self.is_terminal = stream.isatty()
        self._has_styles = self.is_terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self._is_dim = False
        self._is_at_start = True  # of a line
        self._has_status = False

    def status(self, text: str) -> None:
        """Write a line that the next output replaces; only on terminals."""
        if self._has_styles and self._is_at_start:
            self._stream.write(f"{_WHOLE_LINE}{_DIM}{tame(text)}{_PLAIN}")
            self._stream.flush()
            self._has_status = True

    def content(self, text: str) -> None:
        if self._is_dim and text:
            self._undim()
        self._write(text)

    def reasoning(self, text: str) -> None:
        if not self.is_terminal or not text:
            return
        if not self._is_dim:
            self._is_dim = True
            self._raw(_DIM)
        self._write(text)

    def tool_call(self, name: str, arguments: str) -> None:
        self.end_status()
        self.end_line()
        style, end = (_BOLD, _PLAIN) if self._has_styles else ("", "")
        self._stream.write(f"{style}tool call{end} {tame(name)}({tame(arguments)})\n")
        self._stream.flush()

    def end_line(self) -> None:
        """End the present line, if it has text."""
        if self._is_dim:
            self._undim()
        if not self._is_at_start:
            self._write("\n")

    def say(self, text: str) -> None:
        self.end_line()
        self._write(text.rstrip("\n") + "\n")

    def dim(self, text: str) -> None:
        self.end_line()
        self._raw(_DIM)
        self._write(text)
        self._raw(_PLAIN)
        self.end_line()

    def error(self, text: str) -> None:
        """Write an error, on one line."""
        self.end_status()
        self.end_line()
        self._errors.write(f"dragoman: {tame(text)}\n")
        self._errors.flush()

    def end_status(self) -> None:
        if self._has_status:
            self._has_status = False
            self._stream.write(_WHOLE_LINE)
            self._stream.flush()

    def _undim(self) -> None:
        self._is_dim = False
        self._raw(_PLAIN)
        if not self._is_at_start:
            self._write("\n")

    def _raw(self, style: str) -> None:
        if self._has_styles:
            self.end_status()
            self._stream.write(style)

    def _write(self, text: str) -> None:
        if not text:
            return
        self.end_status()
        shown = tame(text) if self.is_terminal else text
        self._stream.write(shown)
        self._stream.flush()
        self._is_at_start = shown.endswith("\n")
