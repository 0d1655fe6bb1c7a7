"""Clients whose default is the Responses API, unmodified: OpenAI's Agents SDK, pydantic-ai."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from importlib import import_module
from typing import Any, Literal

import pytest
from pydantic import BaseModel

MODEL = "default"
LOOP = asyncio.new_event_loop()
"""The Agents SDK keeps one client for the process, which belongs to the first loop that used it."""


class Light(BaseModel):
    """Where a light is, and how bright."""

    room: Literal["kitchen", "bath"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, base_url: str) -> None:
    """What these clients read."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"{base_url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", base_url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")


# --- OpenAI's Agents SDK ----------------------------------------------------------------------------------------------


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """What the coroutine gives."""
    return LOOP.run_until_complete(work)


def agent(calls: list[str], **options: Any) -> Any:
    """An agent with one tool, which it has to call first; the SDK frees it after a call."""
    agents: Any = import_module("agents")

    def set_light(room: Literal["kitchen", "bath"]) -> str:
        """Switch a light on."""
        calls.append(room)
        return f"the light in the {room} is on"

    settings = agents.ModelSettings(tool_choice="required", temperature=0)
    return agents.Agent(
        name="Switch",
        instructions="Be brief.",
        model=MODEL,
        tools=[agents.function_tool(set_light)],
        model_settings=settings,
        **options,
    )


def test_an_agent_calls_its_tool_and_answers() -> None:
    agents, calls = import_module("agents"), []  # type: ignore[var-annotated]
    result = run(agents.Runner.run(agent(calls), "Light, please.", max_turns=4))
    assert len(calls) >= 1
    assert result.final_output is not None
    kinds = [item.type for item in result.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"]
    assert kinds[-1] == "message_output_item"


def test_an_agent_streams() -> None:
    agents, calls, kinds = import_module("agents"), [], []  # type: ignore[var-annotated]

    async def streamed() -> Any:
        result = agents.Runner.run_streamed(agent(calls), "Light, please.", max_turns=4)
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                kinds.append(event.data.type)
        return result

    result = run(streamed())
    assert calls
    assert result.final_output is not None
    assert {"response.created", "response.function_call_arguments.done", "response.completed"} <= set(kinds)


def test_agents_go_on_from_a_response() -> None:
    agents: Any = import_module("agents")
    plain = agents.Agent(name="Plain", model=MODEL, model_settings=agents.ModelSettings(temperature=0))
    first = run(agents.Runner.run(plain, "Hello!"))
    second = run(agents.Runner.run(plain, "And now?", previous_response_id=first.last_response_id))
    assert second.last_response_id not in (None, first.last_response_id)
    again = run(agents.Runner.run(plain, [*first.to_input_list(), {"role": "user", "content": "And now?"}]))
    assert again.final_output is not None


def test_an_agent_answers_in_a_type() -> None:
    agents: Any = import_module("agents")
    typed = agents.Agent(name="Typed", model=MODEL, output_type=Light)
    assert isinstance(run(agents.Runner.run(typed, "Which light?")).final_output, Light)


def test_an_agent_hands_over_to_another() -> None:
    agents: Any = import_module("agents")
    second = agents.Agent(name="Second", model=MODEL, model_settings=agents.ModelSettings(temperature=0))
    settings = agents.ModelSettings(tool_choice="required", temperature=0)
    first = agents.Agent(name="First", model=MODEL, handoffs=[second], model_settings=settings)
    result = run(agents.Runner.run(first, "Hello!", max_turns=3))
    assert result.last_agent.name == "Second"
    assert result.final_output


def test_a_session_keeps_what_was_said() -> None:
    agents: Any = import_module("agents")
    plain = agents.Agent(name="Plain", model=MODEL, model_settings=agents.ModelSettings(temperature=0))
    session = agents.SQLiteSession("conversation")  # in memory
    sizes = [
        run(agents.Runner.run(plain, text, session=session)).raw_responses[0].usage.input_tokens
        for text in ("Hello!", "And now?")
    ]
    assert sizes[0] < sizes[1]
    assert len(run(session.get_items())) == 4
    session.close()


# --- pydantic-ai ------------------------------------------------------------------------------------------------------


OPENAI = ["openai", "openai-responses", "openai-chat"]


@pytest.mark.parametrize("name", [*OPENAI, "anthropic"])
def test_pydantic_ai_answers_streams_and_calls(name: str) -> None:
    ai = import_module("pydantic_ai")
    model = f"{name}:{MODEL}"
    plain = ai.Agent(model, instructions="Be brief.", model_settings={"max_tokens": 20})
    first = plain.run_sync("Hello!")
    assert first.output
    assert plain.run_sync("And now?", message_history=first.all_messages()).output

    async def stream() -> str:
        async with plain.run_stream("Hello!") as streamed:
            return "".join([piece async for piece in streamed.stream_text(delta=True)])

    assert asyncio.run(stream())
    typed = ai.Agent(model, output_type=Light)  # pydantic-ai asks for a call of a tool that it makes of the type
    assert isinstance(typed.run_sync("Which light?").output, Light)


@pytest.mark.parametrize("name", OPENAI)  # of Anthropic's models it knows by name which take schemas
def test_pydantic_ai_asks_for_a_schema(name: str) -> None:
    ai = import_module("pydantic_ai")
    native = ai.Agent(f"{name}:{MODEL}", output_type=ai.NativeOutput(Light))
    assert isinstance(native.run_sync("Which light?").output, Light)
