"""Every test of the contract runs once per engine."""

from __future__ import annotations

import pytest

from tests.contract.engines import ENGINES, EngineUnderTest


@pytest.fixture(params=ENGINES, ids=lambda one: one.name.replace(" ", "-"))
def under_test(request: pytest.FixtureRequest) -> EngineUnderTest:
    """One kind of engine."""
    found: EngineUnderTest = request.param
    return found
