"""The scripts of `dragoman completion`, run by the shells themselves, and the imports of the command's start."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.cli.commands import COMMANDS
from dragoman.cli.completion import command_words
from dragoman.cli.terminal.arguments import PARAMETERS
from dragoman.config.kinds import Integer, Number
from dragoman.server.apis.openai_wire.fields import BOUNDS
from tests.support.tmux import HAS_TMUX, terminal

LINES = [
    ("dragoman comp", {"complete", "compress", "completion"}),
    ("dragoman serve --dtyp", {"--dtype"}),
    ("dragoman serve --dtype i", {"int4", "int8"}),
    ("dragoman chat --no-hist", {"--no-history"}),
    ("dragoman plan --router ", {"least-outstanding", "prefix"}),
    ("dragoman completion f", {"fish"}),
]


def script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    path = tmp_path / f"dragoman.{shell}"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    return path


def asked(*command: str) -> set[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return {line.partition("\t")[0] for line in done.stdout.splitlines()}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("bash", tmp_path, capsys)
    for line, expected in [*LINES, ("dragoman serve --dtype = i", {"int4", "int8"})]:  # as bash splits --dtype=i
        words = [*line.split(), ""] if line.endswith(" ") else line.split()
        asking = f"source {path}; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _dragoman"
        assert asked("bash", "-c", f'{asking}; printf "%s\\n" "${{COMPREPLY[@]}}"') == expected, line


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("fish", tmp_path, capsys)
    for line, expected in LINES:
        assert asked("fish", "-c", f"source {path}; complete -C {shlex.quote(line)}") == expected, line


@pytest.mark.skipif(shutil.which("zsh") is None or not HAS_TMUX, reason="zsh or tmux is not installed")
def test_zsh_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("zsh", tmp_path, capsys)
    with terminal(["zsh", "-f"], {"HOME": str(tmp_path), "PS1": ">"}) as pane:
        pane.enter(f"autoload -U compinit; compinit -u -D; source {path}; PS1='ready>'")
        pane.wait_for_prompt("ready>")
        pane.type("dragoman serve --dtyp")
        pane.press("Tab")
        pane.type("int")
        pane.wait_for("dragoman serve --dtype=int")
        pane.press("Tab", "Tab")
        pane.wait_for("int4", "int8")


@pytest.mark.parametrize("words", [[], ["ksh"], ["bash", "zsh"]])
def test_an_unknown_shell_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", *words]) == 2
    told = " ".join(words) or "nothing"
    assert capsys.readouterr().err == f"dragoman: completion: {told}: must be one shell of bash, zsh, fish\n"


def test_every_command_is_completed_and_described() -> None:
    found = command_words()
    assert [command.name for command in found] == list(COMMANDS)
    assert all(command.summary for command in found)


def test_the_parameters_have_the_ranges_of_the_openai_routes() -> None:
    numbers = {one.name: one.kind for one in PARAMETERS if isinstance(one.kind, Integer | Number)}
    rest = {one.name for one in PARAMETERS} - set(numbers)
    assert rest == {"stop", "dry_sequence_breakers", "ignore_eos"}
    for name, kind in numbers.items():
        bounds = BOUNDS[name]
        assert (kind.minimum, kind.maximum) == (bounds.low, bounds.high), name
        assert (isinstance(kind, Number) and not kind.inclusive) == bounds.is_low_open, name


def test_the_page_of_the_terminal_lists_the_parameters() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "terminal.md").read_text(encoding="utf-8")
    assert [parameter.flag for parameter in PARAMETERS if f"`{parameter.flag}`" not in page] == []


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["--help"], ("dragoman.config", "numpy", "openvino", "msgspec", "asyncio", "prompt_toolkit")),
        (["serve", "--help"], ("dragoman.server", "dragoman.cli.terminal", "numpy", "openvino", "prompt_toolkit")),
        (["chat", "--help"], ("dragoman.server", "numpy", "openvino", "prompt_toolkit")),
    ],
)
def test_help_imports_little(words: list[str], unwanted: tuple[str, ...]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "dragoman", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "dragoman.cli.main" in loaded
    assert [name for name in unwanted if name in loaded] == []
