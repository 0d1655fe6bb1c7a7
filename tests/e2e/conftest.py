"""The real servers with the bundled demo model that the end-to-end tests share, on the engine of `--engine`.

A kind of server is started once in a process, when a test first asks for it, and ends with the session. A test that ends,
kills or fills a server starts its own.

Words are asserted of a server that computes in f32: there every processor and engine gives the same ones. With packed
weights or bf16 two nearly equal tokens may change places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from dragoman.config.resolve import demo_model_dir
from tests.support.any_engine import serve_demo
from tests.support.pooling_checkpoint import write_pooling_case
from tests.support.server_process import ServerProcess, serve

# The suites that `make test-all` runs on the remote engine, too.
ON_REMOTE = (
    "test_anthropic",
    "test_clients",
    "test_concurrency",
    "test_loglikelihood",
    "test_text_generation",
    "test_tools",
)
REMOTE = pytest.param("remote", marks=pytest.mark.full("tests/contract and test_remote.py cover that engine"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the suites of `ON_REMOTE` on both engines, unless `--engine` says on which."""
    name = metafunc.module.__name__.rpartition(".")[2]
    if "engine" in metafunc.fixturenames and name in ON_REMOTE and not metafunc.config.getoption("--engine"):
        metafunc.parametrize("engine", ["rolling", REMOTE], indirect=True, scope="session")


@pytest.fixture(scope="session")
def server_of() -> Iterator[Callable[..., ServerProcess]]:
    """The server with these options on its command line."""
    with ExitStack() as servers:

        @cache
        def start(*options: str) -> ServerProcess:
            return servers.enter_context(serve(*options))

        yield start


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ServerProcess]]:
    """The server on an engine."""
    with ExitStack() as servers:

        @cache
        def start(engine: str) -> ServerProcess:
            return servers.enter_context(serve_demo(engine, tmp_path_factory.mktemp("served")))

        yield start


@pytest.fixture(scope="session")
def server(engine: str, started: Callable[[str], ServerProcess]) -> ServerProcess:
    return started(engine)


@pytest.fixture(scope="session")
def default_server(server_of: Callable[..., ServerProcess]) -> ServerProcess:
    """As `make serve` starts it: the words that it chooses depend on the processor, the form of its answers does not."""
    return server_of()


@pytest.fixture(scope="session")
def pooling_server(server_of: Callable[..., ServerProcess], tmp_path_factory: pytest.TempPathFactory) -> ServerProcess:
    """One model that generates, one that embeds and one that scores, computing in f32."""
    root = tmp_path_factory.mktemp("models")
    places = {
        "demo": demo_model_dir(),
        "embedder": write_pooling_case("bert_mean", root),
        "scorer": write_pooling_case("xlmr_reranker", root),
    }
    models = ",".join(f"{name}={place}" for name, place in places.items())
    return server_of("--load-models", models, "--kv-cache-gb", "0.02", "--dtype", "f32")
