"""The real servers with the bundled demo model that the end-to-end tests share.

Words are asserted of a server that computes in f32: there every processor gives the same ones. With packed weights or bf16
two nearly equal tokens may change places.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server_process import ServerProcess, serve


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    # Without guesses every event of a stream has one token, as documented: how many hold depends on how long steps take.
    with serve("--name", "demo", "--max-num-seqs", "96", "--dtype", "f32", "--speculation", "off") as running:
        yield running


@pytest.fixture(scope="session")
def default_server() -> Iterator[ServerProcess]:
    """As `make serve` starts it: the words that it chooses depend on the processor, the form of its answers does not."""
    with serve() as running:
        yield running
