"""The whole answer of gpt-oss: messages on channels, each with a header. Parsers run on the event loop.

Sources: OpenAI's description of the harmony response format, and the chat template of openai/gpt-oss-20b.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from dragoman.server.generation.output_parsers.base import first_marker, num_open
from dragoman.server.generation.output_parsers.call_reader import MAX_HEADER_CHARS, Schemas, arguments_text
from dragoman.server.generation.output_parsers.output_format import Wish, call_rules, schemas_of, wish_of
from dragoman.server.generation.output_parsers.reasoning import ThoughtMarks
from dragoman.server.generation.output_parsers.text_values import TextRule, argument_schemas
from dragoman.server.generation.output_parsers.tool_format import Function, Marks, arguments_rule, call_id, literal
from dragoman.server.generation.text_until_stop import ParsedText, TextParser
from dragoman.types import ChatPrompt, GenerationRequest, Grammar, ToolCallDelta, Unsearched

NAME = "gpt_oss"

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)

_ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
_HEADER_BEGINNINGS = (START, CHANNEL, CONSTRAIN, MESSAGE, "to=")
_BODY_ENDS = (END, CALL, RETURN, START, CHANNEL)
_CHANNEL = re.compile(rf"{re.escape(CHANNEL)}\s*(\w+)")
_RECIPIENT = re.compile(r"to=([\w.\-]+)")
_FUNCTIONS = "functions."
_PEOPLE = ("user", "assistant", "all")  # recipients of messages that call nothing


@dataclass(frozen=True, slots=True)
class HarmonyOutput:
    """Replaces an `OutputFormat`."""

    marks: Marks
    reads_calls: bool = True
    reads_reasoning: bool = True
    new_id: Callable[[], str] = call_id

    @property
    def names(self) -> tuple[str | None, str | None]:
        return (NAME if self.reads_calls else None, NAME if self.reads_reasoning else None)

    @property
    def marker_ids(self) -> frozenset[int]:
        ids = (self.marks[text].token_id for text in MARKS)
        return frozenset(token_id for token_id in ids if token_id is not None)

    @property
    def end_ids(self) -> frozenset[int]:
        """The control tokens that end an answer: after a call, and after the last message."""
        ids = (self.marks[text].token_id for text in (CALL, RETURN))
        return frozenset(token_id for token_id in ids if token_id is not None)

    def constraint(self, request: GenerationRequest, prompt_text: str) -> Grammar | None:
        """The client's grammar, in its message, or a call; None = free text."""
        grammar = request.sampling.grammar
        if not isinstance(request.prompt, ChatPrompt) or MESSAGE in _open_message(prompt_text):
            return grammar
        wish = wish_of(request) if self.reads_calls else None
        if wish is None and grammar is None:
            return None
        ends = [] if wish is None else ["call"]
        if wish is None or not wish.is_forced:
            ends.append(
                f'{self.marks.lark(CHANNEL)} "final" {self.marks.lark(MESSAGE)} {"TEXT" if grammar is None else "@output"}'
            )
        start = f"start: (before next)* ({' | '.join(ends)})\n{self._rules(wish)}"
        if grammar is not None and (wish is None or not wish.is_forced):
            return replace(grammar, frame=start, covers_tool_calls=wish is not None, needs_frame=True)
        return Grammar("lark", start, covers_tool_calls=True, param="tools")

    def parser(self, request: GenerationRequest, prompt_text: str) -> TextParser | None:
        if not isinstance(request.prompt, ChatPrompt):
            return None
        grammar = request.sampling.grammar
        return _HarmonyParser(
            _Reading(
                new_id=self.new_id if self.reads_calls and request.parse_tool_calls else None,
                streams=grammar is not None and grammar.covers_tool_calls,
                splits_reasoning=self.reads_reasoning and request.parse_reasoning,
                schemas=schemas_of(request),
            ),
            _open_message(prompt_text),
        )

    def unsearched(self, request: GenerationRequest, prompt_text: str) -> Unsearched | None:
        """None: the header of each message shows its kind."""
        return None

    def thought_marks(self, request: GenerationRequest, prompt_text: str) -> ThoughtMarks | None:
        """After the reasoning the model may still choose a tool."""
        opened = _open_message(prompt_text)
        is_open = opened.startswith(f"{START}assistant{_ANALYSIS}")
        if not self.reads_reasoning or (MESSAGE in opened and not is_open):
            return None
        wish = wish_of(request) if self.reads_calls else None
        following = f"{END}{START}assistant"
        final = f"{following}{CHANNEL}final{MESSAGE}"
        reclosing = f"{following} to={_FUNCTIONS}" if wish is not None and wish.is_forced else final
        return ThoughtMarks(
            _ANALYSIS, _BODY_ENDS, final if wish is None else following, is_open, recurs=True, reclosing=reclosing
        )

    def _rules(self, wish: Wish | None) -> str:
        lark = self.marks.lark
        channel = '"analysis"' if wish is not None and wish.is_forced else '("analysis" | "commentary")'
        head = f"{lark(CHANNEL)} {channel} {lark(MESSAGE)}"
        rules = (
            f'{self.marks[END].up_to("rest")}\nbefore: {head} rest\nnext: {lark(START)} "assistant"\nTEXT: /(?s:.*)/\n'
        )
        return rules if wish is None else rules + call_rules(wish.tools, _write_call, self.marks)


def _write_call(rule: str, function: Function, marks: Marks) -> TextRule:
    """The recipient may stand before the channel or after it; models write both."""
    to = literal(f" to=functions.{function['name']}")
    before = f'{to} {marks.lark(CHANNEL)} "commentary "'
    after = f'{marks.lark(CHANNEL)} "commentary" {to} " "'
    tail = f'{marks.lark(CONSTRAIN)} "json" {marks.lark(MESSAGE)} {arguments_rule(function)}'
    return TextRule(f"({before} | {after}) {tail}", "")


def _open_message(prompt_text: str) -> str:
    """The message that a prompt begins and does not end: its header, and what was said already; "" if there is none."""
    begin = prompt_text.rfind(START)
    message = prompt_text[begin:] if begin >= 0 else ""
    return "" if any(end in message for end in (END, CALL, RETURN)) else message


class _State(Enum):
    HEADER = 1
    BODY = 2


class _Kind(Enum):
    CONTENT = 1
    REASONING = 2
    CALL = 3
    AS_IT_IS = 4  # header and all, where a client does not want it taken apart


@dataclass(frozen=True, slots=True)
class _Reading:
    """The parts to separate. `new_id` None = not calls; `streams`: a grammar guarantees them."""

    new_id: Callable[[], str] | None
    streams: bool
    splits_reasoning: bool
    schemas: Schemas


class _HarmonyParser:
    """Messages of one kind are joined by line breaks; a header that is cut off is dropped."""

    def __init__(self, reading: _Reading, opened: str) -> None:
        self._reading = reading
        self._buffer = ""
        self._state = _State.HEADER
        self._header = ""  # of the message that is being read
        self._prompted = opened  # the part of the first header that the prompt wrote
        self._kind = _Kind.CONTENT
        self._num_calls = 0
        self._name = ""
        self._arguments: list[str] = []
        self._is_call_begun = False
        self._is_builtin = False  # the message is for a tool that is named as the model's own are
        self._begun: set[_Kind] = set()  # kinds that have had a message before this one
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._deltas: list[ToolCallDelta] = []
        if MESSAGE in opened:
            self._open(opened.partition(MESSAGE)[0])

    def push(self, text: str, *, is_last: bool) -> ParsedText:
        self._buffer += text
        while self._read_header(is_last) if self._state is _State.HEADER else self._read_body(is_last):
            pass
        if is_last and self._state is _State.BODY:
            self._end_body("")
        parsed = ParsedText("".join(self._content), "".join(self._reasoning), tuple(self._deltas))
        self._content, self._reasoning, self._deltas = [], [], []
        return parsed

    def _read_header(self, is_last: bool) -> bool:
        start = self._buffer.lstrip()
        is_header = start.startswith(_HEADER_BEGINNINGS) or (
            not is_last and any(mark.startswith(start) for mark in _HEADER_BEGINNINGS)
        )
        position = self._buffer.find(MESSAGE)
        if not is_header or max(position, len(self._buffer) if position < 0 else 0) > MAX_HEADER_CHARS:
            if not self._buffer:
                return False
            self._header, self._kind, self._state = "", _Kind.CONTENT, _State.BODY
            return True
        if position < 0:
            return False
        header, self._buffer = self._buffer[:position], self._buffer[position + len(MESSAGE) :]
        self._open(self._prompted + header)
        return True

    def _open(self, header: str) -> None:
        self._header, self._prompted, self._state = header, "", _State.BODY
        self._kind = self._kind_of(header)
        self._arguments, self._is_call_begun = [], False
        if self._kind is _Kind.AS_IT_IS:
            self._emit(self._header + MESSAGE)

    def _kind_of(self, header: str) -> _Kind:
        channel = _CHANNEL.search(header)
        recipient = _RECIPIENT.search(header)
        addressee = "" if recipient is None or recipient[1] in _PEOPLE else recipient[1]
        # The model was trained on tools with names of their own (python, browser.search), which clients may offer as well.
        self._is_builtin = bool(addressee) and not addressee.startswith(_FUNCTIONS)
        if addressee and (not self._is_builtin or addressee in self._reading.schemas):
            self._name = addressee.removeprefix(_FUNCTIONS)
            return _Kind.AS_IT_IS if self._reading.new_id is None else _Kind.CALL
        if self._is_builtin or (channel is not None and channel[1] == "analysis"):
            return _Kind.REASONING if self._reading.splits_reasoning else _Kind.AS_IT_IS
        return _Kind.CONTENT

    def _read_body(self, is_last: bool) -> bool:
        found = first_marker(self._buffer, _BODY_ENDS)
        if found is None:
            size = len(self._buffer) - (0 if is_last else num_open(self._buffer, *_BODY_ENDS))
            self._emit(self._buffer[:size])
            self._buffer = self._buffer[size:]
            return False
        position, mark = found
        self._emit(self._buffer[:position])
        self._end_body(mark)
        begins_next = mark in (START, CHANNEL)
        self._buffer = self._buffer[position + (0 if begins_next else len(mark)) :]
        self._state = _State.HEADER
        return True

    def _emit(self, text: str) -> None:
        if not text:
            return
        if self._kind is _Kind.CALL:
            self._arguments.append(text)
            if self._reading.streams and not self._is_builtin:
                self._give_arguments()
            return
        target = self._reasoning if self._kind is _Kind.REASONING else self._content
        if self._kind in self._begun:
            self._begun.discard(self._kind)
            target.append("\n")
        target.append(text)

    def _end_body(self, mark: str) -> None:
        if self._kind is _Kind.CALL:
            self._end_call()
        elif self._kind is _Kind.AS_IT_IS:
            self._emit(mark if mark not in (START, CHANNEL) else "")
        else:
            self._begun.add(self._kind)
        self._header = ""

    def _end_call(self) -> None:
        written = "".join(self._arguments)
        if self._is_call_begun:
            self._num_calls += 1
            return
        arguments = arguments_text(written.strip() or "{}") or self._only_argument(written)
        if arguments is None:
            self._kind = _Kind.CONTENT
            self._emit(f"{self._header}{MESSAGE}{written}")
            return
        self._arguments = [arguments]
        self._give_arguments()
        self._num_calls += 1

    def _only_argument(self, written: str) -> str | None:
        """The bare text that a tool of the model's own is given, as the one argument that the client's tool has."""
        known = argument_schemas(self._reading.schemas.get(self._name, {}))
        return (
            json.dumps({next(iter(known)): written}, ensure_ascii=False)
            if self._is_builtin and len(known) == 1
            else None
        )

    def _give_arguments(self) -> None:
        piece = "".join(self._arguments)
        self._arguments = []
        new_id = self._reading.new_id
        assert new_id is not None  # else this is not a call
        if self._is_call_begun:
            self._deltas.append(ToolCallDelta(self._num_calls, arguments=piece))
        else:
            self._is_call_begun = True
            self._deltas.append(ToolCallDelta(self._num_calls, new_id(), self._name, piece))
