"""Records what the guarded work costs now, for the Python that runs this, or shows where a token's cost lies.

python -m tests.performance.record                          measure everything and rewrite this Python's part of limits.json
python -m tests.performance.record --dry-run                measure and compare, write nothing
python -m tests.performance.record --profile "OpenAI chat"  the functions of one client's token, dearest first
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.performance.cases import CASES, Costs, token_costs
from tests.performance.http_work import CLIENTS
from tests.performance.limits import python_version, read_table, write_costs


def show_profile(client: str) -> None:
    """Print a line for each function that a token passes."""
    costs = token_costs(client)
    sys.stdout.write(f"{'instructions':>12} {'calls':>6}  function, per token of {client}\n")
    for place, (num_instructions, num_calls) in costs.items():
        if num_instructions >= 0.5:
            sys.stdout.write(f"{num_instructions:>12.1f} {num_calls:>6.2f}  {place}\n")
    sys.stdout.write(f"{sum(one for one, _ in costs.values()):>12.1f}\n")


def record(*, is_dry: bool) -> None:
    """Measure every case, print old and new, write the new ones."""
    version, table = python_version(), read_table()
    before = table.get(version, {})
    costs: Costs = {}
    for measure in CASES.values():
        costs |= measure()
    sys.stdout.write(f"{'instructions, Python ' + version:<52}{'before':>9}{'now':>9}\n")
    for name, cost in costs.items():
        old = f"{before[name]:.0f}" if name in before else "-"
        sys.stdout.write(f"{name:<52}{old:>9}{cost:>9.0f}\n")
    if not is_dry:
        write_costs(version, costs)


def main(arguments: Sequence[str]) -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.performance.record", description="Record the instruction counts of the guarded work."
    )
    parser.add_argument("--dry-run", action="store_true", help="compare with limits.json, write nothing")
    parser.add_argument("--profile", metavar="CLIENT", choices=list(CLIENTS), help=f"one of: {'; '.join(CLIENTS)}")
    options = parser.parse_args(arguments)
    if options.profile is not None:
        show_profile(options.profile)
    else:
        record(is_dry=options.dry_run)


if __name__ == "__main__":
    main(sys.argv[1:])
