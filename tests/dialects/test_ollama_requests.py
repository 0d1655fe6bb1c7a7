"""What Ollama's bodies mean in neutral words, and what is refused or has no effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dragoman.errors import InvalidRequest
from dragoman.server.api import Call
from dragoman.server.apis.ollama.models import meant, tagged
from dragoman.server.apis.ollama.request import IGNORED_OPTIONS
from dragoman.types import Grammar, SamplingParams
from tests.dialects.ollama_calls import (
    PIXEL,
    able_profile,
    chat,
    conversation,
    dialect_for,
    generate,
    http_call,
    only_request,
    text,
)
from tests.support.real_dialects import fake_profile
from tests.support.tables import table

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
BOTH = table("ask", [generate, chat])
Ask = Callable[..., Call]


def sampling(call: Call) -> SamplingParams:
    return only_request(call).sampling


def refusal(ask: Ask, **body: Any) -> tuple[str | None, str]:
    with pytest.raises(InvalidRequest) as caught:
        ask(**body)
    return caught.value.param, caught.value.message


# --- options ----------------------------------------------------------------------------------------------------------


@BOTH
def test_without_options_ollamas_defaults_hold(ask: Ask) -> None:
    params = sampling(ask())
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.9, 0.0)
    assert (params.repetition_penalty, params.seed) == (1.0, None)
    assert only_request(ask()).max_tokens is None
    assert only_request(ask()).on_overflow == "clip"


@BOTH
def test_the_models_own_defaults_come_before_ollamas(ask: Ask) -> None:
    profile = able_profile(generation_defaults={"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05})
    params = sampling(ask(profile))
    assert (params.temperature, params.top_k, params.top_p, params.repetition_penalty) == (0.6, 20, 0.9, 1.05)
    assert sampling(ask(profile, options={"temperature": 0.1})).temperature == 0.1
    seeded = able_profile(generation_defaults={"seed": 7})
    assert [sampling(ask(seeded, options=one)).seed for one in ({}, {"seed": 3}, {"seed": -1})] == [7, 3, None]


@BOTH
@table(
    ("name", "value", "neutral", "expected"),
    [
        ("temperature", 0.3, "temperature", 0.3),
        ("temperature", "0.3", "temperature", 0.3),
        ("top_k", 7, "top_k", 7),
        ("top_k", -1, "top_k", 0),
        ("top_p", 0.5, "top_p", 0.5),
        ("top_p", 0, "top_p", 1e-9),
        ("min_p", 0.1, "min_p", 0.1),
        ("typical_p", 0.7, "typical_p", 0.7),
        ("repeat_penalty", 1.3, "repetition_penalty", 1.3),
        ("presence_penalty", 0.5, "presence_penalty", 0.5),
        ("frequency_penalty", -0.5, "frequency_penalty", -0.5),
        ("seed", 42, "seed", 42),
        ("seed", 0, "seed", 0),
        ("seed", -1, "seed", None),
    ],
)
def test_every_option_has_its_effect(ask: Ask, name: str, value: Any, neutral: str, expected: Any) -> None:
    call = ask(options={name: value})
    assert getattr(sampling(call), neutral) == expected
    assert call.ignored == ()


@BOTH
def test_penalties_that_look_at_no_token_are_off(ask: Ask) -> None:
    penalties = {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5}
    params = sampling(ask(options={**penalties, "repeat_last_n": 0}))
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    call = ask(options={**penalties, "repeat_last_n": -1})
    assert (sampling(call).repetition_penalty, call.ignored) == (1.3, ())
    assert ask(options={"repeat_last_n": 64}).ignored == ()
    assert ask(options={**penalties, "repeat_last_n": 64}).ignored == ("options.repeat_last_n",)


@BOTH
@table(("wanted", "limit"), [(5, 5), (-1, None), (-2, None), (0, None), (None, None)])
def test_num_predict_limits_the_answer(ask: Ask, wanted: int | None, limit: int | None) -> None:
    assert only_request(ask(options={"num_predict": wanted})).max_tokens == limit


@BOTH
@table(("stop", "expected"), [("x", ("x",)), (["a", "b"], ("a", "b")), ([], ()), (None, ())])
def test_stop_is_a_text_or_several(ask: Ask, stop: Any, expected: tuple[str, ...]) -> None:
    assert only_request(ask(options={"stop": stop})).stop == expected


@BOTH
def test_options_without_effect_are_named_with_their_reasons(ask: Ask) -> None:
    call = ask(options={**dict.fromkeys(IGNORED_OPTIONS, 2), "made_up": 1})
    assert call.ignored == (*(f"options.{name}" for name in IGNORED_OPTIONS), "options.made_up")
    assert [name for name, why in call.idle.items() if not why] == ["options.made_up"]


@BOTH
def test_options_that_ask_for_nothing_are_not_named(ask: Ask) -> None:
    assert ask(options={"mirostat": 0, "tfs_z": 1.0, "num_ctx": None}).ignored == ()


@BOTH
def test_filters_are_named_where_nothing_is_drawn(ask: Ask) -> None:
    call = ask(options={"temperature": 0, "top_k": 5, "top_p": 0.5})
    assert call.ignored == ("options.top_k", "options.top_p")


@BOTH
@table(
    ("name", "value", "allowed"),
    [
        ("temperature", -1, "at least 0.0"),
        ("temperature", "hot", "a number"),
        ("top_k", 1.5, "an integer"),
        ("top_p", 2, "between 0.0 and 1.0"),
        ("min_p", -0.1, "between 0.0 and 1.0"),
        ("typical_p", 0, "greater than 0.0"),
        ("repeat_penalty", 0, "greater than 0.0"),
        ("repeat_last_n", -2, "between -1 and 4294967295"),
        ("num_predict", -3, "between -2 and 4294967295"),
        ("num_keep", -2, "between -1 and 4294967295"),
        ("presence_penalty", 3, "between -2.0 and 2.0"),
        ("frequency_penalty", -3, "between -2.0 and 2.0"),
        ("seed", "x", "an integer"),
        ("stop", [""], "non-empty strings"),
        ("stop", 5, "a string or an array"),
    ],
)
def test_a_bad_option_is_refused_by_name(ask: Ask, name: str, value: Any, allowed: str) -> None:
    param, message = refusal(ask, options={name: value})
    assert (param or "").startswith(f"options.{name}")
    assert allowed in message
    assert "got" in message


# --- what both read ---------------------------------------------------------------------------------------------------


@BOTH
def test_answers_are_streamed_unless_they_are_not_to_be(ask: Ask) -> None:
    assert [ask().stream, ask(stream=None).stream, ask(stream=True).stream, ask(stream=False).stream] == [
        True,
        True,
        True,
        False,
    ]


@BOTH
@table(
    ("value", "expected"),
    [
        (None, None),
        ("", None),
        ("json", Grammar("json_object")),
        (
            SCHEMA,
            Grammar("json_schema", '{"type":"object","properties":{"age":{"type":"integer"}},"required":["age"]}'),
        ),
    ],
)
def test_format_constrains_the_answer(ask: Ask, value: Any, expected: Grammar | None) -> None:
    assert sampling(ask(format=value)).grammar == expected


@BOTH
@table("value", ["xml", 5, {"type": "strange"}])
def test_a_bad_format_is_refused(ask: Ask, value: Any) -> None:
    param, message = refusal(ask, format=value)
    assert param == "format"
    assert message.startswith("format must be")


@BOTH
@table(
    ("think", "kwargs"),
    [
        (None, {}),
        (False, {"enable_thinking": False, "thinking": False}),
        (True, {"enable_thinking": True, "thinking": True}),
        ("high", {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_think_reaches_the_template(ask: Ask, think: Any, kwargs: dict[str, Any]) -> None:
    call = ask(think=think)
    assert conversation(call).template_kwargs == kwargs
    assert only_request(call).parse_reasoning


@BOTH
def test_thinking_is_refused_where_the_model_does_not(ask: Ask) -> None:
    profile = able_profile(abilities=frozenset({"chat"}))
    assert refusal(ask, profile=profile, think=True) == (
        "think",
        "think is not supported: model fake does not support thinking",
    )
    assert ask(profile, think=False).ignored == ()
    assert refusal(ask, think="a lot")[1] == 'think must be true, false, low, medium or high, got "a lot"'


@BOTH
@table("value", ["5m", "1h30m", "-1", "0", 300, 0.5, -1])
def test_keep_alive_is_accepted_and_named(ask: Ask, value: Any) -> None:
    call = ask(keep_alive=value)
    assert call.ignored == ("keep_alive",)
    assert "stay loaded" in call.idle["keep_alive"]


@BOTH
def test_a_keep_alive_that_is_no_duration_is_refused(ask: Ask) -> None:
    assert refusal(ask, keep_alive="soon")[0] == "keep_alive"


@BOTH
def test_logprobs_are_asked_for_with_and_without_candidates(ask: Ask) -> None:
    assert sampling(ask(logprobs=True)).logprobs == 0
    assert sampling(ask(logprobs=True, top_logprobs=3)).logprobs == 3
    assert sampling(ask(logprobs=False)).logprobs is None
    assert ask(top_logprobs=3).ignored == ("top_logprobs",)
    assert refusal(ask, logprobs=True, top_logprobs=21)[0] == "top_logprobs"


@BOTH
def test_truncation_and_shifting_are_named_where_they_are_asked_for(ask: Ask) -> None:
    assert ask(truncate=True, shift=True).ignored == ("truncate", "shift")
    assert ask(truncate=False, shift=False).ignored == ()


@BOTH
@table("model", [None, ""])
def test_a_model_has_to_be_named(ask: Ask, model: str | None) -> None:
    assert refusal(ask, model=model) == ("model", "model is required")


# --- names ------------------------------------------------------------------------------------------------------------


@table(
    ("name", "served"),
    [
        ("demo", "demo"),
        ("demo:latest", "demo"),
        ("tagged", "tagged:latest"),
        ("tagged:latest", "tagged:latest"),
        ("demo:7b", "demo:7b"),
        ("other", "other"),
        (":latest", ":latest"),
    ],
)
def test_a_name_without_a_tag_is_that_of_the_latest(name: str, served: str) -> None:
    assert meant(name, {"demo", "tagged:latest"}.__contains__) == served


def test_lists_show_a_tag_with_every_name() -> None:
    assert [tagged(name) for name in ("demo", "a/demo", "host:80/demo", "demo:7b")] == [
        "demo:latest",
        "a/demo:latest",
        "host:80/demo:latest",
        "demo:7b",
    ]


@BOTH
def test_the_request_names_what_is_served_and_the_answer_what_was_asked(ask: Ask) -> None:
    assert [only_request(ask(model=name)).model for name in ("fake:latest", "nickname", "fake")] == [
        "fake",
        "nickname:latest",
        "fake",
    ]


# --- prompts ----------------------------------------------------------------------------------------------------------


def test_a_prompt_is_one_turn_of_a_conversation() -> None:
    prompt = conversation(generate(system="Be brief"))
    assert list(prompt.messages) == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hello"},
    ]


def test_a_prompt_for_a_model_without_conversations_is_text() -> None:
    call = generate(fake_profile(), system="Be brief")
    assert text(call).text == "Hello"
    assert call.ignored == ("system",)
    assert not only_request(call).parse_reasoning


def test_a_raw_prompt_is_text() -> None:
    call = generate(raw=True, think=False)
    assert (text(call).text, call.ignored) == ("Hello", ("think",))


def test_a_suffix_is_filled_up_to() -> None:
    prompt = text(generate(suffix=" world"))
    assert (prompt.text, prompt.suffix) == ("Hello", " world")
    assert isinstance(generate(suffix="").requests[0].prompt, type(conversation(generate())))


def test_context_comes_before_the_prompt() -> None:
    assert conversation(generate(context=[1, 2])).before_ids == (1, 2)
    prompt = text(generate(fake_profile(), context=[1, 2]))
    assert (prompt.before_ids, prompt.add_special_tokens) == ((1, 2), False)


@table(
    ("body", "param"),
    [
        ({"raw": True, "system": "x"}, "system"),
        ({"raw": True, "context": [1]}, "context"),
        ({"raw": True, "images": [PIXEL]}, "images"),
        ({"suffix": "x", "images": [PIXEL]}, "images"),
        ({"suffix": "x", "context": [1]}, "context"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"images": [""]}, "images[0]"),
        ({"context": ["a"]}, "context[0]"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    assert refusal(generate, **body)[0] == param


def test_images_come_before_the_text() -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/any;base64,{PIXEL}"}}
    assert conversation(generate(images=[PIXEL])).messages[0]["content"] == [image, {"type": "text", "text": "Hello"}]
    messages = [{"role": "user", "images": [PIXEL, PIXEL]}]
    assert conversation(chat(messages=messages)).messages[0]["content"] == [image, image]


# --- conversations ----------------------------------------------------------------------------------------------------


def call_of(name: str, **arguments: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


def test_results_of_tools_belong_to_the_calls_that_asked_for_them() -> None:
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "tool_calls": [call_of("a", x=1), call_of("b")], "thinking": "hm"},
        {"role": "tool", "tool_name": "b", "content": "two"},
        {"role": "tool", "content": "one"},
    ]
    _, said, second, first = conversation(chat(messages=messages)).messages
    assert [(one["id"], one["function"]) for one in said["tool_calls"]] == [
        ("call00001", {"name": "a", "arguments": {"x": 1}}),
        ("call00002", {"name": "b", "arguments": {}}),
    ]
    assert said["reasoning_content"] == "hm"
    assert (second["name"], second["tool_call_id"]) == ("b", "call00002")
    assert (first["name"], first["tool_call_id"]) == ("a", "call00001")


def test_ids_that_a_client_sends_are_kept() -> None:
    messages = [
        {"role": "assistant", "tool_calls": [{"id": "mine", **call_of("a")}]},
        {"role": "TOOL", "tool_call_id": "mine", "content": "x"},
    ]
    said, result = conversation(chat(messages=messages)).messages
    assert said["tool_calls"][0]["id"] == "mine"
    assert result == {"role": "tool", "content": "x", "tool_call_id": "mine", "name": "a"}


def test_tools_are_offered_and_looked_for() -> None:
    call = chat(tools=[TOOL])
    assert list(conversation(call).tools) == [TOOL]
    request = only_request(call)
    assert (request.tool_choice, request.parse_tool_calls) == ("auto", True)
    assert not only_request(chat(tools=[])).parse_tool_calls


def test_what_the_assistant_began_it_goes_on_with() -> None:
    begun = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "It is"}]
    assert conversation(chat(messages=begun)).continue_final_message
    assert not conversation(chat()).continue_final_message
    assert not conversation(chat(messages=[{"role": "assistant", "tool_calls": [call_of("a")]}])).continue_final_message


@table(
    ("messages", "param"),
    [
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls[0].function.name"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "x"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        ("Hello", "messages"),
    ],
)
def test_a_bad_message_is_refused_by_its_place(messages: Any, param: str) -> None:
    assert refusal(chat, messages=messages)[0] == param


@table(("path", "body"), [("/api/generate", {"prompt": ""}), ("/api/generate", {}), ("/api/chat", {"messages": []})])
def test_only_calls_that_ask_for_nothing_are_answered_at_once(path: str, body: dict[str, Any]) -> None:
    assert dialect_for(path).open(http_call(path, {"model": "fake", **body})).answer is not None
    asked = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    assert dialect_for(path).open(http_call(path, {"model": "fake", **asked})).answer is None
