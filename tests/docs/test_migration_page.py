"""Every row of docs/migration.md: which names and paths of other servers are the same here, do nothing, or are not there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dragoman.cli.arguments import FLAG_KEYS
from dragoman.config.foreign import ForeignOption
from dragoman.config.names import find_options
from dragoman.config.option import Option
from dragoman.config.sources import Given, read_environment
from dragoman.server.apis import all_apis
from tests.support.documented import ROOT
from tests.support.features import FEATURES
from tests.support.features import table as table_of_features
from tests.support.tables import table

WHOLE = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
_FEATURES = re.compile(r"<!-- features -->\n(?P<table>.*)<!-- end of features -->\n", re.DOTALL)
PAGE = _FEATURES.sub("", WHOLE)
ROUTES = {f"{operation.method} {operation.path}" for api in all_apis() for operation in api.operations}
_NAME = re.compile(r"`(--[\w-]+|[A-Z][A-Z0-9_]{3,}|option\.\w+|[a-z][A-Za-z]+_\w+|(?:min|max)Workers)`")
_ROUTE = re.compile(r"`((?:GET|POST|PUT|DELETE) [^`]+)`")


@dataclass(frozen=True)
class Row:
    """A row: what another server calls it, what it is here, and what differs."""

    theirs: str
    ours: str
    differs: str


ROWS = [
    Row(*(cell.strip() for cell in line.strip("| ").split(" | ", 2)))
    for line in re.findall(r"^\| .*\|$", re.sub(r"\| +\|$", "| - |", PAGE, flags=re.MULTILINE), re.MULTILINE)
    if "| here |" not in line
]


def test_the_table_of_features_is_that_of_the_tests_that_show_them() -> None:
    found = _FEATURES.search(WHOLE)
    assert found is not None
    assert found["table"] == table_of_features(), "python -m tests.support.features prints it"
    for path, _, name in (test.partition("::") for one in FEATURES for test in one.tests):
        assert re.search(rf"^    def {name}\(|^(?:async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), name


def stands_for(name: str) -> list[object]:
    """What a flag, a variable or a key means here."""
    if name.startswith("--"):
        key = FLAG_KEYS.get(name) or name.removeprefix("--").replace("-", "_")
        given = Given(name, key, "x", "command line")
    elif name.isupper():
        (given,) = read_environment({name: "x"})
    else:
        given = Given(name, name, "x", "serving.properties")
    return [match.target for match in find_options(given)]


def test_there_is_a_section_for_each_server_with_options_and_paths() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert [text.splitlines()[0] for text in sections] == [
        "vLLM", "Text Generation Inference", "llama.cpp", "Ollama", "OpenVINO Model Server", "LMI",
    ]  # fmt: skip
    assert all(text.count("| here |") == 2 for text in sections)


@table("row", ROWS, ids=lambda row: row.theirs[:40])
def test_a_row_says_what_is_so(row: Row) -> None:
    names, routes = _NAME.findall(row.theirs), _ROUTE.findall(row.theirs)
    assert row.ours, row
    if row.ours == "the same":
        assert names or routes
        assert [name for name in names if not any(isinstance(target, Option) for target in stands_for(name))] == []
        assert [route for route in routes if route not in ROUTES] == []
    if row.ours == "no effect":
        assert names
        kinds = {name: {type(target) for target in stands_for(name)} for name in names}
        assert [name for name, found in kinds.items() if found != {ForeignOption}] == []
    if row.ours == "not here":
        assert [name for name in names if stands_for(name)] == []
        assert [route for route in routes if route in ROUTES] == []


@table("row", ROWS, ids=lambda row: row.theirs[:40])
def test_what_a_row_names_here_exists(row: Row) -> None:
    ours = f"{row.ours} {row.differs}"
    flags = [name for name in _NAME.findall(ours) if name.startswith("--") and name not in ("--jinja",)]
    assert [name for name in flags if not any(isinstance(target, Option) for target in stands_for(name))] == []
    variables = [name for name in _NAME.findall(row.ours) if name.isupper()]
    assert [name for name in variables if not stands_for(name)] == []
    assert [route for route in _ROUTE.findall(ours) if route not in ROUTES] == []
