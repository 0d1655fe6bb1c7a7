"""Which format a model is taken to write, and how the service applies it: control tokens shown, grammars compiled or not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dragoman.config.engine_options import OPTIONS
from dragoman.config.kinds import Choice
from dragoman.errors import InvalidParameter, UnsupportedFeature
from dragoman.grammar.compiler import GrammarCompiler
from dragoman.grammar.masker import Vocabulary
from dragoman.server.generation.extensions import Extensions
from dragoman.server.generation.output_parsers import (
    AUTO,
    NONE,
    REASONING_FORMATS,
    TOOL_FORMATS,
    OutputFormat,
    choose_output_format,
    harmony,
)
from dragoman.server.generation.output_parsers.base import Marker
from dragoman.server.generation.output_parsers.reasoning import Opening
from dragoman.server.generation.service import Service
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import ChatPrompt, GenerationRequest, GenerationResult, Grammar, SamplingParams, ToolChoice
from tests.server.output_texts import USER, request, tool
from tests.support.byte_tokenizer import EOS_ID, FIM_IDS, VOCAB_SIZE, ByteTokenizer
from tests.support.fake_engine import ABILITIES, FakeEngine, saying
from tests.support.tables import table
from tests.tokenizer.conversations import FOLDER, SPECIAL_TOKENS

TOOL_LOOP = "{% for tool in tools or [] %}{{ tool }}{% endfor %}"
HERMES = TOOL_LOOP + "<tool_call>{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
OPENED_BY_MODEL = "{# </think> #}"
OPENED_BY_TEMPLATE = "{% if enable_thinking %}<think>\n{% endif %}" + OPENED_BY_MODEL
MISTRAL = HERMES.replace("<tool_call>", "[TOOL_CALLS]")


class Tokens:
    """Control tokens by their text; every other token is ordinary."""

    def __init__(self, **special: int) -> None:
        self._special = special

    def token_to_id(self, token: str) -> int | None:
        return self._special.get(token.strip("<>[]/|"), 3)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special.values()


@table(
    ("template", "tools", "reasoning"),
    [
        (HERMES, "hermes", None),
        (HERMES + "{{ '</think>' }}", "hermes", "think"),
        (MISTRAL, "mistral", None),
        (MISTRAL + "[THINK][/THINK]", "mistral", "magistral"),
        (TOOL_LOOP + "<|python_tag|>", "llama3_json", None),
        (TOOL_LOOP + '{{ \'{"name": function name, "parameters": \' }}', "llama3_json", None),
        (HERMES + "<function=", "json", None),
        (TOOL_LOOP, "json", None),
        # MiniMax M2, whose results of tools look like the answers of ERNIE 4.5.
        (
            TOOL_LOOP + '<minimax:tool_call><invoke name="f">{# <response></response> #}</think>',
            "minimax_m2",
            "think",
        ),
        (TOOL_LOOP + "{% set ns = ']<]minimax[>[' %}{{ '</mm:think>' }}", "minimax_m3", "minimax_m3"),
        (
            TOOL_LOOP + """<|tool_call>call:f{a:<|"|>b<|"|>}<tool_call|>{{ '<|channel>thought<channel|>' }}""",
            "gemma4",
            "gemma4",
        ),
        (TOOL_LOOP + '<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>', "nemotron_json", None),
        # Granite 4, Falcon H1 and its tiny ones, Jamba, Nemotron 3, LFM2.5.
        (TOOL_LOOP + '<tool_call>\n{"name": <function-name>, "arguments": {}}\n</tool_call>', "hermes", None),
        (TOOL_LOOP + "{{ '<tool_call>\\n{\\'arguments\\': <args-dict>}\\n</tool_call>' }}", "hermes", None),
        (TOOL_LOOP + '<tool_call>\n[\n  {"name": "f", "arguments": {}}\n]\n</tool_call>', "granite", None),
        (TOOL_LOOP + "{{ '<tool_call>\\n[\\n]\\n</tool_call>' }}", "granite", None),
        (TOOL_LOOP + '{{ \'<tool_calls>[{"name": "f"}]</tool_calls>\' }}', "hunyuan_a13b", None),
        (TOOL_LOOP + "<tool_call>\n<function=f>\n<parameter=a>\n{# <think></think> #}", "qwen3_coder", "think"),
        (TOOL_LOOP + "{{ 'List of tools: <|tool_list_start|>[' }}{# </think> #}", "lfm2", "think"),
        # GigaChat 3 and 3.1: the words of the prompt and the names of roles.
        (TOOL_LOOP + "function call{{ '<|role_sep|>' }}{{ '<|message_sep|>' }}\"name\"", "gigachat3", None),
        (TOOL_LOOP + "{{ '<|message_sep|>' }}{{ '<|function_call|>' }}", "gigachat31", None),
        # Functionary 3.1, which knows Llama's mark as well.
        (
            TOOL_LOOP + "start_tag => `<function` <function=f>{}</function> {{ '<|python_tag|>' }}",
            "functionary_v31",
            None,
        ),
        # What has no place for tools is told of them in messages, in this form.
        ("no tools".replace("tools", "t") + "</think>", "hermes", "think"),
        ("{{ messages }}", "hermes", None),
        (None, None, None),
    ],
)
def test_the_chat_template_tells_the_formats(template: str | None, tools: str | None, reasoning: str | None) -> None:
    found = choose_output_format(None if template is None else ChatTemplate(template), Tokens())
    assert found.names == (tools, reasoning)


@table(
    ("family", "tools", "reasoning"),
    [
        ("command_r7b", "cohere", "cohere"),
        ("deepseek_v3", "deepseek_v3", "think"),
        ("deepseek_v31", "deepseek_v31", "think"),
        ("ernie45", "hermes", None),
        ("exaone4", "hermes", "think"),
        ("gemma2", "hermes", None),
        ("gemma3", "hermes", None),
        ("glm4", "json", None),
        ("glm45", "glm45", "think"),
        ("gpt_oss", "gpt_oss", "gpt_oss"),
        ("granite", "granite", "ernie45"),
        ("hunyuan", "hunyuan_a13b", "hunyuan_a13b"),
        ("kimi_k2", "kimi_k2", None),
        ("lfm2", "lfm2", None),
        ("llama3", "llama3_json", None),
        ("mistral", "mistral", None),
        ("mistral_v11", "mistral_args", "magistral"),
        ("olmo3", "olmo3", None),
        ("phi3", "hermes", None),
        ("phi4_mini", "phi4_mini_json", None),
        ("qwen3", "hermes", "think"),
        ("qwen3_coder", "qwen3_coder", None),
        ("seed_oss", "seed_oss", "seed_oss"),
        ("smollm3", "hermes", "think"),
    ],
)
def test_the_families_templates_tell_their_formats(family: str, tools: str | None, reasoning: str | None) -> None:
    text = (FOLDER / f"{family}.jinja").read_text(encoding="utf-8")
    assert choose_output_format(ChatTemplate(text, special_tokens=SPECIAL_TOKENS), Tokens()).names == (tools, reasoning)


def test_a_control_token_tells_a_format_that_the_template_does_not() -> None:
    class Lfm(Tokens):
        def token_to_id(self, token: str) -> int | None:
            return {"<|tool_call_start|>": 8, "<|tool_call_end|>": 9}.get(token, 3)

    assert choose_output_format(ChatTemplate(TOOL_LOOP), Lfm(x=8, y=9)).names == ("lfm2", None)
    assert choose_output_format(ChatTemplate(HERMES), Lfm(x=8, y=9)).names == ("hermes", None)


def test_the_operator_chooses_by_name_or_chooses_none() -> None:
    template = ChatTemplate(HERMES + "{{ '</think>' }}")
    for tools in TOOL_FORMATS:
        for reasoning in REASONING_FORMATS:
            found = choose_output_format(template, Tokens(), tools, reasoning)
            assert found.names == (tools, "ernie45" if reasoning == "granite" else reasoning)
    plain = choose_output_format(ChatTemplate(TOOL_LOOP), Tokens(), "mistral", "granite")
    assert plain.names == ("mistral", "granite")
    newer = choose_output_format(ChatTemplate(TOOL_LOOP + "[ARGS]"), Tokens(), "mistral")
    assert newer.names == ("mistral_args", None)
    newer = choose_output_format(ChatTemplate(TOOL_LOOP + "{{ '<|function_call|>' }}"), Tokens(), "gigachat3")
    assert newer.names == ("gigachat31", None)
    for tools, reasoning in ((harmony.NAME, AUTO), (AUTO, harmony.NAME), (harmony.NAME, "think")):
        assert choose_output_format(template, Tokens(), tools, reasoning).names == (harmony.NAME, harmony.NAME)
    none = choose_output_format(template, Tokens(), NONE, NONE)
    assert none.names == (None, None)
    assert none.parser(request(), "") is None


@table(("option", "formats"), [("tool_call_parser", TOOL_FORMATS), ("reasoning_parser", REASONING_FORMATS)])
def test_the_options_name_every_format(option: str, formats: Mapping[str, object]) -> None:
    (row,) = [one.row for one in OPTIONS if one.name == option]
    assert isinstance(row.kind, Choice)
    assert set(row.kind.words) == {AUTO, NONE, *formats, harmony.NAME}
    with pytest.raises(ValueError, match="unheard_of"):
        row.kind.parse("unheard_of")


def test_marks_that_are_control_tokens_are_known_by_their_id() -> None:
    found = choose_output_format(ChatTemplate(MISTRAL + "[THINK][/THINK]"), Tokens(TOOL_CALLS=9, THINK=8))
    assert isinstance(found, OutputFormat)
    assert found.opens == Marker("[TOOL_CALLS]", 9)
    assert found.marker_ids == {8, 9}
    hermes = choose_output_format(ChatTemplate(HERMES), Tokens())
    assert isinstance(hermes, OutputFormat)
    assert hermes.opens == Marker("<tool_call>")
    control = choose_output_format(ChatTemplate(HERMES), Tokens(), is_control=lambda token_id: token_id == 3)
    assert isinstance(control, OutputFormat)
    assert control.opens == Marker("<tool_call>", 3)


@table(
    ("ending", "prompt_text", "opening"),
    [
        (OPENED_BY_TEMPLATE, "[user]", "closed"),
        (OPENED_BY_TEMPLATE, "[user]<think>\n", "open"),
        (OPENED_BY_MODEL, "[user]", "maybe"),
        (OPENED_BY_MODEL, "[user]<think>\n\n</think>\n\n", "closed"),
    ],
)
def test_prompts_tell_where_the_reasoning_begins(ending: str, prompt_text: str, opening: Opening) -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}" + ending)
    found = choose_output_format(template, Tokens())
    assert isinstance(found, OutputFormat)
    assert found.reasoning is not None
    assert found.reasoning.opening(prompt_text) == opening


@table(("said", "opening"), [("<think>Hm", "open"), ("<think>Hm</think>Ye", "closed"), ("Ye", "maybe")])
def test_a_continued_message_tells_where_its_reasoning_stands(said: str, opening: Opening) -> None:
    assert REASONING_FORMATS["think"].opening(f"[assistant]{said}", said) == opening


def test_ids_are_never_the_same_and_have_the_templates_form() -> None:
    ids = {one.name: [one.new_id() for _ in range(100)] for one in TOOL_FORMATS.values()}
    assert all(len(set(own)) == 100 for own in ids.values())
    assert all(len(own) == 9 and own.isalnum() for own in ids["mistral"])
    assert all(own.startswith("call_") for own in ids["hermes"] + ids["llama3_json"])


# --- in the service ---------------------------------------------------------------------------------------------------

MARK = FIM_IDS.prefix  # a control token of the byte tokenizer, <|pre|>


def compiler(grammars: list[Grammar] | None = None) -> Any:
    """The real compiler over bytes; notes what it compiled."""
    tokens = [ByteTokenizer().token_bytes(token_id) for token_id in range(VOCAB_SIZE)]
    real = GrammarCompiler(Vocabulary(tokens, frozenset(range(256, VOCAB_SIZE)), EOS_ID))

    def compile_grammar(grammar: Grammar) -> Any:
        if grammars is not None:
            grammars.append(grammar)
        return real.compile(grammar)

    return compile_grammar


def answer(
    asked: GenerationRequest,
    text: str | Sequence[int],
    template: str = HERMES,
    can_mask: bool = True,
    kinds: frozenset[str] | None = None,
    **extensions: Any,
) -> GenerationResult:
    """What a service with that template makes of the text."""
    output = choose_output_format(ChatTemplate(template), Tokens(TOOL_CALLS=MARK))
    script = saying(text) if isinstance(text, str) else lambda request, index: list(text)
    engine = FakeEngine(script, capabilities=replace(ABILITIES, grammar=can_mask, grammar_kinds=kinds))
    service = Service(
        name="m",
        engine=engine,
        tokenizer=ByteTokenizer(),
        chat_template=ChatTemplate(template),
        extensions=Extensions(
            **{
                "compile_grammar": compiler(),
                "make_parser": output.parser,
                "marker_ids": output.marker_ids,
                "constrain": output.constraint,
                **extensions,
            }
        ),
    )
    return asyncio.run(service.generate(asked))


OSLO_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@table(("choice", "called"), [("auto", ""), ("required", ""), ("named", "weather")])
def test_the_engine_gets_a_grammar_and_the_client_gets_calls(choice: ToolChoice, called: str) -> None:
    grammars: list[Grammar] = []
    result = answer(request(choice, called_tool=called), OSLO_CALL, compile_grammar=compiler(grammars))
    (sequence,) = result.sequences
    assert [(call.name, call.arguments) for call in sequence.tool_calls] == [("weather", '{"city": "Oslo"}')]
    assert (sequence.content, sequence.text) == ("", OSLO_CALL)
    assert [grammar.covers_tool_calls for grammar in grammars] == [True]


@table("tools", [(), (tool("f"),)], ids=["no tools", "tools"])
def test_a_form_behind_reasoning_that_has_begun_is_refused_where_no_grammar_has_a_frame(tools: Any) -> None:
    """An engine that follows the form alone would have to reason in it."""
    sampling = SamplingParams(grammar=Grammar("json_object"))

    def ask(kinds: frozenset[str] | None, **kwargs: Any) -> GenerationResult:
        prompt = ChatPrompt((USER,), tools, template_kwargs=kwargs)
        asked = msgspec.structs.replace(request("auto", prompt=prompt), sampling=sampling)
        return answer(asked, 'So.</think>{"a": 1}', HERMES + OPENED_BY_TEMPLATE, kinds=kinds)

    plain = frozenset({"json_object"})
    with pytest.raises(UnsupportedFeature, match=r"^a grammar behind reasoning is not supported") as caught:
        ask(plain, enable_thinking=True)
    assert caught.value.param == "response_format"
    assert ask(None, enable_thinking=True).sequences[0].content == '{"a": 1}'
    assert ask(plain).sequences


def test_every_sequence_of_a_request_has_its_own_calls() -> None:
    asked = msgspec.structs.replace(request("auto"), sampling=SamplingParams(n=3))
    calls = [sequence.tool_calls for sequence in answer(asked, OSLO_CALL).sequences]
    assert [len(own) for own in calls] == [1, 1, 1]
    assert len({own[0].id for own in calls}) == 3


def test_a_mark_that_is_a_control_token_is_seen_although_control_tokens_are_hidden() -> None:
    class Named(ByteTokenizer):
        def token_bytes(self, token_id: int, *, at_start: bool = False) -> bytes:
            return b"[TOOL_CALLS]" if token_id == MARK else super().token_bytes(token_id)

    output = choose_output_format(ChatTemplate(MISTRAL), Tokens(TOOL_CALLS=MARK))
    script = [*b"Wait.", MARK, *b'[{"name": "add", "arguments": {"a": 1}}]']
    service = Service(
        name="m",
        engine=FakeEngine(lambda request, index: script),
        tokenizer=Named(),
        chat_template=ChatTemplate(MISTRAL),
        extensions=Extensions(make_parser=output.parser, marker_ids=output.marker_ids),
    )
    (sequence,) = asyncio.run(service.generate(request("auto"))).sequences
    assert (sequence.content, [call.name for call in sequence.tool_calls]) == ("Wait.", ["add"])
    plain = msgspec.structs.replace(request(None), parse_tool_calls=False, parse_reasoning=False)
    (sequence,) = asyncio.run(service.generate(plain)).sequences
    assert sequence.content.startswith("Wait.[{")


def test_the_tokens_that_end_a_harmony_answer_do_not_end_its_messages() -> None:
    class Named(Tokens):
        def token_to_id(self, token: str) -> int | None:
            return {"<|return|>": 7, "<|call|>": 8, "<|end|>": 9}.get(token)

    text = (FOLDER / "gpt_oss.jinja").read_text(encoding="utf-8")
    found = choose_output_format(ChatTemplate(text), Named(a=7, b=8, c=9))
    assert isinstance(found, harmony.HarmonyOutput)
    assert found.end_ids == {7, 8}
    assert found.marker_ids == {7, 8, 9}


def test_tools_whose_schema_does_not_compile_are_refused_only_if_they_must_be_called() -> None:
    broken = tool("f", a={"type": "integer", "minimum": 5, "maximum": 2})
    prompt = ChatPrompt((USER,), (tool("g"), broken))
    with pytest.raises(InvalidParameter) as caught:
        answer(request("required", prompt=prompt), "x")
    assert caught.value.param == "tools"
    assert caught.value.message == (
        "tools cannot be called as tool_choice required asks: tool f: the json_schema grammar does not compile: "
        "at $.properties.a: no value can match: minimum (5) is greater than maximum (2)"
    )
    text = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    (sequence,) = answer(request("auto", prompt=prompt), text).sequences
    assert [call.arguments for call in sequence.tool_calls] == ['{"a": 1}']


def test_an_engine_without_grammars_still_serves_free_choices() -> None:
    (sequence,) = answer(request("auto"), OSLO_CALL, can_mask=False).sequences
    assert len(sequence.tool_calls) == 1
    with pytest.raises(UnsupportedFeature, match="tool_choice required is not supported"):
        answer(request("required"), OSLO_CALL, can_mask=False)


def test_without_tools_the_text_is_left_alone() -> None:
    asked = request(None, prompt=ChatPrompt((USER,)), parse_tool_calls=False)
    (sequence,) = answer(asked, OSLO_CALL).sequences
    assert (sequence.content, sequence.tool_calls) == (OSLO_CALL, ())
