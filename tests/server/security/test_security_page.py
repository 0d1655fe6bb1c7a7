"""docs/security.md: its table of routes is the operations' own, and every claim names tests that there are."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from dragoman.server.security.callers import Scope
from tests.support.live_routes import live_operations

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "security.md"

BLOCK = re.compile(r"(?<=<!-- scopes -->\n)(?P<table>.*?)(?=<!-- end of scopes -->)", re.DOTALL)
CLAIM = re.compile(r"^\| (?P<claim>.+?) \| (?P<tests>`tests/.+`) \|$", re.MULTILINE)
TEST = re.compile(r"`(?P<path>tests/[\w/]+\.py)::(?P<name>test_\w+)`")

WORDS = {
    Scope.OPEN: "open to all: health, and what the server says of itself",
    Scope.INFERENCE: "`inference`: generates, counts tokens, lists models",
    Scope.METRICS: "`metrics`",
    Scope.MANAGEMENT: "`management`: loads, replaces and unloads models and adapters, downloads models",
    Scope.DEBUG: "`debug`: sees and ends other callers' calls",
}


def table() -> str:
    """The routes of each scope."""
    rows = ["| scope | routes |", "|---|---|"]
    for scope, words in WORDS.items():
        methods: dict[str, list[str]] = {}
        for one in live_operations():
            if one.scope is scope:
                methods.setdefault(one.path, []).append(one.method)
        routes = ", ".join(f"`{' '.join(sorted(names))} {path}`" for path, names in sorted(methods.items()))
        rows.append(f"| {words} | {routes} |")
    return "\n".join(rows) + "\n"


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of the tests in a module, those of classes too."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_the_table_of_routes_is_that_of_the_operations(update_golden: bool) -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = BLOCK.search(text)
    assert found is not None
    if update_golden:
        PAGE.write_text(text[: found.start()] + table() + text[found.end() :], encoding="utf-8")
        return
    assert found["table"] == table()


def test_every_claim_names_tests_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`tests/" in line]
    claims = list(CLAIM.finditer(text))
    assert len(claims) == len(rows) > 30
    named = [match for claim in claims for match in TEST.finditer(claim["tests"])]
    assert len(named) == text.count("`tests/")
    missing = [match[0] for match in named if match["name"] not in names_in(match["path"])]
    assert missing == []


def test_every_table_of_claims_has_a_test_in_each_row() -> None:
    for block in PAGE.read_text(encoding="utf-8").split("| claim | test |\n|---|---|\n")[1:]:
        rows = block.partition("\n\n")[0].strip().splitlines()
        assert rows
        assert [row for row in rows if TEST.search(row) is None] == []
