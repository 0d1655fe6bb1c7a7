"""Anthropic's own client with the real server and the demo model: text, tools, thinking, forms, the cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import httpx
import pytest
from anthropic import beta_tool
from pydantic import BaseModel

from tests.support.server_process import ServerProcess

QUESTION = "What is the weather in Paris?"
WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
LIGHT: Any = {
    "name": "set_light",
    "description": "Switch a light",
    "strict": True,
    "input_schema": {
        "type": "object",
        "properties": {"room": {"enum": ["kitchen", "bath"]}, "level": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["room", "level"],
        "additionalProperties": False,
    },
}
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client


def ask(client: anthropic.Anthropic, question: str = QUESTION, **more: Any) -> Any:
    """A greedy answer, or a stream of one."""
    asked = {"model": "demo", "max_tokens": 80, "messages": [{"role": "user", "content": question}]}
    return client.messages.create(**{**asked, "extra_body": GREEDY, **more})


def streamed(client: anthropic.Anthropic, question: str = QUESTION, **more: Any) -> Any:
    """The message that the client makes of a stream."""
    asked: Any = {"model": "demo", "max_tokens": 80, "messages": [{"role": "user", "content": question}]}
    with client.messages.stream(**{**asked, "extra_body": GREEDY, **more}) as stream:
        return stream.get_final_message()


def uses(message: Any) -> list[tuple[str, Any]]:
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


def same(message: Any) -> Any:
    """What two answers to one question have in common."""
    blocks = [block.model_dump(exclude={"id"}, exclude_none=True) for block in message.content]
    return blocks, message.stop_reason, message.stop_sequence, message.usage.output_tokens


@pytest.mark.parametrize(
    ("question", "more"),
    [
        ("Hello!", {}),
        ("Hello!", {"max_tokens": 3}),
        (QUESTION, {"tools": [WEATHER]}),
        ("Hello!", {"tools": [LIGHT], "tool_choice": {"type": "any"}}),
        ("What is 2+2?", {"thinking": {"type": "adaptive"}}),
        ("What is 2+2?", {"thinking": {"type": "adaptive", "display": "omitted"}}),
        ("Hello!", {"stop_sequences": ["a", "e"]}),
    ],
)
def test_streams_make_the_message_that_is_answered_whole(client: anthropic.Anthropic, question: str, more: Any) -> None:
    assert same(streamed(client, question, **more)) == same(ask(client, question, **more))


def test_the_model_calls_a_tool_and_answers_with_its_result(client: anthropic.Anthropic) -> None:
    first = ask(client, tools=[WEATHER])
    [(name, arguments)] = uses(first)
    assert (name, list(arguments), first.stop_reason) == ("get_weather", ["city"], "tool_use")
    [use] = [block for block in first.content if block.type == "tool_use"]
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny, 21 degrees"}]},
    ]
    answer = ask(client, messages=messages, tools=[WEATHER])
    assert answer.stop_reason == "end_turn"
    assert "sunny" in answer.content[0].text


def test_the_clients_tool_runner_goes_round_by_itself(client: anthropic.Anthropic) -> None:
    asked: list[str] = []

    @beta_tool
    def get_weather(city: str) -> str:
        """Get the weather in a city

        Args:
            city: The city
        """
        asked.append(city)
        return "sunny, 21 degrees"

    runner = client.beta.messages.tool_runner(
        model="demo",
        max_tokens=80,
        tools=[get_weather],
        messages=[{"role": "user", "content": QUESTION}],
        extra_body=GREEDY,
        max_iterations=3,
    )
    final = runner.until_done()
    assert asked == ["Paris"]
    assert final.stop_reason == "end_turn"
    assert "sunny" in final.content[0].text  # type: ignore[union-attr]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "set_light"}])
def test_forced_calls_follow_the_schema(client: anthropic.Anthropic, choice: Any) -> None:
    wish = {**choice, "disable_parallel_tool_use": True}
    for temperature in (0, 1):
        message = ask(
            client, "Hello!", tools=[LIGHT], tool_choice=wish, extra_body={"temperature": temperature}, max_tokens=120
        )
        [(name, arguments)] = uses(message)
        assert name == "set_light"
        assert arguments["room"] in ("kitchen", "bath")
        assert 0 <= arguments["level"] <= 9
        assert message.stop_reason == "tool_use"


def test_no_tool_is_called_when_none_may_be(client: anthropic.Anthropic) -> None:
    assert uses(ask(client, tools=[WEATHER], tool_choice={"type": "none"}, max_tokens=5)) == []


@pytest.mark.needs("thinking_token_budget")
def test_thinking_is_a_block_of_its_own_and_can_be_sent_back(client: anthropic.Anthropic) -> None:
    message = ask(client, "What is 2+2?", thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1100)
    thinking, text = message.content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert len(thinking.thinking) > 5
    assert thinking.signature
    assert "think>" not in thinking.thinking + text.text
    messages = [
        {"role": "user", "content": "What is 2+2?"},
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": "And 3+3?"},
    ]
    assert ask(client, messages=messages, thinking={"type": "disabled"}).content[0].type == "text"


def test_an_answer_goes_on_from_what_the_assistant_has_begun(client: anthropic.Anthropic) -> None:
    whole = ask(client, "Hello!").content[0].text
    begun = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": whole[:5]}]
    rest = ask(client, messages=begun).content[0].text
    assert whole[:5] + rest == whole


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    whole = ask(client, "Hello!").content[0].text
    word = whole[4:7]
    message = ask(client, "Hello!", stop_sequences=["never", word])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)
    assert message.content[0].text == whole[: whole.index(word)]


class Report(BaseModel, extra="forbid"):
    """A typed answer."""

    mood: Literal["good", "bad"]
    words: list[str]


def test_answers_have_the_form_that_is_asked_for(client: anthropic.Anthropic) -> None:
    form = {"type": "json_schema", "schema": Report.model_json_schema()}
    for more in ({"output_config": {"format": form}}, {"extra_body": {**GREEDY, "output_format": form}}):
        message = ask(client, "How are you?", max_tokens=200, **more)
        text = message.content[0].text
        assert text.startswith('{"mood": "')
        if message.stop_reason == "end_turn":
            Report.model_validate_json(text)


class Mood(BaseModel, extra="forbid"):
    """An answer that ends soon."""

    mood: Literal["good", "bad"]


def test_the_client_parses_typed_answers(client: anthropic.Anthropic) -> None:
    message = client.messages.parse(
        model="demo", max_tokens=60, messages=[{"role": "user", "content": "How are you?"}], output_format=Mood
    )
    assert isinstance(message.parsed_output, Mood)


def test_tokens_are_counted_as_they_are_charged(client: anthropic.Anthropic) -> None:
    asked: Any = {"messages": [{"role": "user", "content": QUESTION}], "tools": [WEATHER], "system": "Be brief."}
    counted = client.messages.count_tokens(model="demo", **asked).input_tokens
    usage = ask(client, **asked, max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_a_prompt_can_be_read_into_the_cache_before_it_is_asked(client: anthropic.Anthropic) -> None:
    system = "Remember all of this. " * 40
    warmed = ask(client, system=system, max_tokens=0)
    assert (warmed.content, warmed.stop_reason, warmed.usage.output_tokens) == ([], "max_tokens", 0)
    usage = ask(client, system=system, max_tokens=1).usage
    assert usage.cache_read_input_tokens > 100
    assert usage.cache_creation_input_tokens == 0


def test_an_answer_ends_where_the_context_does_and_a_prompt_beyond_it_is_refused(client: anthropic.Anthropic) -> None:
    [model] = client.models.list().data
    most = model.max_input_tokens
    assert most is not None
    counts = [
        client.messages.count_tokens(
            model="demo", messages=[{"role": "user", "content": "Hello! " * number}]
        ).input_tokens
        for number in (100, 200)
    ]
    nearly = (most - 150) * 100 // (counts[1] - counts[0])  # words: computing a prompt is quicker than an answer
    message = streamed(client, "Hello! " * nearly, max_tokens=32000)
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > most - 200
    assert message.stop_reason in ("end_turn", "model_context_window_exceeded")
    with pytest.raises(anthropic.BadRequestError, match=rf"prompt is too long: \d+ tokens > {most} maximum"):
        ask(client, "Hello! " * most, max_tokens=1)


def test_pictures_are_refused_by_a_model_that_sees_none(client: anthropic.Anthropic) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    with pytest.raises(anthropic.BadRequestError, match="image"):
        ask(client, messages=[{"role": "user", "content": [picture]}])


def test_unknown_paths_are_told_the_nearest_one(server: ServerProcess) -> None:
    answer = httpx.post(f"{server.base_url}/v1/message", json={}, headers={"anthropic-version": "1"}, timeout=30)
    assert answer.status_code == 404
    assert "the nearest one is /v1/messages," in json.loads(answer.text)["error"]["message"]
