"""The playground in a real browser, in the words of what people do there.

Does: drive Chromium through Selenium, and wait for what the page shows. Does not: assert anything about answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := which(name))), None)
DRIVER = which("chromedriver")

PATIENCE_S = 60
DESKTOP = (1360, 860)
PHONE = (390, 844)


def start_browser() -> webdriver.Chrome:
    """A browser without a window. Nothing is looked up or downloaded."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in (
        "--headless=new",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
        "--no-first-run",
    ):
        options.add_argument(argument)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # as root, as in containers, Chromium does not start with it
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))


class PlaygroundPage:
    """One page of one server. `shots`: where pictures go that people look at."""

    def __init__(self, driver: webdriver.Chrome, url: str, shots: Path) -> None:
        self.driver, self.url, self.shots = driver, url, shots

    def open(self, path: str = "/playground", *, size: tuple[int, int] = DESKTOP, theme: str = "light") -> None:
        """Load the page anew, with nothing kept from before, and wait until it is ready to be asked."""
        self.load(path, size=size, theme=theme)
        self.wait_ready()

    def load(self, path: str = "/playground", *, size: tuple[int, int] = DESKTOP, theme: str = "light") -> None:
        """Load the page anew, with nothing kept from before."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.cdp("Emulation.setDeviceMetricsOverride", **metrics)
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.cdp("Storage.clearDataForOrigin", origin=self.url, storageTypes="local_storage")
        self.driver.get("about:blank")
        self.driver.get(self.url + path)
        if self.script("sessionStorage.clear(); return localStorage.length"):
            raise AssertionError("the last page has left something")

    def wait_ready(self) -> None:
        """Wait until the models and parameters are there."""
        self.until(lambda: self.one("#health").get_attribute("data-ready") == "true" and self.all(".parameter"))

    # --- looking

    def one(self, selector: str) -> WebElement:
        """The first such element. Raises: NoSuchElementException."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """All such elements."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def script(self, code: str, *arguments: Any) -> Any:
        """What a piece of JavaScript returns."""
        return self.driver.execute_script(code, *arguments)

    def cdp(self, command: str, **parameters: Any) -> Any:
        """What a command of Chromium's own protocol gives."""
        return self.driver.execute_cdp_cmd(command, parameters)

    def until(self, condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        """The condition's value, once it is true."""
        return WebDriverWait(self.driver, patience_s, poll_frequency=0.05).until(lambda _: condition())

    def text(self, selector: str) -> str:
        """What stands there, also where it cannot be seen."""
        return str(self.one(selector).get_property("textContent"))

    def has_text(self, selector: str, length: int = 100) -> bool:
        """Whether at least so much stands there."""
        return len(self.text(selector)) >= length

    @property
    def answer(self) -> WebElement:
        """The newest answer."""
        return self.all(".answered")[-1]

    def answer_text(self) -> str:
        """The text of the newest answer's first choice."""
        return str(
            self.script(
                "return [...document.querySelectorAll('.answered')].at(-1).querySelector('.choice > .text').textContent"
            )
        )

    def failures(self) -> list[str]:
        """What went wrong, as the page says it."""
        return [one.text for one in self.all(".failure")]

    def complaints(self) -> list[str]:
        """What the browser has complained about since the last call: errors of scripts and of the policy."""
        return [one["message"] for one in self.driver.get_log("browser") if one["level"] == "SEVERE"]  # type: ignore[no-untyped-call]

    def shoot(self, name: str) -> Path:
        """Take a picture for people to look at."""
        path = self.shots / f"playground-{name}.png"
        self.driver.save_screenshot(str(path))
        return path

    # --- doing

    def click(self, selector: str) -> None:
        """Click on what may be covered by its own label."""
        self.script("arguments[0].click()", self.one(selector))

    def pick(self, selector: str, value: str) -> None:
        """Choose from a list."""
        Select(self.one(selector)).select_by_value(value)

    def api(self, name: str, mode: str = "chat") -> None:
        """Choose an API and whether to chat or complete."""
        self.pick("#api", name)
        self.click(f"#mode input[value={mode}]")

    def switch(self, selector: str, is_on: bool) -> None:
        """Put a switch that is shown into that position."""
        if self.one(selector).is_selected() is not is_on:
            self.click(selector)

    def set(self, name: str, value: str) -> None:
        """Give a parameter a value."""
        self.script("for (const one of document.querySelectorAll('#parameters details')) one.open = true")
        control = self.one(f"#{name}")
        if control.tag_name == "select":
            Select(control).select_by_value(value)
        else:
            control.clear()
            control.send_keys(value)

    def show(self, tab: str) -> None:
        """Open one of the panels."""
        self.click(f"#tab-{tab}")

    def write(self, text: str) -> None:
        """Write the message without sending it."""
        self.one("#question").send_keys(text)

    def send(self, text: str = "") -> None:
        """Send a message with the keyboard."""
        field = self.one("#question")
        if text:
            field.send_keys(text)
        field.send_keys(Keys.ENTER)

    def ask(self, text: str = "") -> None:
        """Send a message and wait for the end of the answer."""
        count = len(self.all(".answered"))
        self.send(text)
        self.wait_answered(count + 1)

    def wait_answered(self, count: int) -> None:
        """Wait until there are so many answers, all of them at their end."""
        self.until(lambda: len(self.all(".answered[aria-busy=false]")) == count)

    def escape(self) -> None:
        """Press Escape."""
        self.one("#question").send_keys(Keys.ESCAPE)
