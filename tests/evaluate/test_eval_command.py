"""`dragoman eval` on the bundled model, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest

from demo.corpus.mix import sample_document
from dragoman.cli import main
from dragoman.config.resolve import demo_model_dir
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import ModelOptions, load_model
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from tests.evaluate.test_measures import log_softmax
from tests.support.forward import forward_batch
from tests.support.tables import table

DEMO = demo_model_dir()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    stream = Random(1)
    path = tmp_path / "text.txt"
    path.write_text("<|endoftext|>".join("".join(part for part, _ in sample_document(stream)) for _ in range(6)))
    return path


def evaluated(capsys: pytest.CaptureFixture[str], tmp_path: Path, *words: str) -> dict[str, object]:
    assert main(["eval", str(DEMO), "--cache-dir", str(tmp_path), "--json", *words]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_numbers_are_those_of_all_logits(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--text", str(text), "--window", "100", "--tokens", "200", "--dtype", "int4", "--against-dtype", "f32"]
    found = evaluated(capsys, tmp_path, *words)
    tokens = load_tokenizer(DEMO).encode(text.read_text(), add_special_tokens=False)[:200]
    logs = {}
    for weight_type in ("int4", "f32"):
        runner = OpenVinoRunner(load_model(DEMO, ModelOptions(weight_type)), 4)
        parts = []
        for begin in (0, 100):
            batch = forward_batch([(tokens[begin : begin + 100], 0, range(4))], range(99))
            parts.append(log_softmax(runner.forward(batch).copy()))
        logs[weight_type] = np.concatenate(parts)
    targets = [*tokens[1:100], *tokens[101:200]]
    assert found["num_tokens"] == 198
    surprise = -logs["int4"][np.arange(198), targets].mean()
    # the last token of a window is read here and not there: with packed weights steps of other sizes round otherwise
    assert found["perplexity"] == pytest.approx(np.exp(surprise), rel=0.02)
    assert found["reference_perplexity"] == pytest.approx(
        np.exp(-logs["f32"][np.arange(198), targets].mean()), rel=1e-3
    )
    divergence = (np.exp(logs["f32"]) * (logs["f32"] - logs["int4"])).sum(axis=1)
    assert found["divergence_mean"] == pytest.approx(divergence.mean(), rel=0.1)


def test_without_another_model_there_is_a_perplexity_alone(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", str(DEMO), "--cache-dir", str(tmp_path), "--dtype", "f32", "--text", str(text), "--stride", "32"]
    assert main([*words, "--window", "64"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == ["model", "text", "perplexity"]
    found = evaluated(capsys, tmp_path, *words[4:], "--window", "64")
    assert found["divergence_mean"] is None
    assert f"{found['perplexity']:.4f}" in out


def test_a_model_is_nothing_apart_from_itself(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(capsys, tmp_path, "--text", str(text), "--tokens", "90", "--dtype", "f32", "--against", str(DEMO))
    assert (found["divergence_mean"], found["agreement"]) == (0.0, 1.0)


@table(
    ("words", "code", "told"),
    [
        ([], 2, "--text: is needed, must be "),
        (["--text", "nowhere.txt"], 1, "--text=nowhere.txt (command line): must be a file that can be read"),
        (
            ["--text", "{text}", "--window", "9", "--stride", "10"],
            2,
            "--stride=10 (command line): must be at most --window",
        ),
        (["--text", "{text}", "--window", "9999"], 1, "--window=9999 (command line): must be at most the context"),
        (["--text", "{text}", "--against-dtype", "int3"], 2, "--against-dtype=int3 (command line): must be one of"),
        (["--text", "{text}", "--against", "{other}"], 1, "must be a model with the same tokenizer, but its token"),
        (["--text", "{text}", "--against", "nowhere"], 2, "nowhere"),
        (["--text", "{empty}"], 1, "must be a file with text, but it is empty"),
        (["--text", "{text}", "--engine", "vllm"], 1, "must be rolling"),
    ],
)
def test_what_cannot_be_evaluated_is_one_line(
    words: list[str], code: int, told: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.txt").touch()
    other = tmp_path / "other"
    shutil.copytree(DEMO, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = [token for token, number in vocabulary.items() if number in (400, 401)]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    places = {"text": text, "empty": tmp_path / "empty.txt", "other": other}
    assert main(["eval", str(DEMO), *(word.format(**places) for word in words)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line.startswith("dragoman:")]
    assert len(lines) == 1
    assert told in lines[0]


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(flag in out for flag in ("--text", "--against", "--against-dtype", "--window", "--stride", "--json"))
