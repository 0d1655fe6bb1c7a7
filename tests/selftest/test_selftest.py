"""The verdicts on speed and on stored weights, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.tools.evaluate import Measures
from dragoman.tools.memory_speed import memory_bandwidth
from dragoman.tools.selftest.checks import Check, SelfTest, report_text
from dragoman.tools.selftest.generating import bandwidth_check, reference_check, rows_check

GIB = 1 << 30
PAGE = Path(__file__).resolve().parents[2] / "docs" / "selftest.md"


@pytest.mark.parametrize(
    ("step_s", "weights", "verdict"),
    [(0.1, GIB, "ok"), (1.0, GIB, "off"), (1.0, 1 << 20, "skipped"), (1.0, 0, "skipped")],
)
def test_a_step_has_to_be_about_as_fast_as_memory(step_s: float, weights: int, verdict: str) -> None:
    check = bandwidth_check(step_s, weights, 2e10)
    assert check.verdict == verdict
    assert bool(check.why) == (verdict != "ok")


def test_further_rows_have_to_be_cheaper_than_the_first() -> None:
    assert rows_check(1.0, 1.7, 8).verdict == "ok"
    check = rows_check(1.0, 9.0, 8)
    assert check.verdict == "off"
    assert check.found.startswith("1.14")


def test_weights_that_are_far_from_f32_are_off() -> None:
    near = Measures(100, 9.0, 9.0, divergence_mean=0.01, divergence_p99=0.1, agreement=0.95)
    far = Measures(100, 9.0, 9.0, divergence_mean=0.2, divergence_p99=1.0, agreement=0.7)
    assert reference_check("stored", near, 0.05).verdict == "ok"
    assert reference_check("stored", far, 0.05).verdict == "off"


def test_memory_has_a_bandwidth() -> None:
    assert memory_bandwidth(1) > 1e8


def test_the_table_says_what_is_off() -> None:
    checks = [Check("one", "ok", "0", "1"), Check("two", "off", "5", "1", "it is broken")]
    text = report_text(SelfTest("m", "f32 weights", 1.0, checks))
    assert "two: it is broken" in text
    assert text.endswith("\noff: two\n")
    assert report_text(SelfTest("m", "f32 weights", 1.0, checks[:1])).endswith("\nnothing is off\n")


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command, of the bundled model."""
    monkeypatch.chdir(tmp_path)  # where `demo` is the bundled model
    # what memory and processor do beside other tests is luck; the rest is not
    monkeypatch.setattr("dragoman.tools.selftest.generating.MOST_ROW_COST", 1000.0)
    return ["selftest", "demo", "--dtype", "int8", "--json", "--cache-dir", str(tmp_path / "kept")]


@pytest.mark.full("compares with a second model in f32; test_parity.py finds what is off in made-up engines")
def test_the_command_tests_a_model(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    verdicts = {check["name"]: check["verdict"] for check in found["checks"]}
    assert verdicts["batched as alone"] == verdicts["stored weights as f32"] == "ok"
    assert verdicts["kept graph as built again"] == "skipped"  # there was none yet
    assert main([*words, "--quick"]) == 0
    quick = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert "--quick" in quick["kept graph as built again"]["why"]


def test_a_quick_test_leaves_out_what_takes_another_model(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--quick"]) == 0
    quick = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert quick["batched as alone"]["verdict"] == "ok"
    assert quick["stored weights as f32"]["verdict"] == "skipped"
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in quick if name not in page] == []


def test_what_cannot_be_tested_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["selftest", str(tmp_path / "empty")]) != 0
    assert main(["selftest", "--engine", "remote", "--upstreams", "http://127.0.0.1:9"]) != 0
    assert "engine" in capsys.readouterr().err
    assert main(["selftest", "--help"]) == 0
    assert "--quick" in capsys.readouterr().out
