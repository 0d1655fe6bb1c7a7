"""What ends reasoning from outside is what the model's own end of it is: to the parser, and to every grammar."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.server.generation.output_parsers import OutputFormat, choose_output_format
from dragoman.server.generation.output_parsers.choose import REASONING_FORMATS
from dragoman.server.generation.output_parsers.harmony import HarmonyOutput
from dragoman.server.generation.output_parsers.reasoning import ThoughtMarks
from dragoman.server.generation.output_parsers.tool_format import Marks
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import ChatPrompt, GenerationRequest, Grammar, SamplingParams, TextPrompt, ToolChoice
from tests.server.output_texts import TOOLS, USER, calls_of, output_format, parsed, request
from tests.support.tables import table

pytest.importorskip("llguidance")

from tests.server.test_tool_grammars import Named, allows

THOUGHT = "Let me see. 1 < 2"
OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
DIGITS = Grammar("regex", "[0-9]{3}")


def asking(choice: ToolChoice | None = None, grammar: Grammar | None = None) -> GenerationRequest:
    """A conversation, with tools if there is a choice."""
    made = request(choice, prompt=ChatPrompt((USER,), TOOLS if choice else ()), parse_tool_calls=choice is not None)
    return msgspec.structs.replace(made, sampling=SamplingParams(grammar=grammar))


def ended(marks: ThoughtMarks, thought: str = THOUGHT) -> str:
    """An answer up to where its reasoning is ended."""
    return ("" if marks.is_open else marks.begin) + thought + marks.last_words + marks.closing


def formats() -> dict[str, OutputFormat | HarmonyOutput]:
    """Every format, some with marks that are control tokens."""
    made: dict[str, OutputFormat | HarmonyOutput] = {name: output_format("hermes", name) for name in REASONING_FORMATS}
    chosen = choose_output_format(None, Named(), "hermes", "cohere")
    return {**made, "cohere, control tokens": chosen, "gpt_oss": output_format("gpt_oss")}


FORMATS = formats()


@table("is_open", [True, False])
@table("name", [name for name in FORMATS if name != "gpt_oss"])
def test_parsers_and_grammars_take_it_for_the_models_own(name: str, is_open: bool) -> None:
    layout, has_tokens = FORMATS[name], "control" in name
    assert isinstance(layout, OutputFormat)
    assert layout.reasoning is not None
    prompt = f"?{layout.reasoning.begin.text}" if is_open else "?"
    marks = layout.thought_marks(asking(), prompt)
    assert marks is not None
    assert marks.is_open == is_open or layout.reasoning.is_always_open
    text = ended(marks)
    made = layout.parser(asking("auto"), prompt)
    assert made is not None
    found = parsed(made, [*f"{text}It is so.{OSLO}"])
    assert (found.reasoning, found.content) == ((THOUGHT + marks.last_words).strip(), "It is so.")
    assert calls_of(found) == [("weather", {"city": "Oslo"})]
    answers: tuple[tuple[ToolChoice | None, Grammar | None, str], ...] = (
        (None, DIGITS, "123"),
        ("auto", DIGITS, "123"),
        ("auto", DIGITS, OSLO),
        ("auto", None, "It is so."),
        ("auto", None, f"It is so.{OSLO}"),
        ("required", None, OSLO),
    )
    for choice, grammar, answer in answers:
        constraint = layout.constraint(asking(choice, grammar), prompt)
        assert allows(constraint, text + answer, has_tokens=has_tokens), (choice, grammar, answer)


@table(
    ("choice", "answers", "again"),
    [
        (None, ["It is so."], "It is so."),
        ("auto", ["<|channel|>final<|message|>It is so.",
                  ' to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{"city": "Oslo"}'], "It is so."),
        ("required", [' to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{"city": "Oslo"}'],
         'weather<|channel|>commentary <|constrain|>json<|message|>{"city": "Oslo"}'),
    ],
)  # fmt: skip
def test_gpt_oss_says_or_calls_something_next(choice: ToolChoice | None, answers: list[str], again: str) -> None:
    layout = FORMATS["gpt_oss"]
    prompt = "<|start|>user<|message|>?<|end|><|start|>assistant"
    asked = asking(choice)
    marks = layout.thought_marks(asked, prompt)
    assert marks is not None
    assert marks.recurs
    before = ended(marks)
    once_more = f"{before.removesuffix('<|channel|>final<|message|>')}<|channel|>analysis<|message|>{marks.reclosing}"
    for text in [*(before + answer for answer in answers), once_more + again]:
        made = layout.parser(asked, prompt)
        assert made is not None
        found = parsed(made, [*text])
        assert found.reasoning.strip() == THOUGHT
        assert found.content == "It is so." or calls_of(found) == [("weather", {"city": "Oslo"})]
        if choice is not None:
            assert allows(layout.constraint(asked, prompt), text), text
    assert layout.thought_marks(asked, f"{prompt}<|channel|>final<|message|>It") is None
    opened = layout.thought_marks(asked, f"{prompt}<|channel|>analysis<|message|>Hm")
    assert opened is not None
    assert opened.is_open


def test_a_call_within_the_reasoning_ends_it_where_calls_are_told_by_a_mark() -> None:
    found = (FORMATS["think"].thought_marks(asked, "?") for asked in (asking(), asking("auto")))
    assert [marks.ends for marks in found if marks] == [("</think>",), ("</think>", "<tool_call>")]


def test_a_text_that_is_no_conversation_tells_by_its_last_mark_whether_it_goes_on_thinking() -> None:
    def is_open(text: str) -> bool:
        marks = FORMATS["think"].thought_marks(GenerationRequest("r", TextPrompt(text)), text)
        assert marks is not None
        return marks.is_open

    texts = ("<think>Hm. ", "<think>Hm.</think>So", "<think>Hm.</think>So\n<think>", "So")
    assert [is_open(text) for text in texts] == [True, False, True, False]


def test_nothing_is_ended_where_the_template_has_ended_it_or_nobody_looks_for_it() -> None:
    assert FORMATS["think"].thought_marks(asking(), "?<think>\n\n</think>\n\n") is None
    assert output_format("hermes").thought_marks(asking(), "?<think>") is None
    unread = HarmonyOutput(Marks(), reads_reasoning=False)
    assert unread.thought_marks(asking(), "<|start|>assistant") is None


@table(
    ("source", "words"),
    [
        ("{# <|im_start|> </think> #}{{ ns.last_query_index }}", "Considering the limited time by the user"),
        ("{# <|im_start|> </think> #}", ""),
        ("{# <seed:think> </seed:think> #}", "I have exhausted my token budget"),
    ],
)
def test_families_that_were_trained_to_answer_from_a_sentence_get_it(source: str, words: str) -> None:
    layout: Any = choose_output_format(ChatTemplate(source, is_vouched=True), Named())
    marks = layout.thought_marks(asking(), layout.reasoning.begin.text)
    assert words in marks.last_words
    assert bool(words) == bool(marks.last_words)
