"""Chooses how a model's output is read: by its chat template, or as the operator says.

Does: recognise formats, find their control tokens. Does not: parse. Called by the composition root, once per model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from dragoman.errors import ServerError
from dragoman.server.generation.output_parsers.base import Marker
from dragoman.server.generation.output_parsers.hermes import Hermes
from dragoman.server.generation.output_parsers.llama3 import PLAIN_JSON, Llama3
from dragoman.server.generation.output_parsers.mistral import Mistral
from dragoman.server.generation.output_parsers.output_format import OutputFormat
from dragoman.server.generation.output_parsers.reasoning import ReasoningFormat
from dragoman.server.generation.output_parsers.tool_format import ToolFormat
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import ChatPrompt

AUTO = "auto"
NONE = "none"

TOOL_FORMATS: Mapping[str, ToolFormat] = {one.name: one for one in (Hermes(), Mistral(), Llama3(), PLAIN_JSON)}
"""Tool call formats by the names that `option.tool_call_parser` takes."""

_THINK = ReasoningFormat("think", Marker("<think>"), Marker("</think>"))
REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "think": _THINK,
    "deepseek_r1": replace(_THINK, name="deepseek_r1", is_always_open=True),
    "magistral": ReasoningFormat("magistral", Marker("[THINK]"), Marker("[/THINK]")),
}
"""Reasoning formats by the names that `option.reasoning_parser` takes."""


class NamedTokens(Protocol):
    """What has to be known of a tokenizer."""

    def token_to_id(self, token: str) -> int | None:
        """The id of a token by its text, None if there is none."""
        ...

    def is_special(self, token_id: int) -> bool:
        """True for control tokens, which are not part of the text."""
        ...


def choose_output_format(
    template: ChatTemplate | None, tokens: NamedTokens, tools: str = AUTO, reasoning: str = AUTO
) -> OutputFormat:
    """How the output of the model with this template is read. Raises: KeyError for an unknown name."""
    source = "" if template is None else "\n".join(template.sources.values())
    tool_format = recognise_tools(source) if tools == AUTO else TOOL_FORMATS[tools] if tools != NONE else None
    thought = (
        recognise_reasoning(source)
        if reasoning == AUTO
        else REASONING_FORMATS[reasoning]
        if reasoning != NONE
        else None
    )
    if thought is not None:
        begin, end = (_marker(one.text, tokens) for one in (thought.begin, thought.end))
        is_opening = template is not None and _opens_reasoning(template, begin.text)
        thought = replace(thought, begin=begin, end=end, is_template_opening=is_opening)
    opens = _marker(tool_format.opens, tokens) if tool_format and tool_format.opens else None
    syntax_opens = _marker(tool_format.syntax.opens, tokens) if tool_format else None
    marks = (syntax_opens, *((thought.begin, thought.end) if thought else ()))
    ids = frozenset(mark.token_id for mark in marks if mark is not None and mark.token_id is not None)
    return OutputFormat(tool_format, thought, opens, ids)


def recognise_tools(template: str) -> ToolFormat | None:
    """The format that a chat template teaches; plain JSON if it has tools in some other form, None if it has none."""
    if "tools" not in template:
        return None
    if "[TOOL_CALLS]" in template:
        return TOOL_FORMATS["mistral"]
    if "<tool_call>" in template and "<function=" not in template:
        return TOOL_FORMATS["hermes"]
    if "<|python_tag|>" in template or ('"parameters"' in template and '{"name"' in template):
        return TOOL_FORMATS["llama3_json"]
    return PLAIN_JSON


def recognise_reasoning(template: str) -> ReasoningFormat | None:
    """The reasoning marks that a chat template knows, None if it knows none."""
    if "</think>" in template:
        return REASONING_FORMATS["think"]
    return REASONING_FORMATS["magistral"] if "[/THINK]" in template else None


def _marker(text: str, tokens: NamedTokens) -> Marker:
    token_id = tokens.token_to_id(text)
    return Marker(text, token_id if token_id is not None and tokens.is_special(token_id) else None)


def _opens_reasoning(template: ChatTemplate, begin: str) -> bool:
    """Whether a prompt can end with the mark that begins the reasoning."""
    for kwargs in ({}, {"enable_thinking": True}, {"thinking": True}):
        prompt = ChatPrompt(({"role": "user", "content": "?"},), template_kwargs=kwargs)
        try:
            text = template.render(prompt)
        except ServerError:
            continue  # a template that does not take this conversation may still take others
        if text.rstrip().endswith(begin):
            return True
    return False
