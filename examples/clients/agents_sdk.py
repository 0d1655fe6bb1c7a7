"""OpenAI's Agents SDK: an agent that calls a tool of this file, and answers with what it returned.

Install: pip install openai-agents
Run:     dragoman serve                             (in another terminal)
         python examples/clients/agents_sdk.py "What is the weather in Paris?"
Elsewhere, or another model: DRAGOMAN_URL=http://host:port DRAGOMAN_MODEL=name
"""

import os
import sys

from agents import (
    Agent,
    ModelSettings,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

URL = os.environ.get("DRAGOMAN_URL", "http://127.0.0.1:8080")
MODEL = os.environ.get("DRAGOMAN_MODEL", "demo")


@function_tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    print(f"the tool was asked for {city!r}")
    return f"It is sunny in {city}, 21 degrees."


def main(question: str) -> None:
    """Let the agent work on the question, and print its answer."""
    key = os.environ.get("DRAGOMAN_API_KEY", "none")
    # The SDK speaks the Responses API, and would send traces to OpenAI.
    set_default_openai_client(AsyncOpenAI(base_url=f"{URL}/v1", api_key=key), use_for_tracing=False)
    set_tracing_disabled(True)
    # "required": the bundled model is too small to know by itself when a tool helps. Larger ones do well with "auto".
    settings = ModelSettings(tool_choice="required", temperature=0, max_tokens=60)
    agent = Agent(name="Weather", instructions="Be brief.", model=MODEL, tools=[get_weather], model_settings=settings)
    result = Runner.run_sync(agent, question, max_turns=4)
    print("the agent answered:", result.final_output)


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "What is the weather in Paris?")
