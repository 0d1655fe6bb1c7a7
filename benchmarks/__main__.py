"""Runs the benchmarks that need no peers, one after the other: step cost, speculation, long contexts. The last line is JSON.

python -m benchmarks            (what `make bench` runs; on an otherwise idle machine)
"""

from __future__ import annotations

import json
import subprocess
import sys

RUNS: tuple[tuple[str, ...], ...] = (
    ("benchmarks.step_cost", "--rows", "1", "8", "32", "64"),
    ("benchmarks.speculation", "--streams", "1", "16", "--rounds", "1"),
    (
        "benchmarks.long_context",
        "--contexts",
        "1024",
        "8192",
        "--prompts",
        "128",
        "2048",
        "--widths",
        "32",
        "64",
        "128",
    ),
)


def main() -> None:
    """Run each in a process of its own, show its table, and gather their JSON lines into the last one."""
    reports = []
    for module, *arguments in RUNS:
        done = subprocess.run([sys.executable, "-m", module, *arguments], check=True, capture_output=True, text=True)
        *shown, last = done.stdout.strip().splitlines()
        sys.stdout.write("\n".join(shown) + "\n\n")
        reports.append(json.loads(last))
    sys.stdout.write(json.dumps(reports) + "\n")


if __name__ == "__main__":
    main()
