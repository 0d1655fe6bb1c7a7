"""`dragoman batch` as a user runs it: the real command, the demo model, signals, a server elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.tools.bench.client import ALLOWED
from tests.batch.files import asking, ids_of, read_answers, write_lines
from tests.support.pooling_checkpoint import write_pooling_case
from tests.support.server_process import ServerProcess, serve

MODEL = ("--max-model-len", "128", "--dtype", "f32", "--kv-cache-gb", "0.05")
PATIENCE_S = 120


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "dragoman", "batch", *words]


def batch(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), env={**os.environ, **environ}, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A batch of all APIs, good and bad lines; the directory with its files."""
    directory = tmp_path_factory.mktemp("mixed")
    write_lines(
        directory / "in.jsonl",
        asking("chat", "/v1/chat/completions", **said("What is a river?")),
        asking("completion"),
        asking("response", "/v1/responses", input="What is bread?", max_output_tokens=16),
        asking("vector", "/v1/embeddings", input="a text"),
        asking("wrong", prompt="x", max_tokens=-1),
        "no request",
    )
    return directory, batch(str(directory / "in.jsonl"), str(directory / "out.jsonl"), *MODEL)


def by_id(directory: Path) -> dict[str | None, dict[str, Any]]:
    return {answer["custom_id"]: answer for answer in read_answers(directory / "out.jsonl")}


def test_every_api_answers_as_the_server_would(mixed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    found = by_id(mixed[0])
    assert found["chat"]["response"]["body"]["object"] == "chat.completion", "OpenAI's shape, not LMI's"
    assert found["chat"]["response"]["body"]["usage"]["completion_tokens"] == 4
    assert found["completion"]["response"]["body"]["choices"][0]["text"]
    assert found["response"]["response"]["body"]["object"] == "response"
    assert all(found[name]["response"]["request_id"] for name in ("chat", "completion", "response"))


def test_what_cannot_be_answered_is_an_error_in_its_line(mixed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    found = by_id(mixed[0])
    assert found["wrong"]["response"]["status_code"] == 400
    assert "max_tokens" in found["wrong"]["response"]["body"]["error"]["message"]
    assert found["vector"]["response"]["status_code"] >= 400, "this model generates"
    assert found[None]["error"]["line"] == 6


def test_the_summary_and_the_exit_code_tell_of_errors(mixed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    result = mixed[1]
    assert result.returncode == 3, result.stderr
    [summary] = result.stdout.splitlines()
    assert summary.startswith("6 lines: 3 answered, 3 with errors, 1 of them lines that cannot be asked; ")
    assert "completion tokens/s" in summary
    assert "Traceback" not in result.stderr


def test_a_batch_that_is_done_loads_nothing(mixed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    directory = mixed[0]
    before = (directory / "out.jsonl").read_bytes()
    again = batch(str(directory / "in.jsonl"), str(directory / "out.jsonl"), *MODEL)
    assert again.returncode == 3
    assert again.stdout.startswith("6 lines: 0 answered, 6 before (3 with errors); ")
    assert "compiling" not in again.stderr
    assert (directory / "out.jsonl").read_bytes() == before


def test_a_model_that_embeds_answers_embeddings(tmp_path: Path) -> None:
    model = write_pooling_case("bert_mean", tmp_path)
    write_lines(tmp_path / "in.jsonl", *[asking(str(i), "/v1/embeddings", input=f"text {i}") for i in range(5)])
    result = batch(str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--model", str(model))
    assert result.returncode == 0, result.stderr
    answers = read_answers(tmp_path / "out.jsonl")
    assert {len(answer["response"]["body"]["data"][0]["embedding"]) for answer in answers} == {48}
    assert "completion tokens/s" in result.stdout
    assert " 0 completion tokens, " in result.stdout


def until_lines(process: subprocess.Popen[str], out: Path, num_lines: int) -> None:
    """Return when the file has so many lines."""
    end_s = time.monotonic() + PATIENCE_S
    while not out.exists() or out.read_bytes().count(b"\n") < num_lines:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end_s
        time.sleep(0.01)


def long_file(directory: Path, num_lines: int) -> tuple[list[str], list[str]]:
    """(Words of the command, the custom_ids): long enough to be stopped in the middle."""
    ids = [f"id-{i:04}" for i in range(num_lines)]
    lines = [asking(one, prompt=f"A story {one}", max_tokens=16, ignore_eos=True) for one in ids]
    write_lines(directory / "in.jsonl", *lines)
    return [str(directory / "in.jsonl"), str(directory / "out.jsonl"), *MODEL, "--concurrency", "8"], ids


@pytest.mark.full("three batches with a model; test_run.py goes on from every torn file")
def test_a_batch_that_is_killed_and_run_again_has_each_answer_exactly_once(tmp_path: Path) -> None:
    words, ids = long_file(tmp_path, 320)
    out = tmp_path / "out.jsonl"
    process = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until_lines(process, out, 10)
    process.kill()
    process.communicate()
    killed_at = len(read_answers(out))
    assert 10 <= killed_at < len(ids)
    before = out.read_bytes()
    with out.open("ab") as file:
        file.write(before[: len(before.splitlines()[0]) // 2])  # as if it had been killed within a line
    result = batch(*words)
    assert result.returncode == 0, result.stderr
    assert f"{len(ids) - killed_at} answered, {killed_at} before" in result.stdout
    assert ids_of(out) == ids
    assert out.read_bytes().startswith(before)


@pytest.mark.varies("how signals end a process")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full("the same with another signal"))],
)
def test_a_batch_that_is_stopped_says_how_it_goes_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    words, ids = long_file(tmp_path, 4000)
    process = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until_lines(process, tmp_path / "out.jsonl", 5)
    process.send_signal(number)
    told, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, errors
    num_answered = len(read_answers(tmp_path / "out.jsonl"))
    assert 5 <= num_answered < len(ids)
    assert f"stopped; the same command goes on with the {len(ids) - num_answered} lines that are left" in errors
    assert told.startswith(f"{len(ids)} lines: {num_answered} answered, {len(ids) - num_answered} left; ")
    assert "Traceback" not in errors


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("the-key\n", encoding="utf-8")
    with serve(*MODEL, "--api-key-file", str(keys), "--job-queue-size", "0", "--max-num-seqs", "2") as running:
        yield running


def test_a_server_elsewhere_answers_even_if_it_is_busy(server: ServerProcess, tmp_path: Path) -> None:
    """It takes two requests at a time and refuses all others, which are asked again."""
    ids = [str(i) for i in range(12)]
    write_lines(tmp_path / "in.jsonl", *[asking(one) for one in ids])
    words = (str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--url", f"{server.base_url}/v1")
    result = batch(*words, "--concurrency", "6", DRAGOMAN_API_KEY="the-key")
    assert result.returncode == 0, result.stderr + result.stdout
    assert ids_of(tmp_path / "out.jsonl") == sorted(ids)
    assert "compiling" not in result.stderr


def test_a_key_that_is_not_known_ends_the_batch_and_leaves_no_answers(server: ServerProcess, tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", asking("a"), asking("b"))
    words = (str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--url", server.base_url)
    result = batch(*words, DRAGOMAN_API_KEY="wrong")
    assert result.returncode == 1
    assert "answered 401" in result.stderr
    assert "set the variable DRAGOMAN_API_KEY" in result.stderr
    assert read_answers(tmp_path / "out.jsonl") == []


WRONG = [
    ([], "needs two files first, IN.jsonl with the requests and OUT.jsonl for the answers"),
    (["in.jsonl"], "needs two files first"),
    (["in.jsonl", "in.jsonl"], "in.jsonl (command line): must be another file than the one with the requests"),
    (["in.jsonl", "out.jsonl", "--concurrency", "0"], "--concurrency=0 (command line): must be "),
    (["in.jsonl", "out.jsonl", "--url", "http://x", "--model", "y"], "--model=y (command line): is not for --url"),
    (["in.jsonl", "out.jsonl", "--url", "http://x", "--dtype=f32"], "--dtype=f32 (command line): is not for --url"),
    (["in.jsonl", "out.jsonl", "--prot", "1"], "--prot=1 (command line): unknown option"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[" ".join(words) or "nothing" for words, _ in WRONG])
def test_a_wrong_command_line_is_told_in_a_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dragoman.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["batch", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_files_and_addresses_that_are_not_there_are_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dragoman.cli import main

    out = str(tmp_path / "out.jsonl")
    assert main(["batch", str(tmp_path / "none.jsonl"), out, "--url", "http://127.0.0.1:1"]) == 1
    assert "none.jsonl" in capsys.readouterr().err
    write_lines(tmp_path / "in.jsonl", asking("a"))
    assert main(["batch", str(tmp_path / "in.jsonl"), out, "--url", "ftp://x"]) == 1
    message = f"dragoman: --url=ftp://x (command line): must be {ALLOWED}\n"
    assert message in capsys.readouterr().err
    assert main(["batch", str(tmp_path / "in.jsonl"), str(tmp_path / "none" / "out.jsonl")]) == 1
    assert "none/out.jsonl" in capsys.readouterr().err
