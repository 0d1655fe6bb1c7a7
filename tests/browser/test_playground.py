"""The playground in headless Chromium against the real server: every API, and everything that can be done there."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from shutil import which
from typing import TYPE_CHECKING

import httpx
import pytest
from PIL import Image, ImageDraw

from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from tests.browser.playground_page import PlaygroundPage


QUESTION = "What is deep learning?"
ANSWER = "Deep learning is a kind of machine learning"
WAYS = [
    ("openai", "chat"), ("openai", "complete"), ("responses", "chat"), ("anthropic", "chat"), ("ollama", "chat"),
    ("ollama", "complete"), ("lmi", "chat"), ("lmi", "complete"), ("ovms", "chat"), ("ovms", "complete"),
    ("tgi", "complete"), ("text", "complete"),
]  # fmt: skip
CHATS = [name for name, mode in WAYS if mode == "chat"]
WITHOUT_TOKENS = ("anthropic", "text")

COMMANDS = {
    "curl": ["bash", "-c"],
    "python": [sys.executable, "-c"],
    "javascript": ["node", "--input-type=module", "-e"],
}
"""What runs the code that the page shows."""

PROGRAMS = {"curl": "curl", "python": sys.executable, "javascript": "node"}


def red_circle() -> str:
    """A picture, as base64."""
    picture = Image.new("RGB", (96, 96), "white")
    ImageDraw.Draw(picture).ellipse((20, 20, 76, 76), fill="red")
    file = io.BytesIO()
    picture.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def be_greedy(page: PlaygroundPage) -> None:
    """Have the model say the same every time."""
    names = [f"parameter-{place}temperature" for place in ("", "options-", "parameters-")]
    page.set(next(name for name in names if page.all(f"#{name}")), "0")


def said_in(stream: str) -> str:
    """The text of a streamed answer, in whichever API's words."""
    pieces = re.findall(r'"(?:content|text)":"((?:[^"\\]|\\.)*)"', stream)
    return str(json.loads(f'"{"".join(pieces)}"'))


GIVE_PICTURE = """
const [kind, data] = arguments;
const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
const transfer = new DataTransfer();
transfer.items.add(new File([bytes], "circle.png", { type: "image/png" }));
const field = document.getElementById("question");
field.dispatchEvent(kind === "paste"
  ? new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true })
  : new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
"""


class TestAnswers:
    def test_a_browser_that_asks_for_the_root_can_chat(self, page: PlaygroundPage) -> None:
        page.open("/")
        assert page.driver.current_url == f"{page.url}/playground"
        page.shoot("empty")
        page.set("parameter-temperature", "0")
        page.ask(QUESTION)
        assert page.answer_text().startswith(ANSWER)
        page.ask("What is the capital of France?")
        assert [one.text for one in page.all(".message > h2")] == ["You", "demo", "You", "demo"]
        page.shoot("chat")

    def test_an_answer_is_shown_while_it_comes_and_read_out_in_sentences(self, page: PlaygroundPage) -> None:
        page.script(
            "window.heard = []; window.lengths = new Set();"
            "const told = document.getElementById('announcer');"
            "new MutationObserver(() => heard.push(told.textContent)).observe(told, {childList: true});"
            "new MutationObserver(() => { const one = document.querySelector('.answered[aria-busy=true] .text');"
            "  if (one) lengths.add(one.textContent.length); })"
            ".observe(document.getElementById('answers'), {childList: true, subtree: true, characterData: true});"
        )
        page.set("parameter-temperature", "0")
        page.ask(QUESTION)
        length = len(page.answer_text())
        assert any(0 < one < length for one in page.script("return [...lengths]"))
        heard = [one for one in page.script("return heard") if one]
        assert " ".join(heard) == page.answer_text().strip()
        assert all(one.endswith(".") for one in heard)
        assert page.one("#announcer").get_attribute("aria-live") == "polite"

    @pytest.mark.parametrize(("api", "mode"), WAYS)
    def test_every_api_answers_streamed_and_whole(self, page: PlaygroundPage, api: str, mode: str) -> None:
        page.api(api, mode)
        shows_tokens = api not in WITHOUT_TOKENS
        if shows_tokens:
            page.switch("#tokens", True)
        for is_streamed in (True, False):
            page.switch("#streaming", is_streamed)
            page.ask(QUESTION)
            assert page.failures() == []
            assert len(page.answer_text()) > 20
            assert not page.all(".answered > .note"), "something was without effect"
            tokens = page.answer.find_elements("css selector", ".token")
            assert len(tokens) > 8 if shows_tokens else not tokens
            page.click("#clear")

    def test_what_the_server_refuses_is_told_in_its_words(self, page: PlaygroundPage) -> None:
        page.set("parameter-best_of", "3")
        page.ask(QUESTION)
        [failure] = page.failures()
        assert failure.startswith("Refused with 400")
        assert "best_of" in failure
        assert page.one(".failure").get_attribute("role") == "alert"

    def test_a_question_that_was_refused_is_not_sent_with_the_next_one(self, page: PlaygroundPage) -> None:
        page.set("parameter-best_of", "3")
        page.ask("Refuse this")
        page.click("[aria-label='Reset best_of']")
        page.ask(QUESTION)
        assert len(page.failures()) == 1
        page.show("code")
        page.until(lambda: QUESTION in page.text("#code"))
        assert "Refuse this" not in page.text("#code")

    def test_a_conversation_that_is_begun_anew_ends_the_answer_and_forgets_it(
        self, page: PlaygroundPage, server: ServerProcess
    ) -> None:
        page.set("parameter-ignore_eos", "true")
        page.send("Tell me a story about the sea")
        page.until(lambda: len(page.answer_text()) > 20)
        page.click("#clear")
        page.until(lambda: httpx.get(f"{server.base_url}/debug/requests").json() == [])
        page.until(lambda: page.one("#send").is_displayed())
        assert page.all(".message") == []
        page.show("code")
        page.until(lambda: "Hello!" in page.text("#code"))
        assert "assistant" not in page.text("#code")

    def test_a_call_that_waits_shows_its_place_until_the_answer_begins(
        self, page: PlaygroundPage, server: ServerProcess
    ) -> None:
        url, asked = f"{server.base_url}/v1/completions", {"model": "demo", "prompt": "The sea is", "max_tokens": 1}
        filling = asked | {"max_tokens": 1900, "ignore_eos": True, "n": 16, "stream": True}
        page.set("parameter-max_tokens", "8")
        with ThreadPoolExecutor(2) as threads:
            with ExitStack() as places:  # each call takes all places of this server
                for _ in range(3):
                    places.enter_context(httpx.stream("POST", url, json=filling, timeout=60))
                before = threads.submit(httpx.post, url, json=asked, timeout=60)
                page.until(lambda: len(httpx.get(f"{server.base_url}/debug/requests").json()) == 4)
                page.send(QUESTION)
                page.until(
                    lambda: page.all(".waiting") and re.search(r"\d before you, about \d+ s", page.text(".waiting"))
                )
                page.shoot("waiting")
            assert before.result().status_code == 200
        page.wait_answered(1)
        assert not page.all(".waiting")
        assert len(page.answer_text()) > 5
        assert not page.all(".answered > .note")

    def test_several_choices_stand_side_by_side(self, page: PlaygroundPage) -> None:
        page.set("parameter-n", "2")
        page.set("parameter-max_tokens", "8")
        page.ask(QUESTION)
        assert [one.text for one in page.all(".choice h3")] == ["Choice 1", "Choice 2"]
        assert all(len(one.text) > 5 for one in page.all(".choice > .text"))

    def test_what_has_no_effect_is_named(self, page: PlaygroundPage) -> None:
        page.set("parameter-length_penalty", "2")  # which is for beams
        page.set("parameter-max_tokens", "4")
        page.ask(QUESTION)
        assert page.text(".answered > .note") == "Without effect: length_penalty"

    def test_an_answer_can_be_asked_for_again(self, page: PlaygroundPage) -> None:
        page.set("parameter-max_tokens", "4")
        page.ask(QUESTION)
        first = page.answer
        page.click("[aria-label='Ask again']")
        page.until(lambda: page.all(".answered") and page.answer != first)
        page.wait_answered(1)
        assert len(page.all(".asked")) == 1


class TestStopping:
    def test_escape_ends_the_answer_and_the_server_confirms_it(
        self, page: PlaygroundPage, server: ServerProcess
    ) -> None:
        page.api("ovms", "complete")
        page.set("parameter-ignore_eos", "true")
        page.set("parameter-max_tokens", "1900")
        page.send("The sea")
        page.until(lambda: len(page.answer_text()) > 40)
        assert not page.one("#send").is_displayed()
        page.escape()
        page.wait_answered(1)
        assert "The server has ended the request" in page.text(".answered > .note")
        assert httpx.get(f"{server.base_url}/debug/requests").json() == []
        assert "stopped" in page.text(".foot .numbers")
        assert page.one("#send").is_displayed()
        page.shoot("stopped")

    def test_the_button_does_the_same(self, page: PlaygroundPage, server: ServerProcess) -> None:
        page.api("ovms", "complete")
        page.set("parameter-ignore_eos", "true")
        page.set("parameter-max_tokens", "1900")
        page.send("The sea")
        page.until(lambda: len(page.answer_text()) > 40)
        page.one("#stop").click()
        page.wait_answered(1)
        assert "The server has ended the request" in page.text(".answered > .note")


class TestParameters:
    def test_they_come_with_the_ranges_of_the_description(self, page: PlaygroundPage, server: ServerProcess) -> None:
        schemas = httpx.get(f"{server.base_url}/openapi.json").json()["components"]["schemas"]
        described = set(schemas["ChatRequestV1"]["properties"])
        shown = {one.get_attribute("id") for one in page.all(".parameter [id^=parameter-]:not(p)")}
        decided = {"messages", "model", "stream", "stream_options", "return_progress", "tools", "functions"}
        assert {f"parameter-{name}" for name in described - decided} == shown
        assert "0 to 2" in page.text("#parameter-temperature-about")
        slider = page.one("[aria-label='temperature, slider']")
        assert (slider.get_attribute("min"), slider.get_attribute("max")) == ("0", "2")

    @pytest.mark.parametrize(
        ("value", "words"), [("2.5", "temperature must be 0 to 2"), ("-1", "temperature must be 0 to 2")]
    )
    def test_what_is_out_of_range_is_told_and_not_sent(self, page: PlaygroundPage, value: str, words: str) -> None:
        page.set("parameter-temperature", value)
        page.send(QUESTION)
        assert page.text("#notice") == words
        assert page.one("#parameter-temperature").get_attribute("aria-invalid") == "true"
        assert page.all(".answered") == []

    @pytest.mark.parametrize(
        ("api", "mode", "control"),
        [
            ("openai", "chat", "parameter-max_tokens"),
            ("ollama", "chat", "parameter-options-num_predict"),
            ("lmi", "complete", "parameter-parameters-max_new_tokens"),
            ("tgi", "complete", "parameter-parameters-max_new_tokens"),
            ("anthropic", "chat", "parameter-max_tokens"),
        ],
    )
    def test_what_is_set_holds_wherever_an_api_has_it(
        self, page: PlaygroundPage, api: str, mode: str, control: str
    ) -> None:
        page.api(api, mode)
        page.set(control, "3")
        page.ask(QUESTION)
        assert page.text(".foot .numbers").startswith("3 tokens")

    def test_the_filter_finds_them_and_all_can_be_taken_back(self, page: PlaygroundPage) -> None:
        page.set("parameter-ignore_eos", "true")
        assert page.text(".count") == "1 set"
        page.one("[aria-label='Filter parameters']").send_keys("beam")
        shown = [one.text for one in page.all("#parameters details .name") if one.is_displayed()]
        assert "use_beam_search" in shown
        assert "logit_bias" not in shown
        page.click("[aria-label='Reset all parameters']")
        assert page.text(".count") == "temperature 0.8, top_k 40, top_p 0.9; all others as the server has them"

    def test_instructions_reach_the_model(self, page: PlaygroundPage) -> None:
        page.one("#system").send_keys("Answer like a pirate")
        page.show("explain")
        page.until(lambda: page.all("#explanation pre"))
        assert "Answer like a pirate" in page.text("#explanation pre")


class TestTokens:
    @pytest.fixture
    def page(self, page: PlaygroundPage) -> PlaygroundPage:
        page.switch("#tokens", True)
        page.set("parameter-temperature", "1.8")
        page.set("parameter-seed", "3")
        page.set("parameter-max_tokens", "60")
        page.ask("Tell me a story about the sea")
        return page

    def test_they_are_shaded_by_how_likely_they_were(self, page: PlaygroundPage) -> None:
        shades = {one.get_attribute("class") for one in page.all(".token")}
        assert len(shades) >= 3
        likely, unlikely = page.one(".token.shade-0"), page.one(".token.shade-4")
        assert likely.value_of_css_property("background-color") == "rgba(0, 0, 0, 0)"
        assert unlikely.value_of_css_property("background-color") != "rgba(0, 0, 0, 0)"
        assert "".join(str(one.get_property("textContent")) for one in page.all(".token:not(:last-child)"))[:20].strip()

    def test_alternatives_are_shown_on_hover_and_on_focus(self, page: PlaygroundPage) -> None:
        from selenium.webdriver import ActionChains, Keys

        unlikely = page.one(".token.shade-4")
        ActionChains(page.driver).move_to_element(unlikely).perform()
        popover = page.one("#popover")
        page.until(popover.is_displayed)
        assert len(page.all("#popover tr")) >= 5
        assert len(page.all("#popover tr.chosen")) == 1
        page.shoot("tokens")
        ends = page.script(
            "const end = () => document.querySelector('#popover').getBoundingClientRect().right;"
            "return [...document.querySelectorAll('.token')].map((token) => { token.focus(); return end(); })"
        )
        assert max(ends) <= page.one("#panel-parameters").rect["x"], "it covers what is beside the conversation"
        ActionChains(page.driver).move_to_element(page.one(".brand")).perform()
        page.until(lambda: not popover.is_displayed())
        first, second = page.all(".token")[:2]
        page.script("arguments[0].focus()", first)
        assert popover.is_displayed()
        first.send_keys(Keys.ARROW_RIGHT)
        assert page.driver.switch_to.active_element == second
        assert second.get_attribute("aria-describedby") == "popover"
        assert "%" in str(second.get_attribute("aria-label"))
        second.send_keys(Keys.ESCAPE)
        assert not popover.is_displayed()

    def test_the_same_answer_can_be_read_as_text(self, page: PlaygroundPage) -> None:
        assert not page.one(".choice > .text").is_displayed()
        page.click("[aria-label='Show text or tokens']")
        assert page.one(".choice > .text").is_displayed()
        assert not page.one(".tokens").is_displayed()


class TestFolding:
    @pytest.mark.parametrize("api", CHATS)
    def test_tool_calls_are_folded_and_can_be_answered(self, page: PlaygroundPage, api: str) -> None:
        page.api(api)
        be_greedy(page)
        page.click("#tools-example")
        page.ask("What is the weather in Paris?")
        call = page.one(".fold.call")
        assert call.get_attribute("open") is None
        assert "get_weather" in call.text
        assert "Paris" in page.text(".fold.call pre")
        page.shoot("tool-folded")
        page.click(".fold.call summary")
        page.one(".results textarea").send_keys('{"weather": "sunny"}')
        page.click("[aria-label='Send the results']")
        page.wait_answered(2)
        assert page.failures() == []
        assert len(page.answer_text()) > 10

    def test_reasoning_is_folded(self, page: PlaygroundPage) -> None:
        page.set("parameter-chat_template_kwargs", '{"enable_thinking": true}')
        page.ask("What is 2+2?")
        fold = page.one(".fold.reasoning")
        assert fold.get_attribute("open") is None
        assert len(page.text(".fold.reasoning .text")) > 5
        assert page.text(".fold.reasoning .text") not in page.answer_text()

    def test_tools_that_are_no_json_are_told(self, page: PlaygroundPage) -> None:
        page.script("document.getElementById('tools-block').open = true")
        page.one("#tools").send_keys("[{")
        page.show("code")
        page.until(lambda: page.text("#tools-problem") == "The tools must be JSON")


class TestPictures:
    @pytest.mark.parametrize("api", CHATS)
    def test_a_model_that_sees_is_asked_about_a_picture(self, page: PlaygroundPage, api: str) -> None:
        kind = "paste" if CHATS.index(api) % 2 else "drop"
        self.choose_the_one_that_sees(page)
        page.api(api)
        page.script(GIVE_PICTURE, kind, red_circle())
        page.until(lambda: page.all("#pictures img"))
        page.ask("What color is the circle?")
        assert page.failures() == []
        assert "red" in page.answer_text()
        assert page.all(".asked img")
        page.shoot("picture")

    def test_a_picture_can_be_taken_back(self, page: PlaygroundPage) -> None:
        self.choose_the_one_that_sees(page)
        page.script(GIVE_PICTURE, "paste", red_circle())
        page.until(lambda: page.all("#pictures img"))
        page.click("[aria-label='Remove picture 1']")
        assert page.all("#pictures img") == []

    def test_a_model_that_sees_none_says_so(self, page: PlaygroundPage) -> None:
        page.script(GIVE_PICTURE, "paste", red_circle())
        page.until(lambda: page.text("#notice") == "demo sees no pictures")
        assert not page.one("#attach").is_displayed()

    @staticmethod
    def choose_the_one_that_sees(page: PlaygroundPage) -> None:
        page.pick("#model", "demo-vision")
        page.until(page.one("#attach").is_displayed)


class TestCode:
    @pytest.mark.parametrize(
        ("api", "mode", "language"),
        [
            *(("openai", "chat", language) for language in COMMANDS),
            ("openai", "complete", "python"),
            ("responses", "chat", "python"),
            ("lmi", "complete", "curl"),
            ("ollama", "chat", "python"),
        ],
    )
    def test_the_code_does_what_the_page_does(self, page: PlaygroundPage, api: str, mode: str, language: str) -> None:
        if which(PROGRAMS[language]) is None:
            pytest.skip(f"needs {PROGRAMS[language]}")
        page.api(api, mode)
        be_greedy(page)
        page.write('What\'s "deep" learning? \\ 日本')
        page.show("code")
        page.click(f"#language input[value={language}]")
        page.until(lambda: "日本" in page.text("#code"))
        page.shoot(f"code-{language}")
        command = [*COMMANDS[language], page.text("#code")]
        environ = {**os.environ, "PYTHONIOENCODING": "utf-8"}
        run = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False, env=environ)
        assert run.returncode == 0, run.stderr
        page.ask()
        assert page.answer_text()
        is_text = language == "python" and api in ("openai", "responses")  # OpenAI's library gives the text alone
        assert (run.stdout if is_text else said_in(run.stdout)) == page.answer_text()

    def test_it_can_be_copied(self, page: PlaygroundPage) -> None:
        page.cdp(
            "Browser.grantPermissions", origin=page.url, permissions=["clipboardReadWrite", "clipboardSanitizedWrite"]
        )
        page.show("code")
        page.until(lambda: page.text("#code"))
        page.one("#copy-code").click()
        page.until(lambda: page.text("#copy-code") == "Copied")
        assert page.script("return navigator.clipboard.readText()") == page.text("#code")


class TestExplaining:
    def test_the_prompt_and_who_decides_what_are_told(self, page: PlaygroundPage) -> None:
        page.set("parameter-temperature", "0.5")
        page.write(QUESTION)
        page.show("explain")
        page.until(lambda: QUESTION in page.text("#explanation"))
        rows = {one.find_element("css selector", "th").text: one.text for one in page.all("#explanation tbody tr")}
        assert rows["temperature"] == "temperature 0.5 request"
        assert "tokens" in page.text("#explanation")
        page.shoot("explain")

    def test_a_refusal_is_told_before_it_happens(self, page: PlaygroundPage) -> None:
        page.set("parameter-best_of", "3")
        page.show("explain")
        page.until(lambda: page.all("#explanation .failure"))
        assert "Would be refused with 400" in page.text("#explanation .failure")


class TestMeters:
    def test_they_show_what_the_server_does(self, page: PlaygroundPage) -> None:
        page.show("server")
        page.until(lambda: page.text("[data-meter=rate] .figure") != "–")
        page.api("ovms", "complete")
        page.show("parameters")
        page.set("parameter-ignore_eos", "true")
        page.set("parameter-max_tokens", "1900")
        page.send("The sea")
        page.show("server")
        page.until(lambda: page.text("[data-meter=running] .figure") == "1")
        page.until(lambda: float(page.text("[data-meter=rate] .figure")) > 0)
        assert len(str(page.one("[data-meter=rate] polyline").get_attribute("points")).split()) >= 2
        page.escape()
        page.wait_answered(1)
        page.until(lambda: page.text("[data-meter=running] .figure") == "0")
        page.until(lambda: page.text("[data-meter=dragoman_inter_token_seconds] .figure").endswith("s"))
        assert page.all("[data-meter=dragoman_time_to_first_token_seconds] rect")
        assert "median" in str(
            page.one("[data-meter=dragoman_time_to_first_token_seconds] svg").get_attribute("aria-label")
        )
        page.shoot("meters")
