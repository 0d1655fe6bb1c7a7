"""Responses with OpenAI's own client, the real server and the demo model: text, tools, schemas, conversations, limits."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, Field

from tests.support.console_blocks import DOCUMENTED_URL
from tests.support.server_process import ServerProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dialects" / "responses.md"
QUESTION = "What is deep learning?"
LIGHT: Any = {
    "type": "function",
    "name": "set_light",
    "description": "Switch a light",
    "parameters": {
        "type": "object",
        "properties": {"room": {"enum": ["kitchen", "bath"]}, "level": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["room", "level"],
        "additionalProperties": False,
    },
    "strict": True,
}
NAMED: Any = {"type": "function", "name": "set_light"}


class Weather(BaseModel):
    """What an answer is to be."""

    sky: Literal["clear", "cloudy"]
    degrees: int = Field(ge=0, le=40)


@pytest.fixture(
    params=[
        "v1",
        pytest.param("v3", marks=pytest.mark.full("tests/dialects has the errors of OVMS; the rest is the same code")),
    ]
)
def client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[openai.OpenAI]:
    url = f"{server.base_url}/{request.param}"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@contextmanager
def refused(text: str) -> Iterator[None]:
    """Assert that a call is refused so; the text stands in OpenAI's object on /v1, alone on /v3."""
    with pytest.raises(openai.BadRequestError) as caught:
        yield
    assert re.search(text, caught.value.response.text), caught.value.response.text


def ask(client: openai.OpenAI, text: Any = QUESTION, **options: Any) -> Any:
    """A greedy answer, or a stream of one."""
    return client.responses.create(
        **{"model": "demo", "input": text, "temperature": 0, "max_output_tokens": 60, **options}
    )


def test_a_stream_is_what_is_answered_whole_and_by_conversations(client: openai.OpenAI) -> None:
    whole = ask(client)
    events = list(ask(client, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    chat = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=60
    )
    assert whole.output_text == text == chat.choices[0].message.content
    assert "learning" in text.lower()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert chat.usage is not None
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (
        chat.usage.prompt_tokens,
        chat.usage.completion_tokens,
    )
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens


def test_an_input_has_as_many_tokens_as_were_counted(client: openai.OpenAI) -> None:
    body = {"model": "demo", "input": QUESTION, "instructions": "Answer briefly."}
    counted = httpx.post(f"{client.base_url}responses/input_tokens", json=body).json()["input_tokens"]
    made = ask(client, instructions="Answer briefly.", max_output_tokens=1)
    assert (made.usage.input_tokens, made.status) == (counted, "incomplete")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_function_is_called_and_its_output_is_taken(client: openai.OpenAI, is_stream: bool) -> None:
    body: dict[str, Any] = {"tools": [LIGHT], "tool_choice": NAMED}
    made = list(ask(client, stream=True, **body))[-1].response if is_stream else ask(client, **body)
    [call] = made.output
    arguments = json.loads(call.arguments)
    assert (call.type, call.name, call.status) == ("function_call", "set_light", "completed")
    assert arguments["room"] in ("kitchen", "bath")
    assert 0 <= arguments["level"] <= 9
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "done"}]
    after = ask(client, output, previous_response_id=made.id, tools=[LIGHT], tool_choice="none")
    assert after.output[0].type == "message"
    sent = ask(
        client, [{"role": "user", "content": QUESTION}, call.model_dump(), *output], tools=[LIGHT], tool_choice="none"
    )
    assert sent.output_text == after.output_text
    items = [item.type for item in client.responses.input_items.list(after.id, order="asc")]
    assert items == ["message", "function_call", "function_call_output"]


def test_the_pieces_of_a_streamed_call_make_the_call(client: openai.OpenAI) -> None:
    events = list(ask(client, stream=True, tools=[LIGHT], tool_choice="required"))
    pieces = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert pieces == done.arguments == events[-1].response.output[-1].arguments


def test_an_answer_is_parsed_into_a_type(client: openai.OpenAI) -> None:
    made = client.responses.parse(model="demo", input="The weather?", text_format=Weather, max_output_tokens=60)
    assert isinstance(made.output_parsed, Weather)
    with client.responses.stream(
        model="demo", input="The weather?", text_format=Weather, max_output_tokens=60
    ) as stream:
        stream.until_done()
        assert isinstance(stream.get_final_response().output_parsed, Weather)


def test_log_probabilities_are_those_of_conversations(client: openai.OpenAI) -> None:
    made = ask(client, include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=5)
    chat = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=5, logprobs=True,
        top_logprobs=2,
    )  # fmt: skip
    found, expected = made.output[0].content[0].logprobs, chat.choices[0].logprobs
    assert expected is not None
    assert expected.content is not None
    assert [one.token for one in found] == [one.token for one in expected.content]
    assert [one.logprob for one in found] == pytest.approx([one.logprob for one in expected.content], abs=1e-4)
    assert [len(one.top_logprobs) for one in found] == [2] * 5


def test_a_conversation_that_is_too_long_is_refused_or_made_to_fit(client: openai.OpenAI) -> None:
    long: Any = [{"role": role, "content": "word " * 400} for _ in range(40) for role in ("user", "assistant")]
    question = {"role": "user", "content": QUESTION}
    with refused(r"maximum context length|exceeds model max length"):
        ask(client, [*long, question])
    assert ask(client, [*long, question], truncation="auto").output_text
    with refused(r"max_output_tokens|max tokens value"):
        ask(client, max_output_tokens=10_000_000)


def test_the_pages_example_in_python_runs(server: ServerProcess) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert DOCUMENTED_URL in source
    found: dict[str, Any] = {}
    out = io.StringIO()
    with redirect_stdout(out):
        exec(
            compile(source.replace(DOCUMENTED_URL, server.base_url), PAGE.name, "exec"), found
        )  # as a reader would run it
    found["client"].close()
    assert found["second"].previous_response_id == found["first"].id
    assert out.getvalue().strip()


def test_a_picture_for_a_model_of_texts_is_refused(client: openai.OpenAI) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    with refused("image"):
        ask(client, [{"role": "user", "content": [{"type": "input_text", "text": "What?"}, picture]}])
