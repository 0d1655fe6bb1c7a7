"""The format of one model's output: the constraint of a request's answer, and the parser of its text.

The preparer asks for grammars (on any thread), the service for parsers (on the event loop). Grammars are Lark as llguidance
reads it: `%json` is a JSON schema, `<[7]>` a control token, `[lazy]` the shortest match.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dragoman.errors import InvalidParameter
from dragoman.server.generation.output_parsers.base import Marker, num_open
from dragoman.server.generation.output_parsers.call_parser import CallParser
from dragoman.server.generation.output_parsers.call_reader import Schemas
from dragoman.server.generation.output_parsers.reasoning import (
    Opening,
    Preamble,
    ReasoningFormat,
    ReasoningSplitter,
    ThoughtMarks,
)
from dragoman.server.generation.output_parsers.tool_format import Marks, ToolFormat, WriteCall, literal
from dragoman.server.generation.text_until_stop import ParsedText, TextParser
from dragoman.types import ChatPrompt, GenerationRequest, Grammar, ToolCallDelta, Unsearched

_Tool = Mapping[str, Any]

_FREE_CHOICES = ("auto", "none", None)
"""Values of `tool_choice` that leave it to the model whether a tool is called."""


@dataclass(frozen=True)
class OutputFormat:
    """`tool_format`, `reasoning` None = such output is not separated from the answer.

    `marker_ids`: control tokens whose text the parsers have to see. `opens`: the mark that a grammar demands before calls.
    """

    tool_format: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    opens: Marker | None = None
    marker_ids: frozenset[int] = frozenset()
    new_id: Callable[[], str] | None = field(default=None)
    marks: Marks = field(default_factory=Marks)

    @property
    def names(self) -> tuple[str | None, str | None]:
        """The names of the formats of calls and of reasoning, as in the options."""
        tools = None if self.tool_format is None else self.tool_format.name
        return tools, None if self.reasoning is None else self.reasoning.name

    def constraint(self, request: GenerationRequest, prompt_text: str) -> Grammar | None:
        """None = free text. Raises: InvalidParameter if a tool that must be called is too strict for the format."""
        grammar = request.sampling.grammar
        if not isinstance(request.prompt, ChatPrompt):
            return grammar
        opening, wish = self._opening(request, prompt_text), wish_of(request)
        if self._call_grammar is None or wish is None:
            return self._with_reasoning(grammar, opening)
        if wish.is_forced:
            return self._call_grammar.forced(replace(wish, own=None), opening)
        try:
            return self._call_grammar.optional(wish, opening)
        except InvalidParameter:
            return self._with_reasoning(grammar, opening)

    def parser(self, request: GenerationRequest, prompt_text: str) -> TextParser | None:
        calls = self._call_parser(request) if request.parse_tool_calls else None
        if self.reasoning is None or not request.parse_reasoning or not isinstance(request.prompt, ChatPrompt):
            return calls
        reasoning = ReasoningSplitter(self.reasoning, self._opening(request, prompt_text))
        early = None if calls is None else self._early_parser(request)
        return _OutputParser(reasoning, calls, early, is_parallel=request.parallel_tool_calls)

    def unsearched(self, request: GenerationRequest, prompt_text: str) -> Unsearched | None:
        """Stop strings do not count between these marks; None if calls have none, or a stop string may be in a mark."""
        marks: list[tuple[str, str]] = []
        opening = self._opening(request, prompt_text)
        if self.reasoning is not None and request.parse_reasoning:
            marks.append((self.reasoning.begin.text, self.reasoning.end.text))
        if self.tool_format is not None and request.parse_tool_calls:
            syntax = self.tool_format.syntax
            if syntax.is_bare:
                return None
            marks += [(mark, "".join(syntax.closes[:1])) for mark in (*syntax.opens, *syntax.unopened)]
        begins = [begin for begin, _ in marks]
        for stop in request.stop:
            if not stop.strip() or num_open(stop, *begins) or any(stop in begin for begin in begins):
                return None
        return Unsearched(tuple(marks), marks[0][1] if opening == "open" else "")

    def thought_marks(self, request: GenerationRequest, prompt_text: str) -> ThoughtMarks | None:
        if self.reasoning is None:
            return None
        if not isinstance(request.prompt, ChatPrompt):
            return self.reasoning.thought_marks(self.reasoning.opening_of_text(prompt_text))
        opening = self.reasoning.opening(prompt_text, _continued(request.prompt))
        has_early = self.tool_format is not None and self._early_parser(request) is not None
        calls = self.tool_format.syntax.opens if has_early and self.tool_format is not None else ()
        return self.reasoning.thought_marks(opening, tuple(filter(None, calls)))

    @cached_property
    def _call_grammar(self) -> _CallGrammar | None:
        return (
            None if self.tool_format is None else _CallGrammar(self.tool_format, self.opens, self.reasoning, self.marks)
        )

    def _call_parser(self, request: GenerationRequest) -> CallParser | None:
        if self.tool_format is None:
            return None
        grammar = request.sampling.grammar
        is_covered = grammar is not None and grammar.covers_tool_calls
        return CallParser(
            self.tool_format.syntax,
            self.new_id or self.tool_format.new_id,
            schemas_of(request),
            None if not is_covered else "" if self.opens is None else self.opens.text,
        )

    def _early_parser(self, request: GenerationRequest) -> CallParser | None:
        """None where calls have no mark, or a grammar puts them after the reasoning."""
        tool_format, schemas = self.tool_format, schemas_of(request)
        if tool_format is None or not tool_format.marked or request.tool_choice not in _FREE_CHOICES or not schemas:
            return None
        return CallParser(tool_format.syntax, self.new_id or tool_format.new_id, schemas, only_known=True)

    def _opening(self, request: GenerationRequest, prompt_text: str) -> Opening:
        prompt = request.prompt
        if self.reasoning is None or not request.parse_reasoning or not isinstance(prompt, ChatPrompt):
            return "closed"
        return self.reasoning.opening(prompt_text, _continued(prompt))

    def _with_reasoning(self, grammar: Grammar | None, opening: Opening) -> Grammar | None:
        if grammar is None or self.reasoning is None or opening == "closed":
            return grammar
        preamble = self.reasoning.preamble(opening)
        frame = f"start: {preamble.lark}{self.reasoning.around('@output')}\n{preamble.rules}"
        return replace(grammar, frame=frame, needs_frame=opening == "open")


def _continued(prompt: ChatPrompt) -> str:
    content = prompt.messages[-1].get("content") if prompt.continue_final_message else ""
    return content if isinstance(content, str) else ""


class _OutputParser:
    """`early` finds calls of known tools within the reasoning. No call follows them unless `is_parallel`.

    Such a call ends the reasoning, unless the end mark still comes: the text after the call is kept until then.
    """

    def __init__(
        self, reasoning: ReasoningSplitter, calls: CallParser | None, early: CallParser | None, *, is_parallel: bool
    ) -> None:
        self._is_parallel = is_parallel
        self._reasoning = reasoning
        self._calls = calls
        self._early = early
        self._kept: list[str] = []

    def push(self, text: str, *, is_last: bool) -> ParsedText:
        reasoning, content = self._reasoning.push(text, is_last=is_last)
        early_calls: tuple[ToolCallDelta, ...] = ()
        if self._early is not None:
            reasoning, early_calls, late = self._without_calls(self._early, reasoning, is_last=is_last)
            content = late + content
        if self._calls is None:
            return ParsedText(content, reasoning, early_calls)
        answer = self._calls.push(content, is_last=is_last)
        return ParsedText(answer.content, reasoning, early_calls + answer.tool_calls)

    def _without_calls(
        self, early: CallParser, thought: str, *, is_last: bool
    ) -> tuple[str, tuple[ToolCallDelta, ...], str]:
        """The reasoning without the calls in it, the calls, and text that proves to be content."""
        has_ended, late = self._reasoning.has_ended, ""
        found = early.push(thought, is_last=is_last or has_ended)
        thought = found.content[: len(found.content) - len(early.since_call)]
        self._kept.append(early.since_call)
        if has_ended or is_last:
            kept = "".join(self._kept)
            thought, late = (thought + kept, "") if has_ended else (thought, kept.lstrip())
            if early.num_calls and not self._is_parallel:
                self._calls = None
            elif self._calls is not None:
                self._calls.num_calls = early.num_calls
            self._early = None
        return thought, found.tool_calls, late


@dataclass(frozen=True, slots=True)
class Wish:
    """The form of answer that a request asks for. `own`: the client's constraint on answers that call no tool."""

    tools: Sequence[_Tool]
    is_forced: bool  # a tool must be called
    is_parallel: bool  # more than one may be
    own: Grammar | None = None


def wish_of(request: GenerationRequest) -> Wish | None:
    """The calls that a request allows or demands, None if the model may not call a tool."""
    prompt, choice = request.prompt, request.tool_choice
    if not isinstance(prompt, ChatPrompt) or not request.parse_tool_calls or not prompt.tools:
        return None
    is_single = choice == "named"
    return Wish(
        tools=tuple(tool for tool in prompt.tools if not is_single or tool["function"]["name"] == request.called_tool),
        is_forced=choice not in _FREE_CHOICES,
        is_parallel=request.parallel_tool_calls and not is_single,
        own=request.sampling.grammar,
    )


def schemas_of(request: GenerationRequest) -> Schemas:
    tools = request.prompt.tools if isinstance(request.prompt, ChatPrompt) else ()
    functions = [tool["function"] for tool in tools]
    schemas = {function["name"]: function.get("parameters") for function in functions}
    return {name: schema if isinstance(schema, dict) else {} for name, schema in schemas.items()}


@dataclass(frozen=True, slots=True)
class _CallGrammar:
    """Makes grammars for one model. `opens` None = the format has no marker before calls."""

    tool_format: ToolFormat
    opens: Marker | None
    reasoning: ReasoningFormat | None
    marks: Marks = field(default_factory=Marks)

    def forced(self, wish: Wish, opening: Opening) -> Grammar:
        preamble = self._preamble(opening)
        lark = f"start: {preamble.lark}{self._calls(wish)}\n{preamble.rules}{self._call_rules(wish.tools)}"
        return Grammar("lark", lark, covers_tool_calls=True, param="tools")

    def optional(self, wish: Wish, opening: Opening) -> Grammar | None:
        """The grammar of an answer that may call tools; None if no mark separates calls from text."""
        preamble = self._preamble(opening)
        if wish.own is not None:
            start = f"start: {preamble.lark}({self._calls(wish)} | {self._around('@output')})\n"
            frame = f"{start}{preamble.rules}{self._call_rules(wish.tools)}"
            is_open = opening == "open"
            return replace(wish.own, frame=frame, covers_tool_calls=self.opens is not None, needs_frame=is_open)
        if self.opens is None:
            return None
        block = self.tool_format.block(self.marks, wish.is_parallel)
        repeats = wish.is_parallel and self.tool_format.between_blocks is not None
        after = f"{block} (trigger {block})* TEXT" if repeats else block
        body = f"({self._around('TEXT')} | trigger {after})"
        early = self._early_call(self.opens, opening)
        rules = f"{preamble.rules}{_text_rules(self.opens)}{self._call_rules(wish.tools)}{early}"
        ends = f"{' | early' if early else ''}\n"
        if self.reasoning is None or not preamble.is_optional or self.reasoning.begin.token_id is not None:
            return Grammar("lark", f"start: {preamble.lark}{body}{ends}{rules}", covers_tool_calls=True, param="tools")
        # An answer that thinks first must not pass for free text, where a mark that the reasoning mentions would count.
        start = f"start: TEXT_FIRST | trigger_first {after} | {preamble.thought} {body}{ends}"
        rules = f"{_first_rules(self.opens, self.reasoning.begin)}{rules}"
        return Grammar("lark", start + rules, covers_tool_calls=True, param="tools")

    def _early_call(self, opens: Marker, opening: Opening) -> str:
        """The rule of a call within the reasoning, which ends the answer. Control tokens cannot be written there."""
        closes = self.tool_format.syntax.closes
        if self.reasoning is None or opening == "closed" or not closes:
            return ""
        begin, end, close = self.reasoning.begin, self.reasoning.end, self.marks[closes[0]]
        if opens.token_id is not None or close.token_id is not None:
            return ""
        is_written = opening == "maybe"
        lead = f"{begin.lark} " if is_written and begin.token_id is not None else ""
        head = rf"\s{{0,4}}{begin.regex}" if is_written and begin.token_id is None else ""
        other = "" if end.token_id is not None else f" & ~/(?s:.*){end.regex}(?s:.*)/"
        text = rf"/{head}(?s:.*){opens.regex}(?s:.*){close.regex}\s{{0,4}}/"
        return f"early: {lead}EARLY\nEARLY: {text}{other}\n"

    def _around(self, answer: str) -> str:
        return answer if self.reasoning is None else self.reasoning.around(answer)

    def _preamble(self, opening: Opening) -> Preamble:
        return Preamble("", "") if self.reasoning is None else self.reasoning.preamble(opening)

    def _calls(self, wish: Wish) -> str:
        head = "" if self.opens is None else f"{self.opens.lark} "
        block = head + self.tool_format.block(self.marks, wish.is_parallel)
        separator = self.tool_format.between_blocks
        if not wish.is_parallel or separator is None:
            return block
        return f"{block} ({literal(separator) if separator else ''} {block})*"

    def _call_rules(self, tools: Sequence[_Tool]) -> str:
        return call_rules(tools, self.tool_format.call, self.marks)


def call_rules(tools: Sequence[_Tool], write: WriteCall, marks: Marks) -> str:
    names = " | ".join(f"call_{i}" for i in range(len(tools)))
    written = [write(f"call_{i}", tool["function"], marks) for i, tool in enumerate(tools)]
    return f"call: {names}\n" + "".join(f"call_{i}: {rule.lark}\n{rule.rules}" for i, rule in enumerate(written))


def _text_rules(opens: Marker) -> str:
    if opens.token_id is not None:
        return f"TEXT: /(?s:.*)/\ntrigger: TEXT {opens.lark}\n"
    up_to = f"UP_TO: /(?s:.*){opens.regex}/\ntrigger[lazy]: UP_TO\n"
    return f"TEXT: ~/(?s:.*){opens.regex}(?s:.*)/\n{up_to}"


def _first_rules(opens: Marker, thought: Marker) -> str:
    """Free text at the beginning of an answer, where it must not look like reasoning."""
    other = f"~/\\s*{thought.regex}(?s:.*)/"
    text = f"TEXT_FIRST: TEXT & {other}\n"
    if opens.token_id is not None:
        return f"{text}trigger_first: TEXT_FIRST {opens.lark}\n"
    return f"{text}UP_TO_FIRST: UP_TO & {other}\ntrigger_first[lazy]: UP_TO_FIRST\n"
