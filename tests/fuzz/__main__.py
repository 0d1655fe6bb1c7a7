"""Fuzzes every API, and models' files: `python -m tests.fuzz --cases 100000`.

The last line is JSON, the exit code 1 if anything was found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from pathlib import Path

from tests.fuzz.cases import Maker
from tests.fuzz.described import run_schemathesis
from tests.fuzz.files import run as run_files
from tests.fuzz.run import Report, Run
from tests.fuzz.target import running_target


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="how many requests (default: %(default)s)")
    parser.add_argument("--files", type=int, default=300, help="how many models' files (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where to leave the models that show a problem")
    parser.add_argument("--dice", type=int, default=1, help="equal numbers make equal requests (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="requests at once (default: %(default)s)")
    parser.add_argument("--schemathesis", metavar="PROGRAM", help="run this tool instead, on /openapi.json")
    parser.add_argument("--examples", type=int, default=20, help="its cases for each operation (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=600, help="its time (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.schemathesis:
        tool = arguments.schemathesis
        problems = run_schemathesis(tool, arguments.examples, arguments.seconds, arguments.dice)
        print("\n".join(problems))
        return int(bool(problems))
    files = run_files(random.Random(arguments.dice), arguments.files, arguments.keep)
    with running_target() as target:
        run = Run(target.server.port, Maker(random.Random(arguments.dice)), arguments.cases, arguments.clients)
        report = asyncio.run(run.run())
        left = target.idle_state()
    print("\n".join([*files.problems, *report.problems, *dict.fromkeys(target.defects.texts)]))
    counts = {"taken": files.num_taken, "refused": files.num_refused, "problems": len(files.problems)}
    print(json.dumps({**summary(report), "files": counts, "logged errors": len(target.defects.texts), "left": left}))
    return int(bool(files.problems or report.num_problems or left or target.defects.texts))


def summary(report: Report) -> dict[str, object]:
    """The report's numbers."""
    return {
        "cases": report.num_cases,
        "talks": report.num_talks,
        "seconds": round(report.seconds, 1),
        "canaries": report.num_canaries,
        "slowest s": round(report.slowest_s, 2),
        "statuses": dict(sorted(report.statuses.items())),
        "problems": dict(report.num_problems),
    }


if __name__ == "__main__":
    sys.exit(main())
