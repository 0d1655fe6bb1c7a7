"""`dragoman chat` and `complete` without a terminal: one message from the standard input, against a scripted server."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest

from dragoman.cli import main
from dragoman.cli.terminal import chat
from dragoman.cli.terminal.arguments import names_model, open_server
from dragoman.cli.terminal.servers import ModelServer, Target
from dragoman.config.resolve import Config, demo_model_dir
from tests.support.scripted_chat_server import ScriptedChatServer, said, scripted_chat_server
from tests.support.tables import table

PNG = b"\x89PNG\r\n\x1a\n and so on"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # where no directory is called like a bundled model
    for name in os.environ:
        if name.startswith(("OPTION_", "SERVING_", "HF_", "DRAGOMAN_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def server() -> Iterator[ScriptedChatServer]:
    with scripted_chat_server() as running:
        yield running


def run(monkeypatch: pytest.MonkeyPatch, stdin: str, *words: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    return main(words)


def test_the_standard_input_is_one_message(
    server: ScriptedChatServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers.append(said("It is", " blue."))
    words = ("chat", server.url, "--system", "Be brief.", "--temperature", "0", "--stop", '["\\n\\n"]')
    assert run(monkeypatch, "What colour\nis the sky?\n", *words) == 0
    assert capsys.readouterr().out == "It is blue.\n"
    assert server.bodies == [
        {
            "model": "first",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "What colour\nis the sky?"},
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.0,
            "stop": ["\n\n"],
        }
    ]


def test_a_prompt_after_the_model_is_the_only_message(
    server: ScriptedChatServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Open(io.StringIO):
        """A standard input that must not be read: a terminal, or a pipe that stays open."""

        def read(self, size: int | None = -1) -> str:
            raise AssertionError("the standard input was read")

    monkeypatch.setattr(sys, "stdin", Open())
    for words in (
        ["run", server.url, "Why is it?"], ["chat", server.url, "Why", "is", "it?"],
        ["run", "--temperature", "0", server.url, "--no-history", "Why is it?"],
    ):  # fmt: skip
        server.answers.append(said("It is", " so."))
        assert main(words) == 0
        assert capsys.readouterr().out == "It is so.\n"
        assert server.bodies[-1]["messages"] == [{"role": "user", "content": "Why is it?"}]
    server.answers.append(said("It is so."))
    assert run(monkeypatch, "Why?", "run", server.url, "-") == 0
    assert server.bodies[-1]["messages"] == [{"role": "user", "content": "Why?"}]


def test_without_a_terminal_only_the_answer_is_written(
    server: ScriptedChatServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city": '}}
    rest = {"index": 0, "function": {"arguments": '"Rome"}'}}
    server.answers.append(
        [{"reasoning_content": "hm"}, {"content": "I look."}, {"tool_calls": [call]}, {"tool_calls": [rest]}]
    )
    assert run(monkeypatch, "weather?", "chat", server.url) == 0
    assert capsys.readouterr().out == 'I look.\ntool call weather({"city": "Rome"})\n'


def test_model_key_and_picture_are_sent(
    server: ScriptedChatServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "tools.json").write_text('[{"type": "function", "function": {"name": "f"}}]', encoding="utf-8")
    monkeypatch.setenv("MY_KEY", "hush")
    server.answers.append(said("a cat"))
    words = ["--remote-model", "other", "--api-key-env", "MY_KEY", "--image", str(tmp_path / "a.png")]
    assert run(monkeypatch, "what?", "chat", f"{server.url}/v1/", *words, "--tools", str(tmp_path / "tools.json")) == 0
    (body,) = server.bodies
    assert (body["model"], body["tools"][0]["function"]["name"]) == ("other", "f")
    picture, text = body["messages"][0]["content"]
    assert picture["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert text == {"type": "text", "text": "what?"}
    assert server.headers[0]["authorization"] == "Bearer hush"


def test_without_a_key_none_is_sent(server: ScriptedChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers.append(said("a"))
    assert run(monkeypatch, "b", "chat", server.url) == 0
    assert "authorization" not in server.headers[0]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((400, {"error": {"message": "temperature: must\nbe less"}}), "refused with 400: temperature: must be less"),
        ((424, {"error": "no", "code": 424}), "refused with 424: no"),
        ((500, {"detail": "oh"}), "refused with 500: oh"),
        ([{"content": "half"}, {"error": {"message": "the engine died"}}], "the engine died"),
    ],
)
def test_a_failure_gives_one_line_and_the_exit_code(
    answer: tuple[int, dict[str, object]] | list[dict[str, object]],
    told: str,
    server: ScriptedChatServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.answers.append(answer)
    assert run(monkeypatch, "hello", "chat", server.url) == 1
    assert capsys.readouterr().err == f"dragoman: {told}\n"


def test_an_unreachable_server_gives_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_chat_server() as gone:
        url = gone.url
    assert run(monkeypatch, "hello", "chat", url) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"dragoman: {url} does not list its models ({url}/v1/models cannot be reached: ")
    assert error.endswith("name one with --remote-model\n")
    assert error.count("\n") == 1


def test_an_empty_standard_input_is_an_error(
    server: ScriptedChatServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, " \n", "chat", server.url) == 1
    assert capsys.readouterr().err.startswith("dragoman: the standard input: must hold a message")
    assert run(monkeypatch, "", "complete", server.url) == 1
    assert capsys.readouterr().err.startswith("dragoman: PROMPT: must be a text that is not empty")


@table(
    ("words", "told"),
    [
        (["chat", "--temperature", "3"], "--temperature=3 (command line): must be a number >= 0 and <= 2"),
        (["chat", "http://a b"], "http://a b (command line): must be an address as http://HOST:PORT"),
        (["chat", "http://127.0.0.1:1", "--dtype", "int4"], "--dtype (command line): is not for http://127.0.0.1:1"),
        (["chat", "--remote-model", "m"], "--remote-model=m (command line): is for a URL"),
        (["chat", "--stop", "[1]"], "--stop=[1] (command line): must be a text that is not empty, or a JSON array"),
        (["complete", "--logprobs", "99", "x"], "--logprobs=99 (command line): must be an integer from 0 to 20"),
        (["complete", "demo", ""], "PROMPT (command line): must be a text that is not empty"),
        (["run", "demo", " "], "PROMPT (command line): must be a text that is not empty"),
        (
            ["chat", "--tmperature", "1"],
            "--tmperature (command line): unknown option; the nearest one is --temperature\n",
        ),
    ],
)
def test_mistakes_on_the_command_line_are_reported(
    words: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "hello", *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"dragoman: {told}")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "content", "told"),
    [("--image", "no picture", "must be a picture: PNG"), ("--tools", "{}", "must hold a JSON array of objects")],
)
def test_unusable_files_are_reported(
    option: str,
    content: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "file"
    path.write_text(content, encoding="utf-8")
    assert run(monkeypatch, "hello", "chat", "http://127.0.0.1:1", option, str(path)) == 1
    assert capsys.readouterr().err.startswith(f"dragoman: {option}={path} (command line): {told}")


def test_complete_streams_prints_json_and_logprobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the bundled model in this process: the three forms have the same greedy text."""
    words = ["--dtype", "f32", "--temperature", "0", "--max-tokens", "8"]
    assert run(monkeypatch, "", "complete", "The sky is", *words) == 0
    text = capsys.readouterr().out.removesuffix("\n")
    assert text
    assert run(monkeypatch, "The sky is\n", "complete", "demo", "--json", *words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["choices"][0]["text"].rstrip("\n") == text
    assert answer["usage"]["completion_tokens"] == 8
    assert run(monkeypatch, "The sky is", "complete", "-", "--logprobs", "2", *words) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert "".join(json.loads(row[1]) for row in rows).rstrip("\n") == text
    for row in rows:
        likeliest, second = (one.rpartition(" ") for one in row[2:])
        assert (likeliest[0], float(likeliest[2])) == (row[1], float(row[0]))
        assert float(second[2]) <= float(likeliest[2]) <= 0
    assert run(monkeypatch, "", "complete", "The sky is", *words[:4], "--max-tokens", "3000") == 1
    assert "maximum context length" in capsys.readouterr().err


def test_chat_with_a_model_in_this_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["chat", "demo", "--dtype", "f32", "--temperature", "0", "--max-tokens", "12"]
    assert run(monkeypatch, "What is Deep Learning?", *words) == 0
    assert capsys.readouterr().out.startswith("Deep learning is ")
    assert run(monkeypatch, "hello", "chat", "./nowhere") == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_model_without_sampling_defaults_gets_ollamas(
    server: ScriptedChatServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened(
        config: Config | None, target: Target, environ: Mapping[str, str], errors: TextIO, **_: bool
    ) -> ModelServer:
        return open_server(None, replace(target, url=server.url), environ, errors)

    monkeypatch.setattr(chat, "open_server", opened)
    model = tmp_path / "model"
    shutil.copytree(demo_model_dir(), model)
    (model / "generation_config.json").unlink(missing_ok=True)
    server.answers += [said("Yes.")] * 3
    assert run(monkeypatch, "Is it?", "chat", str(model)) == 0
    assert run(monkeypatch, "Is it?", "chat", str(model), "--temperature", "0") == 0
    (model / "generation_config.json").write_text('{"temperature": 0.6}', encoding="utf-8")
    assert run(monkeypatch, "Is it?", "chat", str(model)) == 0
    sampled = [{name: body.get(name) for name in ("temperature", "top_k", "top_p")} for body in server.bodies]
    assert sampled == [
        {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
        {"temperature": 0, "top_k": 40, "top_p": 0.9},
        {"temperature": None, "top_k": None, "top_p": None},
    ]


@table(
    ("word", "is_model"),
    [
        ("demo", True),
        ("./m", True),
        ("Qwen/Qwen3-0.6B", True),
        ("http://127.0.0.1:8080", True),
        ("Deep learning is", False),
        ("Deep learning is " * 300, False),  # longer than any path
    ],
)
def test_a_single_word_is_a_model_or_a_prompt(word: str, is_model: bool) -> None:
    assert names_model(word) == is_model
