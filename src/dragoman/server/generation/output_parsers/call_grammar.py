"""Builds the grammar of an answer that may or must call tools, in the model's own format. Runs on any thread.

Lark as llguidance reads it: `%json` is a JSON schema, `<[7]>` a control token, `[lazy]` the shortest match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dragoman.server.generation.output_parsers.base import Marker
from dragoman.server.generation.output_parsers.call_reader import Schemas
from dragoman.server.generation.output_parsers.reasoning import Opening, Preamble, ReasoningFormat
from dragoman.server.generation.output_parsers.tool_format import Marks, ToolFormat, WriteCall, literal
from dragoman.types import ChatPrompt, GenerationRequest, Grammar

Tool = Mapping[str, Any]

FREE_CHOICES = ("auto", "none", None)
"""Values of `tool_choice` that leave it to the model whether a tool is called."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The form of answer that a request asks for. `own`: the client's constraint on answers that call no tool."""

    tools: Sequence[Tool]
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
        tools=tuple(one for one in prompt.tools if not is_single or one["function"]["name"] == request.called_tool),
        is_forced=choice not in FREE_CHOICES,
        is_parallel=request.parallel_tool_calls and not is_single,
        own=request.sampling.grammar,
    )


def schemas_of(request: GenerationRequest) -> Schemas:
    tools = request.prompt.tools if isinstance(request.prompt, ChatPrompt) else ()
    functions = [tool["function"] for tool in tools]
    given = {function["name"]: function.get("parameters") for function in functions}
    return {name: schema if isinstance(schema, dict) else {} for name, schema in given.items()}


@dataclass(frozen=True, slots=True)
class CallGrammar:
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

    def _call_rules(self, tools: Sequence[Tool]) -> str:
        return call_rules(tools, self.tool_format.call, self.marks)


def call_rules(tools: Sequence[Tool], write: WriteCall, marks: Marks) -> str:
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
