"""Options and fixtures of the whole test suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare `--update-golden`."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected answers of golden tests")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """True if golden tests shall write their answer files instead of comparing."""
    return bool(request.config.getoption("--update-golden"))
