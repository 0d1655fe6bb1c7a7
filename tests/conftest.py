"""Options and fixtures of the whole test suite."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress

import pytest

from tests.support import tiers
from tests.support.differences import lacking
from tests.support.frozen import freeze_for_good
from tests.support.tables import RowsFailed

# They need packages of their own, a browser, or checkpoints that are fetched: `make test-clients`, `make test-browser` and
# `make test-models` name their paths.
collect_ignore = ["clients", "browser", "released"]
ENGINES = ("rolling", "vllm", "remote")
_ALL = "run everything at full width, as `make test-all` does: also the tests marked `full`, and all examples of properties"
_ENGINE = "run only the tests that ask the shared server of tests/e2e, on this engine"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare `--update-golden`, `--all` and `--engine`."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected answers of golden tests")
    parser.addoption("--all", action="store_true", help=_ALL)
    parser.addoption("--engine", choices=ENGINES, help=_ENGINE)


def pytest_configure(config: pytest.Config) -> None:
    """Tell the tier to modules of tests before they are imported: they choose their width by it."""
    tiers.choose(everything=config.getoption("--all"))
    _load_numpy()


def _load_numpy() -> None:
    """Give its linear algebra one thread: tests share the cores, and several would wait for each other, spinning.

    Processes that tests start have as many as users' have.
    """
    with pytest.MonkeyPatch.context() as patch, suppress(ImportError):  # tests of clients have none
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        importlib.import_module("numpy")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for `--all` only, or, with `--engine`, what asks no engine."""
    if config.getoption("--engine"):
        _keep(config, items, [item for item in items if "engine" in getattr(item, "fixturenames", ())])
    if not tiers.everything():
        _keep(config, items, [item for item in items if not item.get_closest_marker("full")])
    for mark in (mark for item in items for name in ("full", "varies") for mark in item.iter_markers(name)):
        if len(mark.args) != 1:
            raise pytest.UsageError(f"the marker {mark.name} takes its reason, got {mark.args}")


def _keep(config: pytest.Config, items: list[pytest.Item], kept: Collection[pytest.Item]) -> None:
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def pytest_collection_finish() -> None:
    """Never look for garbage among the tests themselves."""
    with suppress(ImportError):  # asks who holds generators of random numbers, which cannot be told afterwards
        importlib.import_module("hypothesis")
    freeze_for_good()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Turn a test round that needs what its engine lacks: it must fail, in words that name what is missing."""
    named = [name for mark in pyfuncitem.iter_markers("needs") for name in mark.args]
    engine = pyfuncitem.funcargs.get("engine", "rolling")
    lacked = [name for name in named if engine in lacking()[name]]
    if not lacked:
        return (yield)
    try:
        yield
    except Exception as error:
        if any(name.split()[0] in str(error) for name in lacked):
            return True
        raise
    raise AssertionError(f"{engine} has {', '.join(lacked)}, which docs/scaling.md says that it lacks")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """A module's fixture may load a model that needs the library of kernels."""
    with _skipped_without_library():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """A test may load a model that needs the library of kernels."""
    with _skipped_without_library():
        return (yield)


@contextmanager
def _skipped_without_library() -> Generator[None]:
    """Skip a test that fails only because models need the library of kernels, where it is missing or switched off."""
    try:
        yield
    except Exception as error:
        failures = error.failures if isinstance(error, RowsFailed) else (error,)
        if all("only dragoman's own kernels compute" in str(failure) for failure in failures) and _lacks_library():
            pytest.skip(str(error))
        raise


def _lacks_library() -> bool:
    """True without the library of kernels; imported here, as tests of clients run where dragoman is not installed."""
    from dragoman.kernels import presence

    return bool(presence.why_not())


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """True if golden tests shall write their answer files instead of comparing."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> str:
    """What a test runs on: as `--engine` says, or by the test's own parameters; the built-in one by default."""
    return str(getattr(request, "param", None) or request.config.getoption("--engine") or "rolling")
