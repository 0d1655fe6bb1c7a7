"""The real servers with the bundled demo model that the end-to-end tests share, on the engine of `--engine`.

Words are asserted of a server that computes in f32: there every processor and engine gives the same ones. With packed
weights or bf16 two nearly equal tokens may change places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.support.any_engine import serve_demo
from tests.support.server_process import ServerProcess, serve

# The suites that run on the remote engine, too, wherever tests run: a part, as it costs little more than the requests.
ON_REMOTE = (
    "test_anthropic",
    "test_clients",
    "test_concurrency",
    "test_loglikelihood",
    "test_text_generation",
    "test_tools",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the suites of `ON_REMOTE` on both engines, unless `--engine` says on which."""
    name = metafunc.module.__name__.rpartition(".")[2]
    if "engine" in metafunc.fixturenames and name in ON_REMOTE and not metafunc.config.getoption("--engine"):
        metafunc.parametrize("engine", ["rolling", "remote"], indirect=True, scope="session")


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ServerProcess]]:
    """The server on an engine, which is started when it is first asked for."""
    with ExitStack() as servers:

        @cache
        def start(engine: str) -> ServerProcess:
            return servers.enter_context(serve_demo(engine, tmp_path_factory.mktemp("served")))

        yield start


@pytest.fixture(scope="session")
def server(engine: str, started: Callable[[str], ServerProcess]) -> ServerProcess:
    return started(engine)


@pytest.fixture(scope="session")
def default_server() -> Iterator[ServerProcess]:
    """As `make serve` starts it: the words that it chooses depend on the processor, the form of its answers does not."""
    with serve() as running:
        yield running
