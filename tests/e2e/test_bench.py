"""`dragoman bench` against the real server, by each of its APIs, and as the documentation shows it."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.bench import COMMAND
from dragoman.cli.subcommand import Console, run_command
from dragoman.tools.bench.apis import APIS
from tests.support.server_process import ServerProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bench.md"
DOCUMENTED_URL = "http://127.0.0.1:8080"
EXAMPLES = re.findall(
    r"^```text\n\$ dragoman bench (.*)\n((?:(?!```).*\n)*)```$", PAGE.read_text("utf-8"), re.MULTILINE
)


def bench(*words: str) -> tuple[int, str, str]:
    out, errors = io.StringIO(), io.StringIO()
    return run_command(COMMAND, words, Console({}, out, errors)), out.getvalue(), errors.getvalue()


def shape(text: str) -> list[list[str]]:
    """The words of each line, with every number and its unit alike, and none of the lines that a busy machine adds."""
    lines = [line for line in text.splitlines() if " late; " not in line and " of a core" not in line]
    cells = (re.sub(r"[\d,.]+%?( m?s\b)?|(?<= )-(?=\s|$)", "0", line).split() for line in lines)
    return [[cell for cell in row if set(cell) != {"0"}] for row in cells]


@pytest.mark.parametrize("name", [name for name, api in APIS.items() if api.generates])
def test_the_server_is_measured_by_each_of_its_apis(name: str, server: ServerProcess, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    length = 6
    words = (
        "--requests",
        "4",
        "--concurrency",
        "2",
        "--prompt-tokens",
        "24",
        "--output-tokens",
        str(length),
        "--seed",
        "11",
    )
    ignoring = ("--ignore-eos",) if APIS[name].can_ignore_eos else ()
    code, out, errors = bench(server.base_url, "--api", name, *words, *ignoring, "--json", str(path))
    assert code == 0, errors + out
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found = report["points"][0]["measures"]
    assert (found["answered"], found["failed"]) == (4, 0)
    if name not in ("text", "text-batch"):
        assert found["counted_by"] == "usage"
        assert 0 < found["output_tokens"] <= length
        assert found["time_to_first_token_s"]["max"] <= found["latency_s"]["max"]
    if ignoring:
        assert found["output_tokens"] == length
    if found["prompt_tokens"] is not None:
        assert found["prompt_tokens"] == pytest.approx(24, abs=6)
    assert (found["prompt_tokens"] is None) == (name in ("lmi", "text", "text-batch"))


def test_what_the_server_speaks_is_found_out(server: ServerProcess) -> None:
    words = ("--requests", "2", "--output-tokens", "2", "--prompt-tokens", "8")
    for path, api in (("", "chat"), ("/v3", "ovms"), ("/generate_stream", "tgi"), ("/invocations", "lmi")):
        code, out, errors = bench(server.base_url + path, *words)
        assert code == 0, errors
        assert f"(API {api}" in out.splitlines()[0]


def test_a_model_that_is_not_there_is_one_line_in_the_servers_words(server: ServerProcess) -> None:
    code, out, errors = bench(server.base_url, "--api", "completions", "--model", "nope", "--requests", "2")
    assert (code, out) == (1, "")
    assert errors.startswith(f"dragoman: {server.base_url}/v1/completions: HTTP 404: ")
    assert "nope" in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.full("measures for seconds what the test above measures with fewer requests")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example[0][:60])
def test_a_documented_benchmark_prints_what_is_documented(
    example: tuple[str, str], server: ServerProcess, update_golden: bool
) -> None:
    command, documented = example
    code, out, errors = bench(*shlex.split(command.replace(DOCUMENTED_URL, server.base_url)))
    assert code == 0, errors
    shown = out.replace(server.base_url, DOCUMENTED_URL)
    if update_golden:
        page = PAGE.read_text(encoding="utf-8")
        head = f"$ dragoman bench {command}\n"
        PAGE.write_text(page.replace(head + documented, head + shown), encoding="utf-8")
        return
    assert shape(shown) == shape(documented)


def test_the_page_names_every_api_and_every_option() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(EXAMPLES) >= 3
    assert [option.flag for option in COMMAND.options if f"`{option.flag}" not in page] == []
    assert [name for name, api in APIS.items() if f"`{name}`" not in page or f"`{api.path}`" not in page] == []
