"""Options and fixtures of the whole test suite."""

from __future__ import annotations

from collections import defaultdict

import pytest

# They need packages of their own, or a browser: `make test-clients` and `make test-browser` name their paths.
collect_ignore = ["clients", "browser"]
MANY = 4  # cases of one test, from which on `--fewer` leaves some out
KEPT = 32  # of so many cases one is kept
_FEWER = f"run every eighth test, but none that is slow, and of those with {MANY} cases or more every {KEPT}th case"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare `--update-golden` and `--fewer`."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected answers of golden tests")
    parser.addoption("--fewer", action="store_true", help=_FEWER)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--fewer`: leave tests and cases out, the same ones each time."""
    if not config.getoption("--fewer"):
        return
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    many = [alike for alike in cases.values() if len(alike) >= MANY]
    few = [alike for alike in cases.values() if len(alike) < MANY]
    kept = {item for alike in many for item in alike[::KEPT]} | {item for alike in few[::8] for item in alike}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """True if golden tests shall write their answer files instead of comparing."""
    return bool(request.config.getoption("--update-golden"))
