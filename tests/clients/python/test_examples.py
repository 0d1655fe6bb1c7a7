"""The examples whose clients come with this environment: OpenAI's Agents SDK, LangChain, LlamaIndex."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

CLIENTS = Path(__file__).resolve().parents[3] / "examples" / "clients"


def ask(example: str, base_url: str, *arguments: str) -> dict[str, str]:
    """What an example writes: text by the words that stand before it."""
    environ = {**os.environ, "DRAGOMAN_URL": base_url}
    command = [sys.executable, str(CLIENTS / example), *arguments]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=180)
    assert result.returncode == 0, result.stderr
    return dict(re.findall(r"^([\w ]+): (.*(?:\n(?![\w ]+: ).*)*)", result.stdout, re.MULTILINE))


def test_an_agent_asks_its_tool_and_answers(base_url: str) -> None:
    command = [sys.executable, str(CLIENTS / "agents_sdk.py"), "What is the weather in Paris?"]
    environ = {**os.environ, "DRAGOMAN_URL": base_url}
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=180)
    assert result.returncode == 0, result.stderr
    asked, *answer = result.stdout.splitlines()
    assert asked.startswith("the tool was asked for ")
    assert "the agent answered: " in "\n".join(answer)


def test_langchain_answers_whole_and_streamed(base_url: str) -> None:
    answers = ask("langchain_chat.py", base_url, "rivers")
    assert answers["whole"].strip()
    assert answers["streamed"].strip() == answers["whole"].strip()


def test_llama_index_talks(base_url: str) -> None:
    answers = ask("llama_index_chat.py", base_url, "What is a river?")
    assert answers["first"].strip()
    assert answers["second"].strip()
