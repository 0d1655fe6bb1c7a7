"""Puts each fault of faults.toml into a copy of the sources, runs the tests there, and prints which test found it.

python -m tests.seeded             all faults, with the tests of `make test`
python -m tests.seeded --all       with those of `make test-all`
python -m tests.seeded cors bos    the faults whose names or files have one of these words

The exit code is 1 if a fault was not found, or its place is no more in the code. Nothing in the working tree is changed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.seeded.faults import PLACE, Fault, read_faults

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "tests", "docs", "examples", "demo", "scripts", "benchmarks", "deploy")
TIMEOUT_S = 900
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def find(fault: Fault, copy: Path, options: Sequence[str]) -> str:
    """The test that fails with the fault in place, or a line in brackets that says why there is none."""
    if (count := fault.occurrences(copy)) != 1:
        return f"[its place occurs {count} times in {fault.file}]"
    source = copy / PLACE / fault.file
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        for paths in (*fault.tests.split(), ""):
            failed = run_tests(copy, [*options, *paths.split()])
            if failed:
                return failed
    finally:
        source.write_text(text, encoding="utf-8")
    return "[not found]"


def run_tests(copy: Path, arguments: Sequence[str]) -> str:
    """The first test that fails, "" if none does."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"[{' '.join(arguments)} hung]"
    failed = _FAILED.search(run.stdout)
    if failed:
        return failed[1]
    return "" if run.returncode == 0 else f"[pytest ended with {run.returncode}]"


def main(arguments: Sequence[str]) -> int:
    """Try the faults that the arguments name; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.seeded", description="Tell which test finds each fault.")
    parser.add_argument("words", nargs="*", help="only faults whose name or file has one of these words")
    parser.add_argument("--all", action="store_true", help="run the tests at full width")
    asked = parser.parse_args(arguments)
    faults = [one for one in read_faults() if not asked.words or any(w in one.name + one.file for w in asked.words)]
    num_missed = 0
    with tempfile.TemporaryDirectory(prefix="seeded-") as directory:
        copy = Path(directory)
        for name in COPIED:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy(path, copy)
        for fault in faults:
            found = find(fault, copy, ["--all"] if asked.all else [])
            num_missed += found.startswith("[")
            sys.stdout.write(f"{fault.name}: {found}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(faults) - num_missed} of {len(faults)} faults were found\n")
    return 1 if num_missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
