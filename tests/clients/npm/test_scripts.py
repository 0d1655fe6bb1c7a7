"""Every script beside this one against the server."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPTS = sorted(HERE.glob("*.mjs"))


def test_there_are_scripts_and_their_packages() -> None:
    assert len(SCRIPTS) >= 5
    assert (HERE / "node_modules").is_dir(), "no packages: run `npm ci` here, or make test-clients"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_finds_everything_as_it_should_be(script: Path, base_url: str) -> None:
    node = shutil.which("node")
    assert node, "node is not on PATH"
    command = [node, script.name, base_url]
    done = subprocess.run(command, check=False, cwd=HERE, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.strip(), "it said nothing of what it checked"
