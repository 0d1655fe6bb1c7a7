"""Every test of the contract runs once per engine."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.contract import asking
from tests.contract.engines import ENGINES, EngineUnderTest
from tests.support import vllm_on_demo


def _parameter(one: EngineUnderTest) -> object:
    marks: list[pytest.MarkDecorator] = []
    if one.package:
        is_missing = find_spec(one.package) is None
        reason = f"the package {one.package} is not installed: make test-{one.package}"
        marks = [getattr(pytest.mark, one.package), pytest.mark.skipif(is_missing, reason=reason)]
    if one.other is not None:
        marks = [pytest.mark.peer, pytest.mark.skipif(not one.other.is_there, reason=one.other.reason)]
    return pytest.param(one, id=one.name.replace(" ", "-"), marks=marks)


@pytest.fixture(params=[_parameter(one) for one in ENGINES])
def under_test(request: pytest.FixtureRequest) -> EngineUnderTest:
    """One kind of engine."""
    found: EngineUnderTest = request.param
    found.prepare()
    asking.run_on(found.run)
    return found


@pytest.fixture(scope="session", autouse=True)
def _what_tests_share() -> Iterator[None]:
    """End it with the tests."""
    yield
    vllm_on_demo.close()
