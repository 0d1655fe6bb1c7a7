"""Fuzzes every API: `python -m tests.fuzz --cases 100000`; the last line is JSON, the exit code 1 if anything was found."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys

from tests.fuzz.cases import Maker
from tests.fuzz.described import run_schemathesis
from tests.fuzz.run import Report, Run
from tests.fuzz.target import running_target


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="how many requests (default: %(default)s)")
    parser.add_argument("--dice", type=int, default=1, help="equal numbers make equal requests (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="requests at once (default: %(default)s)")
    parser.add_argument("--schemathesis", metavar="PROGRAM", help="run this tool instead, on /openapi.json")
    parser.add_argument("--examples", type=int, default=20, help="its cases for each operation (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=600, help="its time (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.schemathesis:
        problems = run_schemathesis(arguments.schemathesis, arguments.examples, arguments.seconds)
        print("\n".join(problems))
        return int(bool(problems))
    with running_target() as target:
        run = Run(target.server.port, Maker(random.Random(arguments.dice)), arguments.cases, arguments.clients)
        report = asyncio.run(run.run())
        left = target.idle_state()
    print("\n".join([*report.problems, *dict.fromkeys(target.defects.texts)]))
    print(json.dumps({**summary(report), "logged errors": len(target.defects.texts), "left": left}))
    return int(bool(report.num_problems or left or target.defects.texts))


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
