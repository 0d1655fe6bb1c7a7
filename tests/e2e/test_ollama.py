"""Ollama's own Python client, the real server and the demo model: what `/v1` answers, in Ollama's words."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import httpx
import ollama
import pytest
from ollama._utils import convert_function_to_tool
from pydantic import BaseModel, Field

from tests.support.server_process import ServerProcess

QUESTION = "What is the weather in Paris?"
GREEDY = {"temperature": 0, "num_predict": 80}


class Light(BaseModel, extra="forbid"):
    """What a schema is made of."""

    room: Literal["kitchen", "bath"]
    level: int = Field(ge=0, le=9)


def get_weather(city: str) -> str:
    """Get the weather in a city.

    Args:
        city: The name of the city
    """
    return f"sunny in {city}"


@contextmanager
def client_of(server: ServerProcess) -> Iterator[ollama.Client]:
    """The client, closed at the end."""
    client = ollama.Client(host=server.base_url)
    try:
        yield client
    finally:
        client._client.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ollama.Client]:
    with client_of(server) as client:
        yield client


def reference(server: ServerProcess, path: str, **body: Any) -> dict[str, Any]:
    """What OpenAI's API answers."""
    whole = {"model": "demo", "temperature": 0, "max_tokens": 80, **body}
    answer = httpx.post(f"{server.base_url}{path}", json=whole, headers={"api-key": "x"}, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_conversation_is_the_one_that_openais_api_holds(client: ollama.Client, server: ServerProcess) -> None:
    told = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello!"}]
    expected = reference(server, "/v1/chat/completions", messages=told)
    answer = client.chat("demo", told, options=GREEDY)
    assert answer.message.content == expected["choices"][0]["message"]["content"]
    assert answer.prompt_eval_count == expected["usage"]["prompt_tokens"]
    assert answer.eval_count == expected["usage"]["completion_tokens"]
    prompted = client.generate("demo", "Hello!", system="Be kind.", options=GREEDY)
    assert prompted.response == answer.message.content
    streamed = client.chat("demo", told, options=GREEDY, stream=True)
    assert "".join(part.message.content or "" for part in streamed) == answer.message.content


def test_a_raw_prompt_is_the_completion_of_openais_api(client: ollama.Client, server: ServerProcess) -> None:
    expected = reference(server, "/v1/completions", prompt="This is a test", max_tokens=12)
    answer = client.generate("demo", "This is a test", raw=True, options={**GREEDY, "num_predict": 12})
    assert answer.response == expected["choices"][0]["text"]
    assert answer.done_reason == {"stop": "stop", "length": "length"}[expected["choices"][0]["finish_reason"]]


def test_durations_are_those_of_the_call(client: ollama.Client) -> None:
    answer = client.generate("demo", "Tell me about bread.", options=GREEDY)
    assert answer.prompt_eval_duration is not None
    assert answer.eval_duration is not None
    assert answer.total_duration is not None
    assert answer.load_duration is not None
    assert 0 < answer.prompt_eval_duration < answer.total_duration
    assert 0 < answer.eval_duration < answer.total_duration
    parts = answer.load_duration + answer.prompt_eval_duration + answer.eval_duration
    assert parts == pytest.approx(answer.total_duration, rel=0.01)


def test_context_goes_on_from_an_earlier_answer(client: ollama.Client, server: ServerProcess) -> None:
    first = client.generate("demo", "Hello!", options=GREEDY)
    assert first.context is not None
    second = client.generate("demo", "Tell me about bread.", context=first.context, options=GREEDY)
    alone = client.generate("demo", "Tell me about bread.", options=GREEDY)
    assert second.prompt_eval_count == len(first.context) + (alone.prompt_eval_count or 0)
    assert second.context is not None
    assert second.context[: len(first.context)] == first.context
    text = httpx.post(f"{server.base_url}/detokenize", json={"tokens": list(second.context)}).json()["prompt"]
    assert text.index("Hello!") < text.index(first.response) < text.index("Tell me about bread.")


def test_context_of_another_model_is_refused(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="context holds token id 999999"):
        client.generate("demo", "Hello!", context=[999_999])


def test_a_function_is_called_and_its_result_is_taken(client: ollama.Client, server: ServerProcess) -> None:
    told: list[Any] = [{"role": "user", "content": QUESTION}]
    answer = client.chat("demo", told, tools=[get_weather], options=GREEDY)
    assert answer.message.tool_calls is not None
    [call] = answer.message.tool_calls
    assert call.function.name == "get_weather"
    assert list(call.function.arguments) == ["city"]
    streamed = [
        one
        for part in client.chat("demo", told, tools=[get_weather], options=GREEDY, stream=True)
        for one in part.message.tool_calls or ()
    ]
    assert [one.function for one in streamed] == [call.function]
    result = get_weather(**call.function.arguments)
    after = [*told, answer.message, {"role": "tool", "tool_name": call.function.name, "content": result}]
    second = client.chat("demo", after, tools=[get_weather], options=GREEDY)
    function = {"name": "get_weather", "arguments": json.dumps(call.function.arguments)}
    same = [
        *told,
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": result},
    ]
    tool = convert_function_to_tool(get_weather).model_dump(exclude_none=True)
    expected = reference(server, "/v1/chat/completions", messages=same, tools=[tool])
    assert second.prompt_eval_count == expected["usage"]["prompt_tokens"]
    assert (second.message.content or "") == (expected["choices"][0]["message"]["content"] or "")


@pytest.mark.parametrize("ask", ["generate", "chat"])
def test_an_answer_follows_the_schema(ask: str, client: ollama.Client) -> None:
    schema = Light.model_json_schema()
    options = {"num_predict": 200, "seed": 3}
    if ask == "generate":
        text = client.generate("demo", "Who are you?", format=schema, options=options, think=False).response or ""
    else:
        told = [{"role": "user", "content": "Who are you?"}]
        text = client.chat("demo", told, format=schema, options=options, think=False).message.content or ""
    Light.model_validate_json(text)


def test_an_answer_is_json_where_that_is_asked(client: ollama.Client) -> None:
    answer = client.generate("demo", "Who are you?", format="json", options={"num_predict": 200, "temperature": 0})
    assert answer.done_reason == "length" or isinstance(json.loads(answer.response or ""), dict)


def test_a_seed_repeats_an_answer(client: ollama.Client) -> None:
    options = {"seed": 11, "temperature": 1.0, "num_predict": 12}
    assert len({client.generate("demo", "Tell me a story", options=options).response for _ in range(3)}) == 1


def test_stop_ends_an_answer(client: ollama.Client) -> None:
    whole = client.generate("demo", "Tell me about bread.", options=GREEDY).response or ""
    word = whole.split()[2]
    cut = client.generate("demo", "Tell me about bread.", options={**GREEDY, "stop": [word]})
    assert cut.response == whole[: whole.index(word)]
    assert cut.done_reason == "stop"


def test_logprobs_are_those_of_openais_api(client: ollama.Client, server: ServerProcess) -> None:
    told = [{"role": "user", "content": "Hello!"}]
    expected = reference(server, "/v1/chat/completions", messages=told, logprobs=True, top_logprobs=2, max_tokens=4)
    answer = client.chat("demo", told, logprobs=True, top_logprobs=2, options={**GREEDY, "num_predict": 4})
    assert answer.logprobs is not None
    wanted = expected["choices"][0]["logprobs"]["content"]
    assert [one.token for one in answer.logprobs] == [one["token"] for one in wanted]
    assert [one.logprob for one in answer.logprobs] == pytest.approx([one["logprob"] for one in wanted], abs=1e-3)
    assert all(len(one.top_logprobs or ()) == 2 for one in answer.logprobs)


def test_thinking_is_told_apart_and_can_be_left_out(client: ollama.Client, server: ServerProcess) -> None:
    told = [{"role": "user", "content": "What is 2+2?"}]
    expected = reference(server, "/v1/chat/completions", messages=told, chat_template_kwargs={"enable_thinking": True})[
        "choices"
    ][0]["message"]
    thinking = client.chat("demo", told, think=True, options=GREEDY)
    assert thinking.message.thinking == expected["reasoning_content"]
    assert (thinking.message.content or "") == (expected["content"] or "")
    parts = list(client.chat("demo", told, think=True, options=GREEDY, stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == thinking.message.thinking
    assert client.chat("demo", told, think=False, options=GREEDY).message.thinking is None


def test_a_suffix_is_filled_up_to(client: ollama.Client, server: ServerProcess) -> None:
    expected = reference(server, "/v1/completions", prompt="Bread is", suffix=" and water.", max_tokens=8)
    answer = client.generate("demo", "Bread is", suffix=" and water.", options={**GREEDY, "num_predict": 8})
    assert answer.response == expected["choices"][0]["text"]
    assert answer.prompt_eval_count == expected["usage"]["prompt_tokens"]


def test_images_are_refused_by_name_where_the_model_sees_none(client: ollama.Client) -> None:
    pixel = base64.b64encode(b"no picture").decode()
    with pytest.raises(ollama.ResponseError) as caught:
        client.generate("demo", "What is this?", images=[pixel])
    assert caught.value.status_code == 400
    assert caught.value.error == "images[0] is not supported: this model takes text only"


def test_a_model_is_described(client: ollama.Client) -> None:
    shown = client.show("demo:latest")
    assert shown.details is not None
    assert (shown.details.family, shown.details.families) == ("llama", ["llama"])
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 2048
    assert shown.modelinfo["llama.block_count"] == 6
    assert shown.capabilities is not None
    assert set(shown.capabilities) >= {"completion", "tools", "thinking"}
    assert "{%" in (shown.template or "")


@pytest.mark.needs("weights of its own")
def test_a_models_weights_are_described(client: ollama.Client) -> None:
    shown = client.show("demo:latest")
    assert shown.details is not None
    assert shown.modelinfo is not None
    assert shown.details.format == "safetensors", "no weights"
    assert shown.modelinfo["general.parameter_count"] > 1_000_000
    assert shown.details.parameter_size == f"{shown.modelinfo['general.parameter_count'] / 1e6:.2f}M"
    [listed] = client.list().models
    assert listed.size is not None
    assert listed.size > 1_000_000


def test_models_are_listed_with_what_their_files_say(client: ollama.Client) -> None:
    [listed] = client.list().models
    [loaded] = client.ps().models
    assert (listed.model, loaded.name) == ("demo:latest", "demo:latest")
    assert (listed.size, listed.digest) == (loaded.size, loaded.digest)
    assert len(listed.digest or "") == 64
    assert listed.modified_at is not None
    assert loaded.expires_at is not None
    assert loaded.expires_at > listed.modified_at
    assert client.generate(listed.model or "", "Hello!", options={"num_predict": 1}).eval_count == 1
