"""The playground of servers that ask for a key, or are not ready yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dragoman.server.app import ServerConfig
from tests.support.running_server import RunningServer, running_server

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from tests.browser.playground_page import PlaygroundPage


@pytest.fixture
def guarded(driver: Chrome, shots: Path) -> Iterator[PlaygroundPage]:
    """The page of a server that asks for a key."""
    from tests.browser.playground_page import PlaygroundPage

    with running_server(ServerConfig(api_keys=frozenset({"secret"}))) as server:
        yield PlaygroundPage(driver, server.url, shots)


class TestKeys:
    def test_the_page_asks_for_the_key_and_keeps_it_for_the_tab(self, guarded: PlaygroundPage) -> None:
        guarded.load()
        guarded.until(lambda: guarded.one("#key-dialog").get_attribute("open"))
        guarded.shoot("key")
        guarded.one("#key-field").send_keys("secret")
        guarded.one("#key-form [type=submit]").click()
        guarded.until(lambda: guarded.one("#model").get_attribute("value") == "fake")
        assert guarded.script("return [sessionStorage.length, localStorage.length]") == [1, 0]
        guarded.driver.refresh()
        guarded.until(lambda: guarded.one("#model").get_attribute("value") == "fake")
        guarded.show("code")
        guarded.until(lambda: "$DRAGOMAN_API_KEY" in guarded.text("#code"))
        assert "secret" not in guarded.driver.page_source

    def test_a_wrong_key_is_asked_for_again(self, guarded: PlaygroundPage) -> None:
        guarded.load()
        guarded.until(lambda: guarded.one("#key-dialog").get_attribute("open"))
        guarded.one("#key-field").send_keys("wrong")
        guarded.one("#key-form [type=submit]").click()
        guarded.until(lambda: guarded.one("#key-dialog").get_attribute("open"))
        guarded.one("#key-cancel").click()
        assert guarded.one("#send").get_attribute("disabled")


def test_the_page_waits_for_a_server_that_loads(driver: Chrome, shots: Path) -> None:
    from tests.browser.playground_page import PlaygroundPage

    server = RunningServer()
    server.may_load.clear()
    server.start(wait_ready=False)
    try:
        page = PlaygroundPage(driver, server.url, shots)
        page.load("/")
        page.until(lambda: page.text("#health").startswith("loading fake"))
        assert page.one("#send").get_attribute("disabled")
        server.may_load.set()
        page.until(lambda: page.text("#health") == "ready" and not page.one("#send").get_attribute("disabled"))
        assert page.one("#model").get_attribute("value") == "fake"
    finally:
        server.may_load.set()
        server.http.stop()
        server.http.stop()
        server.join()
