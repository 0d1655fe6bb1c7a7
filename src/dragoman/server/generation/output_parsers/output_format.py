"""One model's way of writing its output: what a request's answer is constrained to, and how it is taken apart again.

Does: join a tool format and a reasoning format. Does not: choose them (`choose`), compile grammars or generate.
One per model, made by the composition root; the preparer asks for grammars (on any thread), the service for parsers (on the
event loop).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from dragoman.server.generation.output_parsers.base import Marker
from dragoman.server.generation.output_parsers.call_grammar import CallGrammar, Wish
from dragoman.server.generation.output_parsers.call_parser import CallParser
from dragoman.server.generation.output_parsers.reasoning import Opening, ReasoningFormat, ReasoningSplitter
from dragoman.server.generation.output_parsers.tool_format import ToolFormat
from dragoman.server.generation.sequence_text import ParsedText, TextParser
from dragoman.types import ChatPrompt, GenerationRequest, Grammar

FREE_CHOICES = ("auto", "none", None)
"""Values of `tool_choice` that leave it to the model whether a tool is called."""


@dataclass(frozen=True)
class OutputFormat:
    """`tool_format` and `reasoning` None = such output is not looked for. `marker_ids`: control tokens among the marks.

    Their text has to be shown to the parsers, although control tokens are hidden otherwise.
    """

    tool_format: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    opens: Marker | None = None
    marker_ids: frozenset[int] = frozenset()
    new_id: Callable[[], str] | None = field(default=None)

    def constraint(self, request: GenerationRequest, prompt_text: str) -> Grammar | None:
        """The grammar that the answer has to follow: the client's, with room for reasoning and calls; None = free text."""
        own, prompt = request.sampling.grammar, request.prompt
        if not isinstance(prompt, ChatPrompt):
            return own
        opening = self._opening(request, prompt_text)
        if self._call_grammar is None or not request.parse_tool_calls or not prompt.tools:
            return self._with_reasoning(own, opening)
        choice = request.tool_choice
        named = tuple(tool for tool in prompt.tools if tool["function"]["name"] == choice)
        is_single = choice not in (*FREE_CHOICES, "required")
        wish = Wish(
            tools=named if is_single else prompt.tools,
            is_forced=choice not in FREE_CHOICES,
            is_parallel=request.parallel_tool_calls and not is_single,
            own=own,
        )
        if wish.is_forced:
            return self._call_grammar.forced(replace(wish, own=None), opening)
        return self._call_grammar.optional(wish, opening)

    def parser(self, request: GenerationRequest, prompt_text: str) -> TextParser | None:
        """The parser for one sequence of a prepared request, None if all of its text is content."""
        calls = self._call_parser(request) if request.parse_tool_calls else None
        if self.reasoning is None or not request.parse_reasoning or not isinstance(request.prompt, ChatPrompt):
            return calls
        return _OutputParser(ReasoningSplitter(self.reasoning, self._opening(request, prompt_text)), calls)

    @cached_property
    def _call_grammar(self) -> CallGrammar | None:
        return None if self.tool_format is None else CallGrammar(self.tool_format, self.opens, self.reasoning)

    def _call_parser(self, request: GenerationRequest) -> CallParser | None:
        if self.tool_format is None:
            return None
        tools = request.prompt.tools if isinstance(request.prompt, ChatPrompt) else ()
        grammar = request.sampling.grammar
        return CallParser(
            self.tool_format.syntax,
            self.new_id or self.tool_format.new_id,
            frozenset(tool["function"]["name"] for tool in tools),
            streams=grammar is not None and grammar.covers_tool_calls,
        )

    def _opening(self, request: GenerationRequest, prompt_text: str) -> Opening:
        prompt = request.prompt
        if self.reasoning is None or not request.parse_reasoning or not isinstance(prompt, ChatPrompt):
            return "closed"
        said = prompt.messages[-1].get("content") if prompt.continue_final_message else ""
        return self.reasoning.opening(prompt_text, said if isinstance(said, str) else "")

    def _with_reasoning(self, own: Grammar | None, opening: Opening) -> Grammar | None:
        """The client's constraint, which holds for the answer and not for the reasoning before it."""
        if own is None or self.reasoning is None or opening == "closed":
            return own
        preamble = self.reasoning.preamble(opening)
        return replace(own, frame=f"start: {preamble.lark}@output\n{preamble.rules}")


class _OutputParser:
    """A `TextParser`: reasoning first, then calls."""

    def __init__(self, reasoning: ReasoningSplitter, calls: CallParser | None) -> None:
        self._reasoning = reasoning
        self._calls = calls

    def push(self, text: str, *, is_last: bool) -> ParsedText:
        """What this piece of text is."""
        reasoning, content = self._reasoning.push(text, is_last=is_last)
        if self._calls is None:
            return ParsedText(content, reasoning)
        return self._calls.push(content, is_last=is_last)._replace(reasoning=reasoning)
