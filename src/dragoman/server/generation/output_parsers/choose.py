"""Chooses the format of a model's output: by its chat template, or by the operator's option. Once per model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from dragoman.errors import ServerError
from dragoman.server.generation.output_parsers import harmony
from dragoman.server.generation.output_parsers.base import Marker
from dragoman.server.generation.output_parsers.json_formats import (
    COHERE,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    FUNCTIONARY,
    GIGACHAT3,
    GIGACHAT31,
    GRANITE,
    HERMES,
    HUNYUAN,
    KIMI_K2,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    NEMOTRON,
    PHI4,
    PLAIN_JSON,
)
from dragoman.server.generation.output_parsers.output_format import OutputFormat
from dragoman.server.generation.output_parsers.python_formats import LFM2, LLAMA4, OLMO3, PYTHONIC
from dragoman.server.generation.output_parsers.quoted_formats import GEMMA4
from dragoman.server.generation.output_parsers.reasoning import ReasoningFormat
from dragoman.server.generation.output_parsers.tagged_formats import (
    GLM45,
    MINIMAX_M2,
    MINIMAX_M3,
    QWEN3_CODER,
    SEED_OSS,
)
from dragoman.server.generation.output_parsers.tool_format import Marks, ToolFormat
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import ChatPrompt

AUTO = "auto"
NONE = "none"

TOOL_FORMATS: Mapping[str, ToolFormat] = {
    known.name: known
    for known in (
        *(HERMES, MISTRAL, MISTRAL_ARGS, LLAMA3, PLAIN_JSON, GRANITE, PHI4, HUNYUAN, COHERE),
        *(QWEN3_CODER, SEED_OSS, GLM45, MINIMAX_M2, MINIMAX_M3, KIMI_K2, DEEPSEEK_V3, DEEPSEEK_V31),
        *(FUNCTIONARY, GIGACHAT3, GIGACHAT31, NEMOTRON),
        *(PYTHONIC, LLAMA4, LFM2, OLMO3, GEMMA4),
    )
}
"""Tool call formats by the names that `option.tool_call_parser` takes; it also takes that of `harmony`."""

_THINK = ReasoningFormat("think", Marker("<think>"), Marker("</think>"))
REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    known.name: known
    for known in (
        _THINK,
        replace(_THINK, name="deepseek_r1", is_always_open=True),
        ReasoningFormat("magistral", Marker("[THINK]"), Marker("[/THINK]"), around_end=("", "")),
        ReasoningFormat(
            "seed_oss",
            Marker("<seed:think>"),
            Marker("</seed:think>"),
            around_end=("\n", "\n"),
            last_words="\n<seed:cot_budget_reflect>I have exhausted my token budget, and now I will start answering the "
            "question.</seed:cot_budget_reflect>",
        ),
        ReasoningFormat("minimax_m3", Marker("<mm:think>"), Marker("</mm:think>")),
        replace(_THINK, name="hunyuan_a13b", answer=(Marker("<answer>"), Marker("</answer>"))),
        replace(_THINK, name="ernie45", answer=(Marker("<response>"), Marker("</response>"))),
        ReasoningFormat(
            "granite", Marker("Here is my thought process:"), Marker("Here is my response:"), around_end=("\n\n", " ")
        ),
        ReasoningFormat("gemma4", Marker("<|channel>"), Marker("<channel|>"), label="thought", around_end=("\n", "")),
        ReasoningFormat(
            "cohere",
            Marker("<|START_THINKING|>"),
            Marker("<|END_THINKING|>"),
            answer=(Marker("<|START_RESPONSE|>"), Marker("<|END_RESPONSE|>")),
            around_end=("", ""),
        ),
    )
}
"""Reasoning formats by the names that `option.reasoning_parser` takes; it also takes that of `harmony`."""

# The signs of each format in a template with tools, in the order in which they are tried.
_TOOL_SIGNS: tuple[tuple[ToolFormat, tuple[str, ...]], ...] = (
    (KIMI_K2, ("<|tool_calls_section_begin|>",)),
    (GEMMA4, ("<|tool_call>", '<|"|>')),
    (DEEPSEEK_V3, ("<｜tool▁calls▁begin｜>", "```json")),
    (DEEPSEEK_V31, ("<｜tool▁calls▁begin｜>",)),
    (MISTRAL_ARGS, ("[TOOL_CALLS]", "[ARGS]")),
    (MISTRAL, ("[TOOL_CALLS]",)),
    (COHERE, ("<|START_ACTION|>",)),
    (MINIMAX_M3, ("]<]minimax[>[",)),
    (MINIMAX_M2, ("minimax:tool_call", "<invoke name=")),
    (GIGACHAT31, ("<|message_sep|>", "<|function_call|>")),
    (GIGACHAT3, ("<|message_sep|>", "function call")),
    (FUNCTIONARY, ("<function=", "</function>", "start_tag")),
    (GLM45, ("<tool_call>", "<arg_key>")),
    (SEED_OSS, ("seed:tool_call",)),
    (QWEN3_CODER, ("<tool_call>", "<function=", "<parameter=")),
    (PLAIN_JSON, ("<tool_call>", "<function=")),
    (PHI4, ("functools",)),
    (PHI4, ("<|/tool_call|>",)),
    (PHI4, ("<|tool|>",)),
    (GRANITE, ("<|tool_call|>",)),
    (GRANITE, ("<tool_call>\n[",)),
    (GRANITE, ("<tool_call>\\n[",)),  # within a string of the template
    (HUNYUAN, ("<tool_calls>",)),
    (NEMOTRON, ("<TOOLCALL>",)),
    (LFM2, ("<|tool_call_start|>",)),
    (LFM2, ("<|tool_list_start|>",)),
    (OLMO3, ("<function_calls>", "<functions>")),
    (LLAMA4, ("<|python_start|>",)),
    (LLAMA4, ("<|header_start|>", "[func_name1(")),
    (PYTHONIC, ("[func_name1(",)),
    (HERMES, ("<tool_call>",)),
    (LLAMA3, ("<|python_tag|>",)),
    (LLAMA3, ('"parameters"', '{"name"')),
)
# The text from which Qwen's models go on where their reasoning is cut off. Source: Qwen3 Technical Report, arXiv:2505.09388,
# 4.3.
_QWEN_SIGNS = ("<|im_start|>", "</think>", "last_query_index")
_QWEN_WORDS = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now."
)
_TOKEN_FORMATS = (KIMI_K2, DEEPSEEK_V31, LFM2, PHI4, LLAMA4)
_REASONING_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("seed_oss", ("seed:think",)),
    ("cohere", ("<|START_THINKING|>",)),
    ("magistral", ("[/THINK]",)),
    ("gemma4", ("<|channel>", "<channel|>")),
    ("minimax_m3", ("mm:think",)),
    ("think", ("</think>", "minimax:tool_call")),  # its results of tools stand between <response> and </response>
    ("hunyuan_a13b", ("</think>", "<answer>")),
    ("ernie45", ("</think>", "<response>")),
    ("think", ("</think>",)),
    ("granite", ("Here is my thought process:",)),
)


class NamedTokens(Protocol):
    def token_to_id(self, token: str) -> int | None: ...

    def is_special(self, token_id: int) -> bool:
        """True for control tokens, which are not part of the text."""
        ...


def choose_output_format(
    template: ChatTemplate | None,
    tokens: NamedTokens,
    tools: str = AUTO,
    reasoning: str = AUTO,
    is_control: Callable[[int], bool] | None = None,
) -> OutputFormat | harmony.HarmonyOutput:
    """Raises: KeyError for an unknown name. `is_control`: tokens that no text matches, None = the control tokens."""
    source = "" if template is None else "\n".join(template.sources.values())

    def mark(text: str) -> Marker:
        token_id = tokens.token_to_id(text)
        return Marker(text, token_id if token_id is not None and (is_control or tokens.is_special)(token_id) else None)

    if _is_harmony(source, tools, reasoning):
        known = Marks({text: mark(text) for text in harmony.MARKS})
        return harmony.HarmonyOutput(known, reads_calls=tools != NONE, reads_reasoning=reasoning != NONE)
    tool_format = recognise_tools(source, tokens) if tools == AUTO else _named_tools(tools, source)
    thought = recognise_reasoning(source) if reasoning == AUTO else _named_reasoning(reasoning, source)
    if thought is not None:
        thought = thought.with_marks(mark)
        is_opening = template is not None and _opens_reasoning(template, thought.begin.text)
        last_words = _QWEN_WORDS if thought.name == _THINK.name and _has(source, _QWEN_SIGNS) else thought.last_words
        thought = replace(thought, is_template_opening=is_opening, last_words=last_words)
    texts = tool_format.all_marks if tool_format is not None else ()
    marks = Marks({text: mark(text) for text in texts})
    opens = _opening(tool_format, marks, source) if tool_format is not None and tool_format.marked else None
    shown = (*marks.values(), *(thought.marks if thought is not None else ()))
    ids = frozenset(known.token_id for known in shown if known.token_id is not None)
    return OutputFormat(tool_format, thought, opens, ids, marks=marks)


def recognise_tools(template: str, tokens: NamedTokens) -> ToolFormat | None:
    """Plain JSON if the template has tools in some other form; Hermes' if it has none (`tokenizer.conversation`)."""
    if not template:
        return None
    if "tools" not in template:
        return HERMES
    taught = (known for known, signs in _TOOL_SIGNS if _has(template, signs))
    return next(taught, None) or next(filter(partial(_has_token, tokens), _TOKEN_FORMATS), PLAIN_JSON)


def recognise_reasoning(template: str) -> ReasoningFormat | None:
    return next((REASONING_FORMATS[name] for name, signs in _REASONING_SIGNS if _has(template, signs)), None)


def _has_token(tokens: NamedTokens, tool_format: ToolFormat) -> bool:
    ids = [tokens.token_to_id(text) for text in (*tool_format.syntax.opens[-1:], *tool_format.syntax.closes)]
    return all(token_id is not None and tokens.is_special(token_id) for token_id in ids)


def _has(template: str, signs: tuple[str, ...]) -> bool:
    return all(sign in template for sign in signs)


def _is_harmony(source: str, tools: str, reasoning: str) -> bool:
    if harmony.NAME in (tools, reasoning):
        return True
    is_free = {tools, reasoning} <= {AUTO, NONE} and AUTO in (tools, reasoning)
    return is_free and harmony.CHANNEL in source and harmony.MESSAGE in source


def _named_tools(name: str, source: str) -> ToolFormat | None:
    """Mistral's and GigaChat's formats have two notations, and the template shows which."""
    if name == MISTRAL.name and "[ARGS]" in source:
        return MISTRAL_ARGS
    if name == GIGACHAT3.name and "<|function_call|>" in source:
        return GIGACHAT31
    return None if name == NONE else TOOL_FORMATS[name]


def _named_reasoning(name: str, source: str) -> ReasoningFormat | None:
    """Granite's format has two notations as well."""
    if name == "granite" and "</think>" in source:
        return REASONING_FORMATS["ernie45"]
    return None if name == NONE else REASONING_FORMATS[name]


def _opening(tool_format: ToolFormat, marks: Marks, source: str) -> Marker:
    if tool_format.told_by:
        return marks[tool_format.told_by]
    opens = [marks[text] for text in tool_format.syntax.opens]
    written = [known for known in opens if known.text in source]
    return next(iter([*written, *(known for known in opens if known.token_id is not None), *opens]))


def _opens_reasoning(template: ChatTemplate, begin: str) -> bool:
    for kwargs in ({}, {"enable_thinking": True}, {"thinking": True}, {"thinking_mode": "enabled"}):
        prompt = ChatPrompt(({"role": "user", "content": "?"},), template_kwargs=kwargs)
        try:
            text = template.render(prompt)
        except ServerError:
            continue  # a template that does not take this conversation may still take others
        if text.rstrip().endswith(begin):
            return True
    return False
