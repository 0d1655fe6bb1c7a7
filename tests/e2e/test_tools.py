"""Tools, reasoning and structured output with OpenAI's own client, the real server and the demo model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, Field

from tests.support.server_process import ServerProcess
from tests.support.tables import table

QUESTION = "What is the weather in Paris?"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
LIGHT = {
    "type": "function",
    "function": {
        "name": "set_light",
        "description": "Switch a light",
        "parameters": {
            "type": "object",
            "properties": {
                "room": {"enum": ["kitchen", "bath"]},
                "level": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["room", "level"],
        },
    },
}
NAMED = {"type": "function", "function": {"name": "set_light"}}


@pytest.fixture(
    params=[
        "v1",
        pytest.param("v3", marks=pytest.mark.full("tests/dialects has the form of OVMS; the same service answers")),
    ]
)
def client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.base_url}/{request.param}", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, question: str = QUESTION, **options: Any) -> Any:
    """A greedy answer, or a stream of one."""
    options = {"temperature": 0, "max_tokens": 80, **options}
    messages = options.pop("messages", [{"role": "user", "content": question}])
    return client.chat.completions.create(model="demo", messages=messages, **options)


def calls(answer: ChatCompletion, index: int = 0) -> list[tuple[str, Any]]:
    """Name and arguments of each call of a choice."""
    found: Iterable[Any] = answer.choices[index].message.tool_calls or []
    return [(call.function.name, json.loads(call.function.arguments)) for call in found]


def is_light(arguments: Any) -> bool:
    return (
        set(arguments) == {"room", "level"}
        and arguments["room"] in ("kitchen", "bath")
        and 0 <= arguments["level"] <= 9
    )


def test_the_model_calls_a_tool_when_it_is_free_to(client: openai.OpenAI) -> None:
    answer = ask(client, tools=[WEATHER])
    ((name, arguments),) = calls(answer)
    assert (name, list(arguments)) == ("get_weather", ["city"])
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None


def test_the_model_just_answers_when_no_tool_fits(client: openai.OpenAI) -> None:
    answer = ask(client, "Hello!", tools=[WEATHER])
    assert calls(answer) == []
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content


@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_forced_calls_follow_the_schema_whatever_is_asked(
    client: openai.OpenAI, choice: Any, temperature: float
) -> None:
    answer = ask(client, "Hello!", tools=[LIGHT], tool_choice=choice, n=3, temperature=temperature, seed=5)
    for choice_index in range(3):
        found = calls(answer, choice_index)
        assert found
        assert all(name == "set_light" and is_light(arguments) for name, arguments in found)
        assert answer.choices[choice_index].finish_reason == "tool_calls"
    ids = [call.id for one in answer.choices for call in one.message.tool_calls]
    assert len(set(ids)) == len(ids)


def test_one_call_at_most_without_parallel_calls(client: openai.OpenAI) -> None:
    answer = ask(client, tools=[LIGHT], tool_choice="required", parallel_tool_calls=False, temperature=1.5, seed=2)
    assert len(calls(answer)) == 1


def test_no_tool_is_called_when_none_may_be(client: openai.OpenAI) -> None:
    answer = ask(client, tools=[WEATHER], tool_choice="none", max_tokens=5)
    assert answer.choices[0].message.tool_calls is None


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_streamed_arguments_join_to_the_call_that_is_answered_whole(client: openai.OpenAI, choice: str) -> None:
    whole = ask(client, tools=[WEATHER], tool_choice=choice)
    chunks = [chunk for chunk in ask(client, tools=[WEATHER], tool_choice=choice, stream=True) if chunk.choices]
    pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert len(pieces) > 1  # what a schema forces comes in one piece
    assert pieces[0].id
    assert [piece.id for piece in pieces[1:]] == [None] * (len(pieces) - 1)
    assert {piece.index for piece in pieces} == {0}
    joined = "".join(piece.function.arguments for piece in pieces)
    assert [(pieces[0].function.name, json.loads(joined))] == calls(whole)
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_clients_own_accumulator_understands_the_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="demo",
        messages=[{"role": "user", "content": QUESTION}],
        tools=[LIGHT],  # type: ignore[list-item]
        tool_choice="required",
        max_tokens=80,
        temperature=0,
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert all(is_light(arguments) for _, arguments in calls(final))


def test_a_tools_result_is_answered_in_words(client: openai.OpenAI) -> None:
    first = ask(client, tools=[WEATHER]).choices[0].message
    messages = [
        {"role": "user", "content": QUESTION},
        first.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny, 21 degrees"},
    ]
    answer = ask(client, messages=messages, tools=[WEATHER])
    assert answer.choices[0].finish_reason == "stop"
    assert "sunny" in answer.choices[0].message.content


class SetLight(BaseModel, extra="forbid"):
    """Switch a light."""

    room: Literal["kitchen", "bath"]
    is_on: bool


class Report(BaseModel, extra="forbid"):
    """A typed answer."""

    mood: Literal["good", "bad"]
    score: int = Field(ge=1, le=5)
    light: SetLight


def test_parse_gives_typed_answers(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="demo", messages=[{"role": "user", "content": "How are you?"}], response_format=Report, max_tokens=80
    )
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Report)
    assert 1 <= parsed.score <= 5


def test_parse_gives_typed_tool_calls(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="demo",
        messages=[{"role": "user", "content": "Light!"}],
        tools=[openai.pydantic_function_tool(SetLight)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=80,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, SetLight)


@table(
    ("options", "pattern"),
    [
        ({"guided_choice": ["yes", "no"]}, r"yes|no"),
        ({"guided_regex": r"[a-c]{3}-[0-9]{2}"}, r"[a-c]{3}-[0-9]{2}"),
        ({"guided_grammar": 'root ::= "a" b{2}\nb ::= [xy]'}, r"a[xy]{2}"),
        ({"guided_grammar": 'start: "a" B\nB: /[xy]{2}/'}, r"a[xy]{2}"),
        (
            {"guided_json": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}},
            r"\[[12],\s*[12]\]",
        ),
        ({"structured_outputs": {"choice": ["left", "right"]}}, r"left|right"),
    ],
)
def test_guided_answers_have_their_form(client: openai.OpenAI, options: dict[str, Any], pattern: str) -> None:
    chat = ask(client, "Say something.", temperature=1.0, extra_body=options)
    assert re.fullmatch(pattern, chat.choices[0].message.content)
    assert chat.choices[0].finish_reason == "stop"
    text = client.completions.create(model="demo", prompt="Say something.", max_tokens=40, extra_body=options)
    assert re.fullmatch(pattern, text.choices[0].text)


def test_json_mode_gives_an_object(client: openai.OpenAI) -> None:
    answer = ask(
        client, "Give me a JSON object with name and age", response_format={"type": "json_object"}, max_tokens=200
    )
    content = answer.choices[0].message.content
    assert content.startswith("{")
    if answer.choices[0].finish_reason == "stop":  # else the model found no end in time
        assert isinstance(json.loads(content), dict)


def test_a_client_may_offer_tools_and_ask_for_a_form_of_other_answers(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "r", "strict": True, "schema": Report.model_json_schema()}}
    answer = ask(client, "Hello!", tools=[LIGHT], response_format=form)
    if calls(answer):
        assert all(is_light(arguments) for _, arguments in calls(answer))
    else:
        Report.model_validate_json(answer.choices[0].message.content)


@table(
    ("options", "words"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}]}, "tools"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "x"}}}},
            "response_format",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}},
            "response_format",
        ),
        ({"extra_body": {"guided_regex": "("}}, "regex"),
        ({"extra_body": {"guided_grammar": "root ::= ("}}, "GBNF"),
        ({"extra_body": {"guided_choice": []}}, "guided_choice"),
    ],
)
def test_what_cannot_be_followed_is_a_bad_request(client: openai.OpenAI, options: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **options)
    assert words in caught.value.response.text


def test_reasoning_is_told_apart_streamed_and_whole(client: openai.OpenAI) -> None:
    thinking = {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
    message = ask(client, "What is 2+2?", **thinking).choices[0].message
    assert message.reasoning_content == message.reasoning
    assert len(message.reasoning) > 5
    assert "think>" not in message.reasoning + message.content
    chunks = list(ask(client, "What is 2+2?", stream=True, **thinking))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == message.reasoning
    assert "".join(delta.content or "" for delta in deltas) == message.content


def test_tools_can_be_required_of_a_model_that_thinks_first(client: openai.OpenAI) -> None:
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    answer = ask(client, tools=[LIGHT], tool_choice="required", max_tokens=200, extra_body=thinking)
    assert all(is_light(arguments) for _, arguments in calls(answer))
    assert calls(answer)
    assert answer.choices[0].message.reasoning


def test_lmi_and_tgi_requests_take_grammars_too(server: ServerProcess) -> None:
    own = {"inputs": "Say something.", "parameters": {"guided_choice": ["yes", "no"]}}
    assert httpx.post(f"{server.base_url}/invocations", json=own, timeout=60).json()["generated_text"] in ("yes", "no")
    tgi = {"inputs": "Say", "parameters": {"grammar": {"type": "regex", "value": "[ab]{4}"}}}
    text = httpx.post(f"{server.base_url}/generate", json=tgi, timeout=60).json()["generated_text"]
    assert re.fullmatch("[ab]{4}", text)
    bad = {"inputs": "Say", "parameters": {"grammar": {"type": "regex", "value": "("}}}
    assert httpx.post(f"{server.base_url}/generate", json=bad, timeout=60).status_code == 422


def test_tokens_are_counted_as_the_server_counts_them(server: ServerProcess, client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": "demo", "messages": messages, "tools": [WEATHER]}
    told = httpx.post(f"{server.base_url}/tokenize", json=body, timeout=60).json()
    usage = ask(client, tools=[WEATHER], max_tokens=1).usage
    assert told["count"] == usage.prompt_tokens == len(told["tokens"])
    text = httpx.post(f"{server.base_url}/detokenize", json={"tokens": told["tokens"]}, timeout=60).json()["prompt"]
    assert QUESTION in text
    assert "<tools>" in text
    info = httpx.get(f"{server.base_url}/tokenizer_info", timeout=60).json()
    assert info["eos_token"] in ("<|endoftext|>", "<|im_end|>")
    assert "<tool_call>" in info["chat_template"]


@pytest.mark.parametrize("wish", ["auto", {"name": "get_weather"}])
def test_functions_are_called_in_the_form_of_openais_first_clients(client: openai.OpenAI, wish: Any) -> None:
    whole = ask(client, functions=[WEATHER["function"]], function_call=wish)
    [choice] = whole.choices
    assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == ("function_call", None, None)
    assert choice.message.function_call.name == "get_weather"
    assert json.loads(choice.message.function_call.arguments) == {"city": "Paris"}

    chunks = [
        chunk.choices[0] for chunk in ask(client, functions=[WEATHER["function"]], function_call=wish, stream=True)
    ]
    pieces = [chunk.delta.function_call for chunk in chunks if chunk.delta.function_call is not None]
    assert [piece.name for piece in pieces if piece.name] == ["get_weather"]
    assert json.loads("".join(piece.arguments or "" for piece in pieces)) == {"city": "Paris"}
    assert chunks[-1].finish_reason == "function_call"


def test_what_a_function_gave_is_told_in_the_answer(client: openai.OpenAI) -> None:
    messages = [
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
        },
        {"role": "function", "name": "get_weather", "content": "sunny, 21 degrees"},
    ]
    answer = ask(client, messages=messages, functions=[WEATHER["function"]])
    assert "sunny" in answer.choices[0].message.content


@table(
    "options", [{}, {"stream": True}, {"extra_body": {"best_of": 2}}, {"extra_body": {"use_beam_search": True, "n": 2}}]
)
def test_stop_strings_match_in_content_and_not_in_a_call(
    client: openai.OpenAI, engine: str, options: dict[str, Any]
) -> None:
    if "extra_body" in options and engine != "rolling":
        return  # others have no grammars in a beam search, which calls come with
    words = ["Paris", '"', "tool", "}"]
    answer = ask(client, tools=[WEATHER], stop=words, **options)
    if "stream" in options:
        chunks = [chunk.choices[0] for chunk in answer if chunk.choices]
        pieces = [call.function.arguments for chunk in chunks for call in chunk.delta.tool_calls or []]
        assert json.loads("".join(pieces))["city"]
        assert chunks[-1].finish_reason == "tool_calls"
    else:
        assert calls(answer)[0][0] == "get_weather"
        assert answer.choices[0].finish_reason == "tool_calls"
    said = ask(client, "Hello!", tools=[WEATHER]).choices[0].message.content
    cut = ask(client, "Hello!", tools=[WEATHER], stop=said[4:8]).choices[0]
    assert (cut.message.content, cut.finish_reason) == (said[:4], "stop")
