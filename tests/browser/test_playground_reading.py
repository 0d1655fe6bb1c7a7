"""Whether the playground can be read and used by everybody: names, focus, keys, narrow screens, light and dark."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.browser.playground_page import PlaygroundPage


QUESTION = "What is deep learning?"
DESKTOP, PHONE = (1360, 860), (390, 844)


class TestReading:
    def test_everything_that_can_be_used_has_a_name(self, page: PlaygroundPage) -> None:
        """As assistive technology sees it: the browser's own accessibility tree."""
        page.ask(QUESTION)
        page.script("for (const one of document.querySelectorAll('details')) one.open = true")
        named = {"button", "textbox", "combobox", "slider", "checkbox", "radio", "tab", "searchbox", "spinbutton", "link",
                 "img", "tabpanel", "log", "tablist", "article"}  # fmt: skip
        for tab in ("parameters", "code", "explain", "server"):
            page.show(tab)
            nodes: list[dict[str, Any]] = page.cdp("Accessibility.getFullAXTree")["nodes"]
            seen = [one for one in nodes if not one["ignored"] and one["role"].get("value") in named]
            assert len(seen) > 15
            assert [one["role"]["value"] for one in seen if not one.get("name", {}).get("value")] == []

    def test_tabs_are_moved_along_with_arrow_keys(self, page: PlaygroundPage) -> None:
        from selenium.webdriver import Keys

        page.one("#tab-parameters").send_keys(Keys.ARROW_RIGHT)
        assert page.driver.switch_to.active_element == page.one("#tab-code")
        assert page.one("#panel-code").is_displayed()
        assert page.one("#tab-code").get_attribute("aria-selected") == "true"
        page.one("#tab-code").send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
        assert page.one("#panel-server").is_displayed()

    def test_focus_goes_from_the_top_to_the_bottom_and_can_be_seen(self, page: PlaygroundPage) -> None:
        from selenium.webdriver import ActionChains, Keys

        page.script("document.querySelector('.skip').focus()")
        order = []
        for _ in range(12):
            ActionChains(page.driver).send_keys(Keys.TAB).perform()
            focused = page.driver.switch_to.active_element
            order.append(
                focused.get_attribute("id") or focused.get_attribute("class") or focused.get_attribute("value")
            )
            if focused.get_attribute("type") not in ("radio",) and focused.get_attribute("id") != "question":
                assert focused.value_of_css_property("outline-style") != "none", order
        assert order[:2] == ["model", "api"]
        assert order.index("theme") < order.index("tab-parameters") < order.index("answers")

    @pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
    def test_nothing_is_wider_than_the_screen(self, page: PlaygroundPage, size: tuple[int, int]) -> None:
        page.open(size=size)
        page.switch("#tokens", True)
        page.ask(QUESTION)
        for tab in ("talk", "parameters", "code", "explain", "server"):
            if not page.one(f"#tab-{tab}").is_displayed():
                continue
            page.show(tab)
            page.until(partial(page.has_text, f"#panel-{tab}"))
            if tab == "server":
                page.until(lambda: page.text("[data-meter=rate] .figure") != "–")
            shown = [
                one
                for one in ("talk", "parameters", "code", "explain", "server")
                if page.one(f"#panel-{one}").is_displayed()
            ]
            assert shown == ([tab] if size == PHONE else ["talk", tab])
            assert page.script("return document.documentElement.scrollWidth") <= size[0]
            assert page.script(f"return document.getElementById('panel-{tab}').scrollWidth") <= size[0]
            page.shoot(f"{size[0]}-{tab}")

    def test_it_is_light_or_dark_as_the_system_is_until_one_chooses(self, page: PlaygroundPage) -> None:
        def background() -> str:
            return page.one("body").value_of_css_property("background-color")

        light = background()
        page.open(theme="dark")
        dark = background()
        assert dark != light
        page.switch("#tokens", True)
        page.ask(QUESTION)
        page.shoot("dark")
        page.click("#theme")
        assert (background(), page.text("#theme")) == (light, "Light")
        page.driver.refresh()
        assert background() == light
        page.click("#theme")
        page.click("#theme")
        assert (background(), page.text("#theme")) == (dark, "Auto")
