"""The examples, run as their headers say, against real servers: those whose clients come with the dev extra.

The others are in tests/clients, which have environments of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess, serve
from tests.support.tables import table

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path for path in EXAMPLES.rglob("*") if path.suffix in (".py", ".sh"))


def run(*command: str, environ: Mapping[str, str]) -> str:
    """What the command writes. It must succeed, and complain of nothing."""
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def ask(example: str, server: ServerProcess, *arguments: str) -> dict[str, str]:
    """What an example in Python writes: text by the word that stands before it."""
    environ = {"DRAGOMAN_URL": server.base_url}
    out = run(sys.executable, str(EXAMPLES / example), *arguments, environ=environ)
    return dict(re.findall(r"^([\w ]+): (.*(?:\n(?![\w ]+: ).*)*)", out, re.MULTILINE))


def header_curl(path: Path) -> str:
    """The curl command of an example's header."""
    found = re.search(r"^ +(curl (?:.*\\\n)*.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


@table("path", PROGRAMS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_an_example_says_what_it_needs_and_is_in_the_table(path: Path) -> None:
    header = path.read_text(encoding="utf-8").split("\n\n", 2)
    assert "Install:" in "".join(header)
    assert "Run: " in "".join(header)
    assert f"({path.relative_to(EXAMPLES)})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_the_table_leads_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert len(targets) > 10
    assert [target for target in targets if not (EXAMPLES / target).exists()] == []


def test_openais_client_answers_whole_streamed_and_in_json(server: ServerProcess) -> None:
    answers = ask("clients/openai_chat.py", server, "What is a river?")
    assert answers["whole"].strip()
    assert answers["streamed"].strip() == answers["whole"].strip()
    assert json.loads(answers["as JSON"]).keys() == {"topic", "is_about_nature"}


def test_hugging_faces_client_chats_and_continues(server: ServerProcess) -> None:
    answers = ask("clients/huggingface.py", server, "What is a river?")
    assert len(answers["chat"].split()) > 3
    assert len(answers["text"].split()) > 3


def test_boto3_asks_whole_and_streamed(server: ServerProcess) -> None:
    answers = ask("clients/sagemaker.py", server, "What is a river?")
    assert answers["whole"].strip()
    assert answers["streamed"].strip() == answers["whole"].strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_asks_by_seven_apis(server: ServerProcess) -> None:
    environ = {"DRAGOMAN_URL": server.base_url}
    out = run("bash", str(EXAMPLES / "clients" / "curl.sh"), "What is a river?", environ=environ)
    answers = dict(re.findall(r"^== .*: POST (\S+)\n((?:(?!==).*\n)*)", out, re.MULTILINE))
    assert len(answers) == 7
    assert answers.pop("/api/generate-one").strip()
    for path, answer in answers.items():
        assert "error" not in json.loads(answer) or json.loads(answer)["error"] is None, path


@pytest.mark.full("loads a model for a script of three lines; tests/batch has the command")
def test_the_batch_is_answered_without_a_server(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(EXAMPLES / "batch" / "batch.sh"), str(tmp_path / "answers.jsonl"), "--kv-cache-gb", "0.01"]
    out = run(*command, environ={"PATH": path})
    answers = dict(re.findall(r"^(\w+): (.+)$", out, re.MULTILINE))
    lines = (EXAMPLES / "batch" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    assert answers.keys() >= {json.loads(line)["custom_id"] for line in lines}
    assert [text for text in answers.values() if text.startswith("failed")] == []


def test_the_search_finds_the_text_that_was_asked_for(pooling_server: ServerProcess, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("people\nthe way of water\noil\n", encoding="utf-8")
    search = [sys.executable, str(EXAMPLES / "embeddings" / "search.py")]
    environ = {"DRAGOMAN_URL": pooling_server.base_url}
    out = run(*search, "embedder", "the way of water", str(texts), environ=environ)
    lines = out.splitlines()
    assert lines[0] == "1.000  the way of water"
    cosines = [float(line.split()[0]) for line in lines]
    assert cosines == sorted(cosines, reverse=True)
    assert len(lines) == 3


def test_the_search_tells_what_a_model_that_writes_answers(server: ServerProcess) -> None:
    command = [sys.executable, str(EXAMPLES / "embeddings" / "search.py"), "demo", "oil"]
    environ = {**os.environ, "DRAGOMAN_URL": server.base_url}
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    assert "demo generates text and does not embed" in result.stderr


@pytest.mark.full("two starts; tests/hooks serves formatters and handlers")
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("folder", ["formatter", "handler"])
def test_code_of_ones_own_answers_what_its_header_asks(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = EXAMPLES / folder / "model.py"
    monkeypatch.chdir(ROOT)
    with serve("--entry-point", f"examples/{folder}/model.py", "--kv-cache-gb", "0.01") as server:
        command = header_curl(path).replace("http://127.0.0.1:8080", server.base_url)
        out = run("bash", "-c", command, environ={})
    if folder == "handler":
        assert json.loads(out) == {"words": 3}
    else:
        lines = [json.loads(line) for line in out.splitlines()]
        assert "".join(line["word"] for line in lines).strip()
        assert {line["tag"] for line in lines} == {"blue"}
