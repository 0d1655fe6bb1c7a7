"""Every script beside this one against the server; that which embeds against the one with a model that does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import PoolingServer

HERE = Path(__file__).parent
EMBEDS = HERE / "embeddings.mjs"
GENERATE = sorted(set(HERE.glob("*.mjs")) - {EMBEDS})


def run(script: Path, *arguments: str) -> None:
    """Let the script check everything."""
    node = shutil.which("node")
    assert node, "node is not on PATH"
    command = [node, script.name, *arguments]
    done = subprocess.run(command, check=False, cwd=HERE, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.strip(), "it said nothing of what it checked"


def test_there_are_scripts_and_their_packages() -> None:
    assert len(GENERATE) >= 6
    assert (HERE / "node_modules").is_dir(), "no packages: run `npm ci` here, or make test-clients"


@pytest.mark.parametrize("script", GENERATE, ids=lambda script: script.name)
def test_a_script_finds_everything_as_it_should_be(script: Path, base_url: str) -> None:
    run(script, base_url)


def test_the_script_that_embeds_finds_everything_as_it_should_be(pooling: PoolingServer) -> None:
    run(EMBEDS, pooling.base_url, str(pooling.known))
