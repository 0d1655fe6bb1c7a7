"""A browser and a server with both bundled models, shared by all tests here; without Chromium they are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dragoman.config.bundled import BUNDLED
from tests.support.server_process import ServerProcess, serve

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from tests.browser.playground_page import PlaygroundPage

SHOTS = "DRAGOMAN_TEST_SCREENSHOTS"
"""The directory for pictures that people look at; where it is not set, they go with the test's other files."""


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = Path(os.environ[SHOTS]) if os.environ.get(SHOTS) else tmp_path_factory.mktemp("screenshots")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def driver() -> Iterator[Chrome]:
    pytest.importorskip("selenium")
    from tests.browser.playground_page import CHROMIUM, DRIVER, start_browser

    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs Chromium and chromedriver (Debian: chromium, chromium-driver)")
    running = start_browser()
    yield running
    running.quit()


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """Both bundled models, in f32: the same words on every processor."""
    models = ",".join(f"{name}={directory}" for name, directory in BUNDLED.items())
    with serve("--load-models", models, "--dtype", "f32", "--max-num-seqs", "16") as running:
        yield running


@pytest.fixture
def page(driver: Chrome, server: ServerProcess, shots: Path) -> Iterator[PlaygroundPage]:
    """The page, just opened. Whatever a test does, no script fails and nothing breaks the page's policy."""
    from tests.browser.playground_page import PlaygroundPage

    found = PlaygroundPage(driver, server.base_url, shots)
    found.complaints()
    found.open()
    yield found
    errors = [one for one in found.complaints() if "the server responded with a status" not in one]
    assert not errors, errors
