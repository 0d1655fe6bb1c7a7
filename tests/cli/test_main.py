"""The command before any model is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.cli import main
from dragoman.cli.commands import COMMANDS, CommandPlace
from dragoman.cli.subcommand import command_at
from dragoman.config.docs import options_help, options_page
from tests.support.environment import forget_settings

SOURCE = Path(dragoman.__file__).resolve().parents[1]


def command(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), **environ}
    return subprocess.run(
        [sys.executable, "-m", "dragoman", *words],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_settings(monkeypatch)


@pytest.mark.varies("how the command is started, and what its help says")
def test_the_installed_command_answers_help_and_version() -> None:
    assert command("--version").stdout == f"dragoman {dragoman.__version__}\n"
    result = command("serve", "--help-all")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith(options_help() + "\n")


def test_help_lists_the_common_options_and_names_help_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    assert 15 <= len([line for line in text.splitlines() if line.startswith("  --")]) <= 24
    assert text.endswith("`dragoman serve --help-all` lists all options, as docs/options.md does.\n")


@pytest.mark.parametrize("module", [place.module for place in COMMANDS.values() if place.module])
def test_no_option_runs_into_its_description(module: str) -> None:
    command = command_at(CommandPlace("", "", module))
    for option in command.options:
        after = command.help.partition(f"  {option.flag} {option.kind.placeholder}")[2]
        assert after[:1].isspace(), option.flag


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_without_a_subcommand_the_overview_is_shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert "usage: dragoman serve [MODEL]" in capsys.readouterr().out


def test_an_unknown_subcommand_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sevre"]) == 2
    assert capsys.readouterr().err.startswith(
        "dragoman: sevre: unknown command; the nearest one is serve; must be one of serve, "
    )


def test_config_prints_values_with_their_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "serving.properties").write_text("option.dtype=bf16\noption.trust_remote_code=true\n", encoding="utf-8")
    assert main(["config", str(tmp_path), "--port", "81"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    where = tmp_path / "serving.properties"
    assert f"model {tmp_path.name} in {tmp_path}" in lines
    assert f"dtype bf16 {where} line 1: option.dtype" in lines
    assert "port 81 command line: --port" in lines
    assert "max_model_len (the model's context length) default" in lines
    assert (
        f"option.trust_remote_code=true ({where} line 2): no effect here; a checkpoint's own code is never run" in lines
    )


def test_config_hides_the_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DRAGOMAN_API_KEY", "hush-hush")
    assert main(["config"]) == 0
    out = capsys.readouterr().out
    assert "hush-hush" not in out
    assert "environment: DRAGOMAN_API_KEY" in out


def test_config_docs_prints_the_options_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--docs"]) == 0
    assert capsys.readouterr().out == options_page()


@pytest.mark.parametrize("subcommand", ["serve", "config"])
def test_every_problem_is_one_line_and_no_server_starts(subcommand: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([subcommand, "--prot", "1", "--dtype", "int3"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "dragoman: --prot=1 (command line): unknown option; the nearest known one is --port",
        "dragoman: --dtype=int3 (command line): must be one of auto, int8, int4, bf16, f16, f32 "
        "(also fp16, fp32, half, float16, float, float32, bfloat16, i8, i4)",
    ]


def test_a_malformed_command_line_is_refused_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--port"]) == 2
    assert capsys.readouterr().err == "dragoman: --port (command line): must be followed by a value\n"
