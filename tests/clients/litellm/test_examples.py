"""The example for LiteLLM, run as its header says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "clients" / "litellm_chat.py"


def test_three_apis_answer(base_url: str) -> None:
    environ = {**os.environ, "DRAGOMAN_URL": base_url}
    command = [sys.executable, str(EXAMPLE), "What is a river?"]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=180)
    assert result.returncode == 0, result.stderr
    answers = dict(re.findall(r"^(openai|anthropic|ollama_chat): (.+)", result.stdout, re.MULTILINE))
    assert len(answers) == 3
    assert len(set(answers.values())) == 1, "the same question, asked greedily"
