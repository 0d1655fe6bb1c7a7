"""Makes the environment that `make test-vllm` runs in: vLLM for processors, this package, and what its tests need.

Run: `python scripts/vllm_environment.py DIRECTORY`, from the repository's root. vLLM pins versions of packages that this
project uses as well, so what it brings stays, and only what is missing is added.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

TEST_PACKAGES = ("pytest", "hypothesis", "httpx", "openai", "ray")  # ray: as an executor of vLLM's


def main(directory: Path) -> None:
    """Make it, or bring it up to date. Raises: CalledProcessError with what pip has said."""
    from benchmarks.serving.peers import install_vllm_into

    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
    with tempfile.TemporaryDirectory() as downloads:
        install_vllm_into(python.absolute(), Path(downloads))
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    _pip(python, *needed, *TEST_PACKAGES)
    _pip(python, "--no-deps", "--editable", str(ROOT))


def _pip(python: Path, *words: str) -> None:
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *words], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the environment of `make test-vllm`, or bring it up to date.")
    parser.add_argument("directory", type=Path, help="where the environment is, or will be")
    main(parser.parse_args().directory)
