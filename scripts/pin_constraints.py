"""Writes constraints.txt: the newest versions of all dependencies that pyproject.toml allows, as pip resolves them now; and
those of the clients of other projects, beside their requirements.txt.

Run: `make pin`, then the tests and `make test-clients`, then commit. Installs into virtual environments of their own, which
are deleted again. npm's are brought up to date by `npm update --save` in tests/clients/npm.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = (
    "# Versions that are known to work together; written by `make pin`. Dependencies are declared in pyproject.toml.\n"
)
BUILD_REQUIREMENTS = (
    "hatchling",
    "editables",
    "cmake",
    "ninja",
)  # pip installs these apart from the rest, so freeze would not see them


CLIENTS = ("python", "litellm")  # folders below tests/clients
CLIENTS_HEADER = "# Versions that are known to work together; written by `make pin` from requirements.txt.\n"


def main() -> int:
    """Resolve, freeze, write; the exit code."""
    pinned = HEADER + frozen(*BUILD_REQUIREMENTS, f"{ROOT}[dev]")
    (ROOT / "constraints.txt").write_text(pinned, encoding="utf-8")
    for name in CLIENTS:
        folder = ROOT / "tests" / "clients" / name
        pinned = CLIENTS_HEADER + frozen("--requirement", str(folder / "requirements.txt"))
        (folder / "constraints.txt").write_text(pinned, encoding="utf-8")
    return 0


def frozen(*words: str) -> str:
    """The versions that are there after `pip install` with these words. Raises: CalledProcessError."""
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, with_pip=True)
        pip = [str(Path(directory, "bin", "python")), "-m", "pip"]
        subprocess.run([*pip, "install", "--quiet", *words], check=True)
        freeze = [*pip, "freeze", "--exclude", "dragoman"]
        return subprocess.run(freeze, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
