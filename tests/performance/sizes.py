"""Sizes of modules and functions: modules up to 600 lines, functions up to 60, arguments up to seven.

Does: name what is larger. Does not: fail; `report` prints it. A docstring counts as lines of its function.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

MAX_MODULE_LINES = 600  # past it ask what the module is; none is cut to fit
MAX_FUNCTION_LINES = 60
MAX_ARGUMENTS = 7  # without self

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


def all_violations(paths: Iterable[Path]) -> Iterator[str]:
    """One line for each rule that a module under `paths` breaks."""
    for path in paths:
        for module in sorted(path.rglob("*.py")):
            yield from violations(module)
