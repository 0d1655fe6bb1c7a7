"""Checks that modules and functions stay readable: modules up to 600 lines, functions up to 60, arguments up to seven.

Run: `python scripts/check_sizes.py [PATH ...]` from the repository's root (`make check` does). Prints one line for each
violation and exits 1 if there is one. A docstring counts as lines of its function; data files do not count at all.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_MODULE_LINES = 600  # past it ask what the module is; none is cut to fit
MAX_FUNCTION_LINES = 60
MAX_ARGUMENTS = 7  # without self; the guide's five for positional ones is for reviewers, this is the hard limit

DEFAULT_PATHS = ("src", "tests", "scripts", "benchmarks", "demo", "examples")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def violations(path: Path) -> Iterator[str]:
    """One line for each rule that the module at `path` breaks."""
    source = path.read_text(encoding="utf-8")
    num_lines = source.count("\n")
    if num_lines > MAX_MODULE_LINES:
        yield f"{path}: {num_lines} lines, at most {MAX_MODULE_LINES} are allowed"
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if isinstance(node, Function):
            yield from _function_violations(path, node)


def _function_violations(path: Path, node: Function) -> Iterator[str]:
    assert node.end_lineno is not None  # always set by ast.parse
    num_lines = node.end_lineno - node.lineno + 1
    if num_lines > MAX_FUNCTION_LINES:
        yield f"{path}:{node.lineno}: {node.name} has {num_lines} lines, at most {MAX_FUNCTION_LINES} are allowed"
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    num_arguments = len([name for name in names if name not in ("self", "cls")])
    if num_arguments > MAX_ARGUMENTS:
        yield f"{path}:{node.lineno}: {node.name} has {num_arguments} arguments, at most {MAX_ARGUMENTS} are allowed"


def main(paths: list[str]) -> int:
    """Check every module under `paths`; the exit code."""
    roots = [Path(path) for path in paths or DEFAULT_PATHS if paths or Path(path).exists()]
    modules = sorted(module for root in roots for module in ([root] if root.is_file() else root.rglob("*.py")))
    found = [line for module in modules for line in violations(module)]
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
