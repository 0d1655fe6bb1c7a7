"""Feeds model output to a parser, in pieces, and says what came out; calls have predictable ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import count, pairwise
from typing import Any, NamedTuple

from dragoman.server.generation.output_parsers import OutputFormat, harmony
from dragoman.server.generation.output_parsers.base import Marker
from dragoman.server.generation.output_parsers.choose import REASONING_FORMATS, TOOL_FORMATS
from dragoman.server.generation.output_parsers.harmony import HarmonyOutput
from dragoman.server.generation.output_parsers.tool_format import Marks
from dragoman.server.generation.text_until_stop import TextParser
from dragoman.types import ChatPrompt, GenerationRequest, Grammar, SamplingParams, ToolCallDelta, ToolChoice

USER = {"role": "user", "content": "?"}


class Output(NamedTuple):
    """The whole outcome; `calls` are (id, name, arguments)."""

    content: str
    reasoning: str
    calls: list[tuple[str | None, str | None, str]]


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    """A tool with these parameters, all required."""
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = (tool("weather", city={"type": "string"}), tool("add", a={"type": "integer"}, b={"type": "integer"}))


def output_format(tools: str = "hermes", reasoning: str | None = None) -> OutputFormat | HarmonyOutput:
    """A format by name, whose marks are text and whose call ids count from id0."""
    numbers = count()

    def new_id() -> str:
        return f"id{next(numbers)}"

    if tools == harmony.NAME:
        return HarmonyOutput(Marks(), new_id=new_id)
    own = TOOL_FORMATS[tools]
    thought = None if reasoning is None else REASONING_FORMATS[reasoning]
    opens = Marker(own.told_by or own.syntax.opens[0]) if own.marked else None
    return OutputFormat(own, thought, opens, new_id=new_id)


def request(tool_choice: ToolChoice | None = "auto", *, covered: bool = False, **options: Any) -> GenerationRequest:
    """A conversation with two tools; `covered`: a grammar guarantees that calls are well formed."""
    grammar = Grammar("lark", "start: ", covers_tool_calls=True) if covered else None
    defaults: dict[str, Any] = {"parse_tool_calls": True, "parse_reasoning": True, "tool_choice": tool_choice}
    prompt = options.pop("prompt", ChatPrompt((USER,), TOOLS))
    return GenerationRequest("r", prompt, SamplingParams(grammar=grammar), **{**defaults, **options})


def parser(layout: OutputFormat | HarmonyOutput, prompt_text: str = "", *, covered: bool = False) -> TextParser:
    """A parser of that format."""
    made = layout.parser(request(covered=covered), prompt_text)
    assert made is not None
    return made


def pieces(text: str, cuts: Iterable[int]) -> list[str]:
    """The text cut at these positions."""
    edges = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [text[begin:end] for begin, end in pairwise(edges)]


def parsed(made: TextParser, texts: Sequence[str]) -> Output:
    """What the parser makes of these pieces; the deltas of a call must come in order, its id and name first and once."""
    contents, reasonings = [], []
    calls: list[list[ToolCallDelta]] = []
    for position, text in enumerate(texts):
        piece = made.push(text, is_last=position == len(texts) - 1)
        contents.append(piece.content)
        reasonings.append(piece.reasoning)
        for delta in piece.tool_calls:
            if delta.id is not None:
                assert delta.index == len(calls)
                calls.append([])
            assert delta.index == len(calls) - 1
            assert (delta.id is None) == (delta.name is None)
            calls[-1].append(delta)
    joined = [(own[0].id, own[0].name, "".join(delta.arguments for delta in own)) for own in calls]
    return Output("".join(contents), "".join(reasonings), joined)


def calls_of(output: Output) -> list[tuple[str | None, Any]]:
    """Name and decoded arguments of each call."""
    return [(name, json.loads(arguments)) for _, name, arguments in output.calls]
