"""Outputs of models, format by format, that parsers of other servers are tested with, and what becomes of them here."""

from __future__ import annotations

import json
from typing import Any

from dragoman.types import ChatPrompt
from tests.server.call_notations import NS
from tests.server.output_texts import USER, calls_of, output_format, parsed, request, tool
from tests.support.tables import table

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
CARD = {"type": "object", "properties": {"front": STRING, "back": STRING}, "required": ["front", "back"]}
TOOLS = (
    tool("say", text=STRING),
    tool("count", to=INTEGER, step=INTEGER),
    tool("learn", cards={"type": "array", "items": CARD}),
    tool("pay", amount={"type": "number"}, to=STRING),
    tool("now"),
)
Calls = list[tuple[str, dict[str, Any]]]
HI: Calls = [("say", {"text": "hi"})]
TO_3: Calls = [("count", {"to": 3})]


def coder(name: str, **values: str) -> str:
    """A call of Qwen3-Coder's, with values as they stand."""
    return f"<tool_call>\n{coder_inside(name, **values)}\n</tool_call>"


def coder_inside(name: str, **values: str) -> str:
    """The same without what is around it."""
    arguments = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<function={name}>\n{arguments}</function>"


def kimi(name: str, arguments: str, number: int = 0) -> str:
    """A call of Kimi K2's without its end and without the section."""
    return f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}"


def hermes(name: str, **arguments: Any) -> str:
    """A call of Hermes's."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


KIMI_OPEN, KIMI_END = "<|tool_calls_section_begin|>", "<|tool_call_end|><|tool_calls_section_end|>"
PROGRAM = 'def f(x="1"):\n    print("<b>")\n\nf()'


@table(
    ("tools", "thinks", "prompt_text", "text", "reasoning", "content", "calls"),
    [
        # Reasoning that the prompt begins, that the model begins once more, that is cut off, that is empty.
        ("hermes", "think", "<think>\n", "Hm.\n</think>\n\nYes.", "Hm.", "Yes.", []),
        ("hermes", "think", "<think>\n", "<think>Hm.</think>Yes.", "Hm.", "Yes.", []),
        ("hermes", "think", "<think>\n", "Hm, and", "Hm, and", "", []),
        ("hermes", "think", "", "<think></think>Yes.", "", "Yes.", []),
        ("hermes", "think", "<think></think>", f"I say.\n\n{hermes('say', text='hi')}", "", "I say.", HI),
        ("hermes", "deepseek_r1", "", "Hm.\nHm.</think>Yes.\nYes.", "Hm.\nHm.", "Yes.\nYes.", []),
        ("hermes", "magistral", "", "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes.", []),
        ("seed_oss", "seed_oss", "", "<seed:think>Hm.</seed:think>\nYes.", "Hm.", "Yes.", []),
        ("minimax_m3", "minimax_m3", "", "<mm:think>Hm.</mm:think>Yes.", "Hm.", "Yes.", []),
        ("minimax_m3", "minimax_m3", "", "</mm:think>Yes.", "", "Yes.", []),
        ("minimax_m3", "minimax_m3", "", "No</mm:think>Yes.", "", "No</mm:think>Yes.", []),
        # Calls before the reasoning has ended.
        ("qwen3_coder", "think", "<think>", f"I say.\n\n{coder('say', text='hi')}", "I say.", "", HI),
        ("qwen3_coder", "think", "", f"<think>I say.\n\n{coder('say', text='hi')}", "I say.", "", HI),
        ("qwen3_coder", "think", "<think>", f"I say.\n</think>\n\n{coder('say', text='hi')}", "I say.", "", HI),
        ("kimi_k2", "think", "", "<think>Two." + KIMI_OPEN + kimi("say", '{"text": "hi"}') + KIMI_END, "Two.", "", HI),
        (
            "kimi_k2", "think", "",
            "<think>Two." + kimi("say", '{"text": "hi"}') + kimi("count", '{"to": 3}', 1), "Two.", "", HI + TO_3,
        ),
        # Calls without what opens them, or what closes them.
        ("kimi_k2", None, "", kimi("pay", '{"amount": 1.5, "to": "/a"}'), "", "", [("pay", {"amount": 1.5, "to": "/a"})]),
        ("kimi_k2", None, "", "So." + KIMI_OPEN + kimi("now", "{}") + KIMI_END + "Done.", "", "So.\nDone.", [("now", {})]),
        ("qwen3_coder", None, "", coder_inside("count", to="3"), "", "", TO_3),
        ("qwen3_coder", None, "", f"So.\n{coder_inside('count', to='3')}\n</tool_call>", "", "So.", TO_3),
        ("hermes", None, "", hermes("say", text="hi").removesuffix("\n</tool_call>"), "", "", HI),
        # Values between tags: typed by the schema, whatever they look like.
        ("qwen3_coder", None, "", coder("count", step="-14", to="42555916"), "", "",
         [("count", {"step": -14, "to": 42555916})]),
        ("qwen3_coder", None, "", coder("say", text="5123"), "", "", [("say", {"text": "5123"})]),
        ("qwen3_coder", None, "", coder("say", text='"hi"'), "", "", [("say", {"text": '"hi"'})]),
        ("qwen3_coder", None, "", coder("say", text=""), "", "", [("say", {"text": ""})]),
        ("qwen3_coder", None, "", coder("say", text=PROGRAM), "", "", [("say", {"text": PROGRAM})]),
        ("qwen3_coder", None, "", coder("say", text="格"), "", "", [("say", {"text": "格"})]),
        ("qwen3_coder", None, "", coder("pay", amount="3.14", to="x"), "", "", [("pay", {"amount": 3.14, "to": "x"})]),
        ("qwen3_coder", None, "", coder("learn", cards='[{"front": "a", "back": "b"}]'), "", "",
         [("learn", {"cards": [{"front": "a", "back": "b"}]})]),
        # Values without an end: a line with the next argument that the tool has ends them, and so does the end of the call.
        ("qwen3_coder", None, "", "<tool_call>\n<function=pay>\n<parameter=amount>\n2\n<parameter=to>\nx\n</parameter>\n"
         "</function>\n</tool_call>", "", "", [("pay", {"amount": 2, "to": "x"})]),
        ("qwen3_coder", None, "", "<tool_call>\n<function=say>\n<parameter=text>\nhi\n</function>\n</tool_call>",
         "", "", HI),
        ("qwen3_coder", None, "", coder("say", text="\n<parameter=x>\n"), "", "", [("say", {"text": "\n<parameter=x>\n"})]),
        # A value that is no JSON stays a text, and the call a call.
        ("qwen3_coder", None, "", coder("learn", cards='[{"front": "a"}]}'), "", "",
         [("learn", {"cards": '[{"front": "a"}]}'})]),
        ("seed_oss", None, "", "<seed:tool_call>\n<function=count>\n<parameter=to>3</parameter>\n</function>\n"
         "</seed:tool_call>", "", "", TO_3),
        ("glm45", None, "", "<tool_call>count<arg_key>to</arg_key><arg_value>3</arg_value></tool_call>"
         "<tool_call>now</tool_call>", "", "", [*TO_3, ("now", {})]),
        ("minimax_m2", None, "", '<minimax:tool_call>\n<invoke name="count">\n<parameter name="to">3</parameter>\n'
         '</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>', "", "", [*TO_3, ("now", {})]),
        ("minimax_m3", None, "", f'{NS}<tool_call>\n{NS}<invoke name="learn">{NS}<cards>{NS}<item>{NS}<front>1{NS}</front>'
         f"{NS}<back>2{NS}</back>{NS}</item>{NS}</cards>{NS}</invoke>\n{NS}</tool_call>",
         "", "", [("learn", {"cards": [{"front": "1", "back": "2"}]})]),
        ("minimax_m3", None, "", f"So {NS}<tool_ca", "", f"So {NS}<tool_ca", []),
        ("gemma4", "gemma4", "", '<|channel>thought\nHm.<channel|>So.<|tool_call>call:count{to:3}<tool_call|>'
         "<|tool_call>call:now{}<tool_call|>", "Hm.", "So.", [*TO_3, ("now", {})]),
        ("gemma4", "gemma4", "", "<|channel>thoughts<channel|>"
         '<|tool_call>call:learn{cards:[{front:<|"|>{"<,|"}]<|"|>,back:None},{ "front" : "1\\"" , }]}<tool_call|>', "s", "",
         [("learn", {"cards": [{"front": '{"<,|"}]', "back": None}, {"front": '1"'}]})]),
        ("gemma4", None, "", "<|tool_call>call:count{to}<tool_call|>", "", "<|tool_call>call:count{to}<tool_call|>", []),
        # The others.
        ("functionary_v31", None, "", '<function=count>{"to": 3}</function>', "", "", TO_3),
        ("functionary_v31", None, "", '<function=count>{"to": 3}', "", "", TO_3),
        ("gigachat3", None, "", 'So.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "now", "arguments": {}}',
         "", "So.", [("now", {})]),
        ("gigachat31", None, "", 'So.<|function_call|>{"name": "now", "arguments": {}}', "", "So.", [("now", {})]),
        ("mistral_args", None, "", 'So.[TOOL_CALLS]count[ARGS]{"to": 3}[TOOL_CALLS]now[ARGS]{}', "", "So.",
         [*TO_3, ("now", {})]),
        ("mistral", None, "", '[TOOL_CALLS][{"arguments": {"to": 3}, "name": "count", "id": "123456789"}]', "", "", TO_3),
        ("phi4_mini_json", None, "", ' functools[{"name": "count", "arguments": {"to": 3}}]', "", "", TO_3),
        ("hunyuan_a13b", None, "", '<tool_calls>[{"name": "count", "arguments": {"to": 3}}]</tool_calls>', "", "", TO_3),
        ("lfm2", "think", "", "<think>Hm.</think>So.<|tool_call_start|>[count(to=3), now()]<|tool_call_end|>", "Hm.", "So.",
         [*TO_3, ("now", {})]),
        ("lfm2", None, "", "<|tool_call_start|>[say(text=\"a\\n  print('b')\")]<|tool_call_end|>", "", "",
         [("say", {"text": "a\n  print('b')"})]),
        ("deepseek_v3", "deepseek_r1", "", "Hm.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
         'count\n```json\n{"to": 3}```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', "Hm.", "", TO_3),
        ("cohere", "cohere", "", '<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", '
         '"tool_name": "count", "parameters": {"to": 3}}\n]<|END_ACTION|>', "Hm.", "", TO_3),
        # gpt-oss: recipients before and after the channel, on any channel, with or without a constraint.
        *(
            ("gpt_oss", None, "", head + '<|message|>{"to": 3}', "", "", TO_3)
            for head in (
                " to=functions.count<|channel|>analysis",
                " to=functions.count<|channel|>analysis <|constrain|>json",
                "<|channel|>analysis to=functions.count",
                "<|channel|>commentary to=functions.count ",
            )
        ),
        ("gpt_oss", None, "", "<|channel|>analysis<|message|>Hm.<|end|>\n<|channel|>final<|message|>Yes.",
         "Hm.", "Yes.", []),
        ("gpt_oss", None, "", "<|channel|>final<|message|><|end|><|start|>assistant<|channel|>analysis<|message|>Hm.",
         "Hm.", "", []),
        ("gpt_oss", None, "", ' to=functions.count<|channel|>analysis<|message|>{"to": 3}\n'
         "<|start|>assistant to=functions.now<|channel|>analysis<|message|>{}", "", "", [*TO_3, ("now", {})]),
        ("gpt_oss", None, "", "<|channel|>commentary to=functions.now <|constrain|>json<|message|>", "", "", [("now", {})]),
        ("gpt_oss", None, "", "<|channel|>commentary<|message|>I look.", "", "I look.", []),
    ],
)  # fmt: skip
def test_outputs_as_models_write_them(
    tools: str, thinks: str | None, prompt_text: str, text: str, reasoning: str, content: str, calls: Calls
) -> None:
    for texts in ([text], list(text), [text[: len(text) // 2], text[len(text) // 2 :], ""]):
        made = output_format(tools, thinks).parser(request(prompt=ChatPrompt((USER,), TOOLS)), prompt_text)
        assert made is not None
        output = parsed(made, texts)
        assert (output.reasoning, output.content, calls_of(output)) == (reasoning, content, calls)
