"""Results are stored as they come, and the report shows the newest of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.serving import report, results
from benchmarks.serving.__main__ import main
from benchmarks.serving.results import Result

TITLES = {1: "Throughput", 8: "Scaling"}


def stored(directory: Path, *given: Result) -> list[results.Line]:
    for result in given:
        results.append(directory, result)
    return results.read(directory)


def test_results_come_back_as_they_were_stored(tmp_path: Path) -> None:
    result = Result(1, "dragoman (int8)", {"tokens_per_s": 12.5, "note": None}, {"clients": 32})
    [line] = stored(tmp_path, result)
    assert line.result == result
    assert line.machine["cores"]
    assert line.time.endswith("+00:00")


def test_the_newest_result_of_a_subject_wins_and_nothing_is_deleted(tmp_path: Path) -> None:
    lines = stored(tmp_path, Result(1, "a", {"x": 1}), Result(1, "b", {"x": 2}), Result(1, "a", {"x": 3}))
    assert len(lines) == 3
    assert [(line.result.subject, line.result.values) for line in results.latest(lines)] == [
        ("a", {"x": 3}),
        ("b", {"x": 2}),
    ]


def test_the_report_compares_rates_and_names_failures(tmp_path: Path) -> None:
    lines = stored(
        tmp_path,
        Result(1, "dragoman (int8)", {"tokens_per_s": 300.0}, {"clients": 32, "rounds": 5}),
        Result(1, "vLLM (bfloat16)", {"tokens_per_s": 120.0}, {"clients": 32, "rounds": 5}),
        Result(1, "OpenVINO GenAI", {"failed": "not | installed"}),
    )
    text = report.markdown(lines, TITLES)
    assert "## 1. Throughput" in text
    assert "| vLLM (bfloat16) | 120 | 2.5 |" in text
    assert "| OpenVINO GenAI | not / installed |" in text
    assert "Measured with clients 32, rounds 5." in text
    assert str(lines[0].machine["processor"]) in text


def test_a_subject_measured_with_other_settings_is_named(tmp_path: Path) -> None:
    usual = {"clients": 32, "requests": 4}
    given = [Result(1, name, {"tokens_per_s": 1.0}, usual) for name in ("a", "b")]
    lines = stored(tmp_path, *given, Result(1, "slow", {"tokens_per_s": 0.1}, {"clients": 32, "requests": 1}))
    assert "Measured with clients 32, requests 4. slow: requests 1." in report.markdown(lines, TITLES)


def test_kinds_of_results_that_share_no_value_get_tables_of_their_own() -> None:
    text = report.table([Result(8, "1 streams", {"tokens_per_s": 1.25}), Result(8, "prompt of 128", {"ttft_ms": 5})])
    assert text.splitlines() == [
        "| subject | tokens_per_s |",
        "|---|---|",
        "| 1 streams | 1.25 |",
        "",
        "| subject | ttft_ms |",
        "|---|---|",
        "| prompt of 128 | 5 |",
    ]


def test_the_report_command_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path, Result(1, "dragoman (int8)", {"tokens_per_s": 300.0}))
    assert main(["report", str(tmp_path)]) == 0
    written = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert written == capsys.readouterr().out
    assert "| dragoman (int8) | 300 | 1 |" in written


def test_a_directory_without_results_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "holds no results.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--only", "1,12"], "'12' is no row, must be one of: 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (["--rounds", "0"], "'0' must be an integer >= 1"),
        (["--without", "vllm,tgi"], "'tgi' is no peer, must be one of: vllm, llama.cpp, genai"),
    ],
)
def test_bad_arguments_are_told_with_what_is_allowed(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--model", "m", "--out", "o", *arguments])
    assert told in capsys.readouterr().err
