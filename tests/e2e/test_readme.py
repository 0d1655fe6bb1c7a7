"""Every command that the documentation shows is run, and answers what the documentation shows."""

from __future__ import annotations

import ast
import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.support.console_blocks import ConsoleBlock, console_blocks, without_varying_parts, write_answers
from tests.support.differences import lacking
from tests.support.server_process import ServerProcess
from tests.support.tables import table

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
FIRST_CALLS = ROOT / "docs" / "first-calls.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in console_blocks(page)]


def block_id(block: ConsoleBlock) -> str:
    path = re.search(r"127\.0\.0\.1:8080(\S*)", block.command)
    return f"{block.page.name}-{path.group(1) if path else block.command[:20]}"


def keys_of(answer: str) -> list[list[str]]:
    """The keys of each different line, in order: the shape of an answer whatever its words."""
    shapes: list[list[str]] = []
    for line in answer.splitlines():
        keys = re.findall(r'"(\w+)":', line)
        if keys and keys not in shapes:
            shapes.append(keys)
    return shapes


def split(answer: str) -> tuple[list[str], list[float]]:
    """What stands between the fractions in an answer, and the fractions."""
    parts = re.split(r"(-?\d+\.\d+(?:e-?\d+)?)", answer)
    return parts[::2], [float(part) for part in parts[1::2]]


@table("block", BLOCKS, ids=block_id)
def test_a_documented_command_answers_what_is_documented(
    block: ConsoleBlock, server: ServerProcess, engine: str, update_golden: bool
) -> None:
    answer = block.run(server.base_url)
    if update_golden:
        blocks = console_blocks(block.page)  # read again: earlier answers have moved this one
        answers = [answer if one.command == block.command else one.answer for one in blocks]
        write_answers(block.page, answers)
        return
    if "/api/v0/models" in block.command and engine in lacking()["weights of its own"]:
        assert keys_of(answer) == keys_of(block.answer)  # their format and precision are not known
        return
    words, numbers = split(without_varying_parts(answer))
    documented_words, documented_numbers = split(without_varying_parts(block.answer))
    assert words == documented_words
    assert numbers == pytest.approx(documented_numbers, abs=1e-3)  # processors add up in different orders


@pytest.mark.full("the same commands as above, of a server with packed weights")
@table("block", BLOCKS, ids=block_id)
def test_a_server_started_as_the_readme_says_answers_in_that_form(
    block: ConsoleBlock, default_server: ServerProcess
) -> None:
    assert keys_of(block.run(default_server.base_url)) == keys_of(block.answer)


def test_the_page_of_first_calls_shows_every_dialect() -> None:
    commands = " ".join(block.command for block in console_blocks(FIRST_CALLS))
    for route in ("/invocations", "/v1/chat/completions", "/v1/completions", "/v3/completions", "/generate ", "/api/"):
        assert route in commands, route


def test_the_readme_leads_to_every_dialect_and_fits_two_screens() -> None:
    text = README.read_text(encoding="utf-8")
    for page in (ROOT / "docs" / "dialects").glob("*.md"):
        assert f"(docs/dialects/{page.name})" in text, page.name
    assert len(text.splitlines()) <= 100


def test_the_readmes_python_example_runs() -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    ast.parse(source)
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(source, "README.md", "exec"), {})  # the documentation's own code, as a reader would run it
    assert len(out.getvalue().splitlines()) >= 2


@table("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_readmes_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in re.findall(r"^make ([a-z ]+?)(?: #| ARGS|$)", README.read_text(encoding="utf-8"), re.MULTILINE):
        for target in line.split():
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
