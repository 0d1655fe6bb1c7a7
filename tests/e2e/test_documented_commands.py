"""What pages show to be pasted is run, or stands in a list with the reason why it is not.

Commands that answer are run by test_readme.py; here are the other blocks: shell, and Python. A shell block runs in a
directory with what pages speak of (path/to/model, text.txt), with some commands made harmless: `dragoman serve` becomes
`dragoman config`, which reads the same options; `make` only says what it would run; `pip install` looks for the extra in
pyproject.toml; `curl` fails where the answer is an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from dragoman.config.resolve import demo_model_dir
from tests.support.console_blocks import DOCUMENTED_URL, console_blocks
from tests.support.documented import NOT_RUN, REASONS, ROOT, SHELL, CodeBlock, code_blocks, documented_pages
from tests.support.server_process import ServerProcess

BLOCKS = list(code_blocks())
PRELUDE = """
set -euo pipefail
dragoman() {
  if [ "${1-}" = serve ]; then shift; "$PYTHON" -m dragoman config "$@" > /dev/null; else "$PYTHON" -m dragoman "$@"; fi
}
make() { (unset MAKEFLAGS MAKELEVEL; command make --no-print-directory --dry-run --directory "$ROOT" "$@" > /dev/null); }
curl() { command curl --fail-with-body --silent --show-error "$@"; }
pip() { case " $EXTRAS " in *" ${2#.} "*) ;; *) echo "no such extra: $2" >&2; return 1 ;; esac; }
"""
# Those that compute for long, or load a model.
SLOW = ("docs/batch.md", "docs/bench.md", "docs/compression.md", "docs/doctor.md", "docs/tour.md")
SHELL_BLOCKS = [
    block
    for block in BLOCKS
    if block.is_run and (block.is_session or (block.language in SHELL and block.language != "console"))
]
PYTHON_PAGES = sorted({block.page for block in BLOCKS if block.is_run and block.language == "python"})


def block_id(block: CodeBlock) -> str:
    return f"{block.page}:{block.line}"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where commands run: with all that pages call by a name."""
    (tmp_path / "path" / "to").mkdir(parents=True)
    for name in ("path/to/model", "MODEL", "MODEL_DIR", "path/to/compressed"):
        (tmp_path / name).symlink_to(demo_model_dir())
    (tmp_path / "text.txt").write_text("Deep learning is a kind of machine learning. " * 60, encoding="utf-8")
    for name in ("keys", "cert.pem", "key.pem"):
        (tmp_path / name).write_text("secret\n", encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def run(command: list[str], directory: Path) -> str:
    """What a command says; it must succeed within a minute."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names = " ".join(f"[{name}]" for name in extras)
    environ = {**os.environ, "PYTHON": sys.executable, "ROOT": str(ROOT), "EXTRAS": names}
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def case(value: CodeBlock | str, page: str) -> ParameterSet:
    """A block or a page as a case, marked if it takes long."""
    name = block_id(value) if isinstance(value, CodeBlock) else value
    return pytest.param(value, id=name, marks=[pytest.mark.full("a long command")] if page in SLOW else [])


@pytest.mark.parametrize("block", [case(block, block.page) for block in SHELL_BLOCKS])
def test_a_shell_block_runs(block: CodeBlock, server: ServerProcess, directory: Path) -> None:
    run(["bash", "-c", PRELUDE + block.commands.replace(DOCUMENTED_URL, server.base_url)], directory)


@pytest.mark.parametrize("page", [case(page, page) for page in PYTHON_PAGES])
def test_the_python_of_a_page_runs(page: str, server: ServerProcess, directory: Path) -> None:
    """All blocks of a page, one after the other, as a reader pastes them."""
    blocks = [block.source for block in BLOCKS if block.page == page and block.language == "python" and block.is_run]
    said = run([sys.executable, "-c", "\n".join(blocks).replace(DOCUMENTED_URL, server.base_url)], directory)
    assert said.strip() or "print(" not in "".join(blocks)


def test_a_console_block_shows_one_command_and_its_answer() -> None:
    """Any other would be passed over by the test that compares answers."""
    found = sum(len(console_blocks(page)) for page in documented_pages())
    assert found == sum(block.language == "console" for block in BLOCKS)


def test_what_is_not_run_is_there_and_has_a_reason() -> None:
    there = {(block.page, known) for block in BLOCKS for known in (block.first_line, block.language)}
    listed = [(page, known, reason) for page, entries in NOT_RUN.items() for known, reason in entries.items()]
    assert [(page, known) for page, known, _ in listed if (page, known) not in there] == []
    kinds = [reason.partition(":")[0] for _, _, reason in listed]
    assert [kind for kind in kinds if kind not in REASONS and not (ROOT / kind).is_file()] == []


def test_commands_are_marked_as_such() -> None:
    """A block without a language would neither be run nor named in the list."""
    words = ("dragoman serve", "dragoman plan", "curl ", "pip ", "make ", "python ", "python3 ", "docker ", "kubectl ")
    plain = [block for block in BLOCKS if not block.language and block.first_line.startswith(words)]
    assert [block_id(block) for block in plain] == []
