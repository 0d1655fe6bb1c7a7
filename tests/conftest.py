"""Options and fixtures of the whole test suite."""

from __future__ import annotations

from collections import defaultdict

import pytest

MANY = 4  # cases of one test, from which on `--fewer` leaves some out
KEPT = 8  # of so many cases one is kept
_FEWER = f"of tests with {MANY} cases or more run every {KEPT}th case, and none that is marked as slow"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare `--update-golden` and `--fewer`."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected answers of golden tests")
    parser.addoption("--fewer", action="store_true", help=_FEWER)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--fewer`: tests run that are not slow, but not with all of their cases."""
    if not config.getoption("--fewer"):
        return
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow"):
            continue
        cases[item.nodeid.partition("[")[0]].append(item)
    kept = {item for alike in cases.values() for item in (alike if len(alike) < MANY else alike[::KEPT])}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """True if golden tests shall write their answer files instead of comparing."""
    return bool(request.config.getoption("--update-golden"))
