"""`dragoman warm`: what it computes, reports and refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import main
from dragoman.config.resolve import demo_model_dir
from tests.support.tables import table

TEXT = "Rivers carry water from the mountains to the sea, and what they carry with it they leave on the way. " * 8
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
DEMO = demo_model_dir()
MODEL = ("--dtype", "f32", "--max-model-len", "512", "--kv-cache-gb", "0.05", "--max-num-seqs", "4")


def chat(**more: Any) -> str:
    messages = [{"role": "system", "content": TEXT[:400]}, {"role": "user", "content": "Hello"}]
    return json.dumps({"messages": messages, **more}) + "\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A text, and conversations, of which one has tools and one is wrong."""
    text, chats = tmp_path / "rivers.txt", tmp_path / "chats.jsonl"
    text.write_text(TEXT, encoding="utf-8")
    chats.write_text(chat() + "\n" + chat(tools=[TOOL]) + '{"messages": []}\n', encoding="utf-8")
    return text, chats


def warm(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["warm", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def numbers(line: str) -> list[int]:
    """(tokens, of them found) of a line."""
    found = re.search(r"(\d+) tokens, (\d+) of them found", line)
    assert found is not None, line
    return [int(found[1]), int(found[2])]


def test_the_next_run_finds_computed_prompts(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ("--prefix-store-gb", 0.2, "--prefix-store-dir", tmp_path / "store")
    code, out, err = warm(capsys, DEMO, *files, *MODEL, *store)
    text, chats, total = out.splitlines()
    assert code == 3
    assert f"dragoman: {files[1]} line 4: messages must hold at least one message, got []" in err
    assert text.startswith(f"{files[0]}: ")
    assert numbers(text)[1] == 0
    assert chats.startswith(f"{files[1]}: 2 prompts, ")
    assert chats.endswith(", 1 with errors")
    assert not total.startswith("0 B")
    files[1].write_text(chat() + chat(tools=[TOOL]), encoding="utf-8")
    code, out, _ = warm(capsys, DEMO, *files, *MODEL, *store)
    assert code == 0
    for line, count in zip(out.splitlines(), (1, 2), strict=False):
        num_tokens, num_found = numbers(line)
        assert num_tokens - 33 * count <= num_found < num_tokens
    assert out.splitlines()[-1].startswith("0 B written")


def test_where_nothing_is_kept_that_is_told(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, problem in (
        ((), "--prefix-store-gb: is needed, as the server has it"),
        (("--prefix-store-gb", 1, "--prefix-cache", "off", "--cache-dir", tmp_path), "--prefix-cache=off: keeps no"),
    ):
        code, out, err = warm(capsys, DEMO, files[0], *MODEL, *words)
        assert (code, out) == (1, "")
        assert f"dragoman: {problem}" in err


@table(
    ("words", "problem"),
    [
        (["--key", "carol"], "--key=carol (command line): must be one of alice, bob"),
        ([], "--key: required, because each key finds only its own prompts: must be one of alice, bob"),
    ],
)
def test_several_keys_must_be_named(
    words: list[str], problem: str, files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice: k-alice\nbob: k-bob\n", encoding="utf-8")
    code, out, err = warm(capsys, DEMO, files[0], *MODEL, "--api-key-file", keys, *words)
    assert (code, out) == (1, "")
    assert f"dragoman: {problem}\n" in err


@table(
    ("words", "problem"),
    [
        ([], "warm: needs a model and then files, before all options: MODEL FILE..."),
        (["demo"], "warm: needs a model and then files, before all options: MODEL FILE..."),
        (["demo", "no-such-file"], "no-such-file (command line): is no file"),
    ],
)
def test_a_mistake_is_told_in_a_line(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = warm(capsys, *words)
    assert (code, out) == (2, "")
    assert f"dragoman: {problem}\n" in err
