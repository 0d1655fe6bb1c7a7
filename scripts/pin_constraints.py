"""Writes constraints.txt: the newest versions of all dependencies that pyproject.toml allows, as pip resolves them now.

Run: `make pin`, then the tests, then commit. Installs into a virtual environment of its own, which is deleted again.
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
BUILD_REQUIREMENTS = ("hatchling", "editables")  # pip installs these apart from the rest, so freeze would not see them


def main() -> int:
    """Resolve, freeze, write; the exit code."""
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, with_pip=True)
        pip = [str(Path(directory, "bin", "python")), "-m", "pip"]
        subprocess.run([*pip, "install", "--quiet", *BUILD_REQUIREMENTS, f"{ROOT}[dev]"], check=True)
        frozen = subprocess.run([*pip, "freeze", "--exclude", "dragoman"], check=True, capture_output=True, text=True)
    (ROOT / "constraints.txt").write_text(HEADER + frozen.stdout, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
