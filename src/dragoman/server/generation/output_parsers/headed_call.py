"""Reads one tool call whose name stands before a JSON object with its arguments. Runs on the event loop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from dragoman.server.generation.output_parsers.call_reader import (
    MAX_HEADER_CHARS,
    CallStart,
    MakeReader,
    PiecewiseReader,
    Progress,
)
from dragoman.server.generation.output_parsers.json_call import ObjectScanner, arguments_text


class HeadedCallReader(PiecewiseReader):
    """One call. One of `headers` matches the text before the object, with the groups `name` and perhaps `id`."""

    def __init__(self, start: CallStart, headers: Sequence[re.Pattern[str]]) -> None:
        super().__init__(start)
        self._headers = headers
        self._scanner: ObjectScanner | None = None  # of the object, once it has begun
        self._arguments: list[str] = []

    def _step(self) -> bool:
        return self._head() if self._scanner is None else self._object(self._scanner)

    def _head(self) -> bool:
        size = self._waiting.find("{")
        if size > MAX_HEADER_CHARS or (size < 0 and len(self._waiting) > MAX_HEADER_CHARS):
            return self._fail()
        if size < 0:
            return False
        found = (header.fullmatch(self._waiting, 0, size) for header in self._headers)
        match = next((match for match in found if match is not None), None)
        if match is None or not self._set_name(match["name"]):
            return self._fail()
        self._call_id = match.groupdict().get("id") or self._call_id
        self._take(size)
        self._scanner = ObjectScanner()
        return True

    def _object(self, scanner: ObjectScanner) -> bool:
        for position, character in enumerate(self._waiting):
            if scanner.step(character) and scanner.depth == 0:
                self._end(position + 1)
                return False
            if scanner.is_wrong:
                return self._fail()
        self._pass_on(self._take(len(self._waiting)))
        return False

    def _end(self, size: int) -> None:
        self._pass_on(self._take(size))
        if not self._start.streams:
            written = arguments_text("".join(self._arguments))
            if written is None:
                self._fail()
                return
            self._write(written)
        self.progress = Progress.DONE

    def _pass_on(self, text: str) -> None:
        if self._start.streams:
            self._write(text)
        else:
            self._arguments.append(text)


def headed_calls(*headers: str) -> MakeReader:
    return partial(HeadedCallReader, headers=[re.compile(header) for header in headers])
