"""Splits a model's reasoning from its answer, piece by piece. Splitters run on the event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, NamedTuple

from dragoman.server.generation.output_parsers.base import Marker, split_at

Opening = Literal["open", "maybe", "closed"]
"""The beginning of an answer: inside the reasoning, perhaps with it, or after it."""


class Preamble(NamedTuple):
    """Reasoning in a Lark grammar: an expression, "" for none, and the rules it needs."""

    thought: str
    rules: str
    is_optional: bool = False

    @property
    def lark(self) -> str:
        return f"({self.thought})? " if self.is_optional else f"{self.thought} " if self.thought else ""


class ThoughtMarks(NamedTuple):
    """The marks of one answer's reasoning, and the text with which an engine ends it. See `types.Thinking`.

    `closing`: the model's end mark, with the space around; `last_words`: written before it, unless the budget is 0;
    `reclosing`: written where reasoning begins again.
    """

    begin: str
    ends: tuple[str, ...]
    closing: str
    is_open: bool = False
    recurs: bool = False
    last_words: str = ""
    reclosing: str = ""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """`is_template_opening`: the chat template writes the first mark. `is_always_open`: there is no first mark.

    `answer`: the marks around the answer, which the model may write. `around_end`: the space around the end mark.
    `last_words`: the text from which the model was trained to go on where its reasoning is cut off; "" = none.
    `label`: a word behind the first mark that is not reasoning.
    """

    name: str
    begin: Marker
    end: Marker
    is_template_opening: bool = False
    is_always_open: bool = False
    answer: tuple[Marker, Marker] | None = None
    around_end: tuple[str, str] = ("\n", "\n\n")
    last_words: str = ""
    label: str = ""

    @property
    def marks(self) -> tuple[Marker, ...]:
        return (self.begin, self.end, *(self.answer or ()))

    def with_marks(self, find: Callable[[str], Marker]) -> ReasoningFormat:
        answer = None if self.answer is None else (find(self.answer[0].text), find(self.answer[1].text))
        return replace(self, begin=find(self.begin.text), end=find(self.end.text), answer=answer)

    def around(self, answer: str) -> str:
        """Lark for an answer, with its marks where they are control tokens, which no text can hold."""
        if self.answer is None or self.answer[0].token_id is None:
            return answer
        begin, end = self.answer
        return f"({answer} | {begin.lark} {answer} {end.lark}?)"

    def opening(self, prompt_text: str, continued: str = "") -> Opening:
        """`continued`: the part of the answer that the prompt has."""
        prompt = prompt_text.rstrip()
        if prompt.endswith(self.begin.text) or continued.rfind(self.begin.text) > continued.rfind(self.end.text):
            return "open"
        if self.end.text in continued or prompt.endswith(self.end.text):
            return "closed"
        if self.is_always_open:
            return "open"
        return "closed" if self.is_template_opening else "maybe"

    def opening_of_text(self, prompt_text: str) -> Opening:
        """For a prompt which is not a conversation."""
        is_open = prompt_text.rfind(self.begin.text) > prompt_text.rfind(self.end.text)
        return "open" if is_open else "maybe"

    def thought_marks(self, opening: Opening, calls: tuple[str, ...] = ()) -> ThoughtMarks | None:
        """None without reasoning. `calls`: marks of calls, which end it as well."""
        if opening == "closed":
            return None
        before, after = self.around_end
        ends, closing = (self.end.text, *calls), f"{before}{self.end.text}{after}"
        return ThoughtMarks(self.begin.text, ends, closing, opening == "open", last_words=self.last_words)

    def preamble(self, opening: Opening) -> Preamble:
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
    reasoning: str
    content: str


class _State(Enum):
    UNDECIDED = 1
    THINKING = 2
    ANSWERING = 3


class ReasoningSplitter:
    """White space around the reasoning is dropped, all else comes out exactly once."""

    def __init__(self, layout: ReasoningFormat, opening: Opening) -> None:
        self._begin = layout.begin.text
        self._end = layout.end.text
        self._state = _State.UNDECIDED
        self._is_open = opening == "open"  # yet the model may write the first mark again
        self._held = ""  # may still become a mark, or white space that is dropped
        self._label = layout.label  # that may still come
        self._at_edge = opening == "open"  # nothing but white space since the last mark
        marks = layout.answer
        # The text inside the answer's marks is to the text around them what reasoning is to the answer.
        self._unwrap = None if marks is None else ReasoningSplitter(ReasoningFormat("answer", *marks), "maybe")

    @property
    def has_ended(self) -> bool:
        return self._state is _State.ANSWERING

    def push(self, text: str, *, is_last: bool) -> ReasoningPiece:
        """Nothing is held back after the last piece."""
        self._held += text
        if self._state is _State.UNDECIDED:
            self._decide(is_last)
        reasoning = self._think(is_last) if self._state is _State.THINKING else ""
        content = self._answer(is_last) if self._state is _State.ANSWERING else ""
        return ReasoningPiece(reasoning, content)

    def _decide(self, is_last: bool) -> None:
        start = self._held.lstrip()
        if start.startswith(self._begin):
            self._held, self._at_edge, self._state = start[len(self._begin) :], True, _State.THINKING
        elif start.startswith(self._end):  # the end mark of reasoning that is empty
            self._held, self._at_edge, self._state = start[len(self._end) :], True, _State.ANSWERING
        elif is_last or not (self._begin.startswith(start) or self._end.startswith(start)):
            self._state = _State.THINKING if self._is_open else _State.ANSWERING

    def _think(self, is_last: bool) -> str:
        if self._label and not self._drop_label(is_last):
            return ""
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

    def _drop_label(self, is_last: bool) -> bool:
        """False while the label may still come."""
        start = self._held.lstrip()
        if not is_last and len(start) < len(self._label) and self._label.startswith(start):
            return False
        self._held, self._label = start.removeprefix(self._label), ""
        return True

    def _answer(self, is_last: bool) -> str:
        text, self._held = self._held, ""
        if self._at_edge:
            text = text.lstrip()
            self._at_edge = not text
        return text if self._unwrap is None else "".join(self._unwrap.push(text, is_last=is_last))
