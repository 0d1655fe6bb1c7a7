"""The imports of the command: help, versions and mistakes must not wait for heavy packages.

Counted in modules, which are the same on every machine, and not in milliseconds.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "aiohttp", "asyncio", "gguf", "httptools", "huggingface_hub", "jinja2", "llguidance", "ml_dtypes", "numpy", "openvino",
    "PIL", "prometheus_client", "prompt_toolkit", "requests", "rich", "safetensors", "tokenizers", "uvicorn", "uvloop",
    "xxhash", "yaml",
}  # fmt: skip
"""Packages that take from tens of milliseconds to seconds to import."""

MOST_OF_OURS = 12  # modules of dragoman; three are needed

_ASK = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from dragoman.cli import main
with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
    main(json.loads(sys.argv[1]))
json.dump(sorted(sys.modules), sys.stdout)
"""


def imported(*words: str) -> set[str]:
    """The modules loaded by the command, in a separate process."""
    command = [sys.executable, "-c", _ASK, json.dumps(words)]
    return set(json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout))


def ours(modules: set[str]) -> list[str]:
    return [name for name in modules if name.partition(".")[0] == "dragoman"]


@pytest.mark.parametrize("word", ["--help", "--version", "sevre"])
def test_help_versions_and_mistakes_import_almost_nothing(word: str) -> None:
    modules = imported(word)
    assert modules & HEAVY == set()
    assert len(ours(modules)) <= MOST_OF_OURS


@pytest.mark.parametrize(
    "command", ["serve", "config", "plan", "eval", "compress", "explain", "selftest", "pull", "models", "store", "warm"]
)
def test_the_help_of_a_command_imports_no_model_code(command: str) -> None:
    modules = imported(command, "--help")
    assert modules & HEAVY == set()


@pytest.mark.parametrize("words", [["serve", "--prot", "80"], ["serve", "./no-such-directory"]], ids=" ".join)
def test_a_mistake_in_the_options_is_reported_without_heavy_imports(words: list[str]) -> None:
    assert imported(*words) & HEAVY == set()


def test_the_package_alone_imports_nothing() -> None:
    command = [sys.executable, "-c", "import sys, json, dragoman; json.dump(sorted(sys.modules), sys.stdout)"]
    modules = set(json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout))
    assert modules & HEAVY == set()
    assert ours(modules) == ["dragoman"]
