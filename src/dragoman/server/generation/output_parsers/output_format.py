"""One model's way of writing its output: what a request's answer is constrained to, and how it is taken apart again.

Does: join a tool format and a reasoning format. Does not: choose them (`choose`), compile grammars or generate.
One per model, made by the composition root; the preparer asks for grammars (on any thread), the service for parsers (on the
event loop).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from dragoman.errors import InvalidParameter
from dragoman.server.generation.output_parsers.base import Marker
from dragoman.server.generation.output_parsers.call_grammar import CallGrammar, wish_of
from dragoman.server.generation.output_parsers.call_parser import CallParser
from dragoman.server.generation.output_parsers.call_reader import Schemas
from dragoman.server.generation.output_parsers.reasoning import Opening, ReasoningFormat, ReasoningSplitter
from dragoman.server.generation.output_parsers.tool_format import Marks, ToolFormat
from dragoman.server.generation.sequence_text import ParsedText, TextParser
from dragoman.types import ChatPrompt, GenerationRequest, Grammar


@dataclass(frozen=True)
class OutputFormat:
    """`tool_format` and `reasoning` None = such output is not looked for. `marker_ids`: control tokens among the marks.

    Their text has to be shown to the parsers, although control tokens are hidden otherwise. `opens`: the mark that a grammar
    has the model write before calls, None if there is none; `marks`: all of the tool format's.
    """

    tool_format: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    opens: Marker | None = None
    marker_ids: frozenset[int] = frozenset()
    new_id: Callable[[], str] | None = field(default=None)
    marks: Marks = field(default_factory=Marks)

    @property
    def names(self) -> tuple[str | None, str | None]:
        """What the options call the formats of calls and of reasoning."""
        tools = None if self.tool_format is None else self.tool_format.name
        return tools, None if self.reasoning is None else self.reasoning.name

    def constraint(self, request: GenerationRequest, prompt_text: str) -> Grammar | None:
        """The grammar that the answer has to follow: the client's, with room for reasoning and calls; None = free text.

        Raises: InvalidParameter if a tool that must be called is strict about what the format cannot hold it to.
        """
        own = request.sampling.grammar
        if not isinstance(request.prompt, ChatPrompt):
            return own
        opening, wish = self._opening(request, prompt_text), wish_of(request)
        if self._call_grammar is None or wish is None:
            return self._with_reasoning(own, opening)
        if wish.is_forced:
            return self._call_grammar.forced(replace(wish, own=None), opening)
        try:
            return self._call_grammar.optional(wish, opening)
        except InvalidParameter:
            return self._with_reasoning(own, opening)

    def parser(self, request: GenerationRequest, prompt_text: str) -> TextParser | None:
        """The parser for one sequence of a prepared request, None if all of its text is content."""
        calls = self._call_parser(request) if request.parse_tool_calls else None
        if self.reasoning is None or not request.parse_reasoning or not isinstance(request.prompt, ChatPrompt):
            return calls
        return _OutputParser(ReasoningSplitter(self.reasoning, self._opening(request, prompt_text)), calls)

    @cached_property
    def _call_grammar(self) -> CallGrammar | None:
        return (
            None if self.tool_format is None else CallGrammar(self.tool_format, self.opens, self.reasoning, self.marks)
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
        frame = f"start: {preamble.lark}{self.reasoning.around('@output')}\n{preamble.rules}"
        return replace(own, frame=frame, needs_frame=opening == "open")


def schemas_of(request: GenerationRequest) -> Schemas:
    """The schemas of the tools' arguments, by the tools' names."""
    tools = request.prompt.tools if isinstance(request.prompt, ChatPrompt) else ()
    functions = [tool["function"] for tool in tools]
    given = {function["name"]: function.get("parameters") for function in functions}
    return {name: schema if isinstance(schema, dict) else {} for name, schema in given.items()}


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
