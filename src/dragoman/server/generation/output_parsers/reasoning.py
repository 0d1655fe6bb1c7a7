"""Splits what a model thinks from what it answers.

Does: follow the text from `<think>` (or from a prompt that ends with it) to `</think>`, piece by piece.
Does not: read tool calls. Made by `output_format`, one splitter per sequence, on the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from dragoman.server.generation.output_parsers.base import Marker, split_at

Opening = Literal["open", "maybe", "closed"]
"""Whether the answer begins inside the reasoning, may begin with it, or comes after it."""


class Preamble(NamedTuple):
    """Reasoning in a Lark grammar: an expression, "" for none, and the rules it needs."""

    thought: str
    rules: str
    is_optional: bool = False

    @property
    def lark(self) -> str:
        """The beginning of a rule."""
        return f"({self.thought})? " if self.is_optional else f"{self.thought} " if self.thought else ""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model marks its reasoning.

    `is_template_opening`: the chat template writes the first mark, so the model never does. `is_always_open`: the answer
    begins with reasoning although nothing says so, as models do whose template only tells them to think.
    """

    name: str
    begin: Marker
    end: Marker
    is_template_opening: bool = False
    is_always_open: bool = False

    def opening(self, prompt_text: str, continued: str = "") -> Opening:
        """Where an answer to this prompt begins; `continued` is the part of it that was said already."""
        prompt = prompt_text.rstrip()
        if prompt.endswith(self.begin.text) or continued.rfind(self.begin.text) > continued.rfind(self.end.text):
            return "open"
        if self.end.text in continued or prompt.endswith(self.end.text):
            return "closed"
        if self.is_always_open:
            return "open"
        return "closed" if self.is_template_opening else "maybe"

    def preamble(self, opening: Opening) -> Preamble:
        """What may come before a constrained answer."""
        space = "SPACE: /\\s{0,4}/\n"
        rest = f"{self.end.up_to('rest_of_thought')}\n{space}"
        if opening == "open":
            return Preamble("rest_of_thought SPACE", rest)
        if opening == "closed":
            return Preamble("", "")
        if self.begin.token_id is not None:
            return Preamble("think SPACE", f"think: {self.begin.lark} rest_of_thought\n{rest}", is_optional=True)
        rule = self.end.up_to("think", before=rf"\s{{0,4}}{self.begin.regex}")
        return Preamble("think SPACE", f"{rule}\n{space}", is_optional=True)


class ReasoningPiece(NamedTuple):
    """A piece of text, split."""

    reasoning: str
    content: str


class _State(Enum):
    UNDECIDED = 1
    THINKING = 2
    ANSWERING = 3


class ReasoningSplitter:
    """One sequence's reasoning. White space around the reasoning is dropped, all else comes out exactly once."""

    def __init__(self, layout: ReasoningFormat, opening: Opening) -> None:
        self._begin = layout.begin.text
        self._end = layout.end.text
        self._state = _State.THINKING if opening == "open" else _State.UNDECIDED
        self._held = ""  # may still become a mark, or white space that is dropped
        self._at_edge = opening == "open"  # nothing but white space since the last mark

    def push(self, text: str, *, is_last: bool) -> ReasoningPiece:
        """The next piece; nothing is held back after the last."""
        self._held += text
        if self._state is _State.UNDECIDED:
            self._decide(is_last)
        reasoning = self._think(is_last) if self._state is _State.THINKING else ""
        content = self._answer() if self._state is _State.ANSWERING else ""
        return ReasoningPiece(reasoning, content)

    def _decide(self, is_last: bool) -> None:
        start = self._held.lstrip()
        if start.startswith(self._begin):
            self._held, self._at_edge, self._state = start[len(self._begin) :], True, _State.THINKING
        elif is_last or not self._begin.startswith(start):
            self._state = _State.ANSWERING

    def _think(self, is_last: bool) -> str:
        before, after, rest = split_at(self._held, self._end, is_last=is_last)
        if after is not None:
            self._held, self._state = after, _State.ANSWERING
            thought = before.rstrip()
        else:
            size = len(before) if is_last else len(before.rstrip())
            thought, self._held = before[:size], before[size:] + rest
        if self._at_edge:
            stripped = thought.lstrip()
            self._at_edge = not stripped
            thought = stripped
        if after is not None:
            self._at_edge = True
        return thought

    def _answer(self) -> str:
        text, self._held = self._held, ""
        if self._at_edge:
            text = text.lstrip()
            self._at_edge = not text
        return text
