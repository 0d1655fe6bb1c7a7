"""Prints a report for reviewers that fails nothing: sizes, costs in instructions, modules of a request.

python -m tests.performance.report           the report, as `make check` prints it
python -m tests.performance.report --write   also write the list of modules into docs/architecture.md, as `make docs` does
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.performance.cases import CASES
from tests.performance.limits import RECORD, complaint, python_version, read_table
from tests.performance.request_modules import MOST_MODULES, touched_modules, write_page
from tests.performance.sizes import all_violations
from tests.seeded.faults import read_faults

CODE = ("src", "tests", "scripts", "benchmarks", "demo", "examples")


def cost_complaints() -> Iterator[str]:
    """One line for each guarded piece of work that takes more instructions of Python than recorded."""
    limits = read_table().get(python_version())
    if limits is None:
        yield f"no costs were recorded with Python {python_version()}: {RECORD}"
        return
    for measure in CASES.values():
        for name, cost in measure().items():
            line = complaint(name, cost, limits)
            if line is not None:
                yield line


def lost_faults() -> Iterator[str]:
    """One line for each seeded fault whose place is no more in the code."""
    for fault in read_faults():
        count = fault.occurrences(Path("."))
        if count != 1:
            yield f"tests/seeded/faults.toml: the place of {fault.name!r} occurs {count} times in {fault.file}"


def main(arguments: Sequence[str]) -> None:
    """Print the report."""
    for line in (*all_violations(map(Path, CODE)), *cost_complaints(), *lost_faults()):
        sys.stdout.write(f"advice: {line}\n")
    with tempfile.TemporaryDirectory() as cache_dir:
        modules = touched_modules(Path(cache_dir))
    if len(modules) > MOST_MODULES:
        sys.stdout.write(f"advice: {len(modules)} modules are on a streamed completion's way, not {MOST_MODULES}\n")
    if "--write" in arguments:
        write_page(modules)


if __name__ == "__main__":
    main(sys.argv[1:])
