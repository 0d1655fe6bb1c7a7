"""What a conversation on the page looks like and how long it lasts: Markdown, keys, reloads, the usual sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selenium.webdriver.common.keys import Keys

if TYPE_CHECKING:
    from tests.browser.playground_page import PlaygroundPage

RENDER = """
const [text, done] = arguments;
import(new URL("playground/markdown.js", document.baseURI)).then(({ markdown }) => {
  const node = document.createElement("div");
  node.append(...markdown(text));
  done(node.innerHTML);
});
"""
TEXTS = {
    "# One\n\ntwo\nlines": "<h3>One</h3><p>two\nlines</p>",
    "**a** *b* _c_ `d*e*` ~~f~~ \\*g\\*": "<p><strong>a</strong> <em>b</em> <em>c</em> <code>d*e*</code> <s>f</s> *g*</p>",
    "snake_case_name 2*3*4 a * b": "<p>snake_case_name 2<em>3</em>4 a * b</p>",
    "- a\n- b\n  - c\n\n1. d\n2. e": "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><ol><li>d</li><li>e</li></ol>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "> a\n> b\n\n---": "<blockquote><p>a\nb</p></blockquote><hr>",
    "```py\nx = '<b>'\n": '<pre class="listing" tabindex="0" aria-label="Code, py"><code>x = \'&lt;b&gt;\'\n</code></pre>',
    "<img src=x onerror=alert(1)>": "<p>&lt;img src=x onerror=alert(1)&gt;</p>",
    "[a](javascript:alert(1)) [b](data:text/html,x)": "<p>[a](javascript:alert(1)) [b](data:text/html,x)</p>",
    "[**a**](https://a.example/x_(y))": (
        '<p><a href="https://a.example/x_(y)" target="_blank" rel="noopener noreferrer nofollow"><strong>a</strong></a></p>'
    ),
    "see https://a.example/b.": (
        '<p>see <a href="https://a.example/b" target="_blank" rel="noopener noreferrer nofollow">https://a.example/b</a>.</p>'
    ),
}
HARD = (
    "*" * 3000,
    "[" * 3000,
    "`" * 2999 + "a",
    "> " * 3000,
    "_a" * 3000,
    "| " * 3000 + "\n|-|",
    "- " * 3000,
    "**a" * 3000,
)


def test_markdown_is_shown_and_nothing_in_it_is_read_as_html(page: PlaygroundPage) -> None:
    found = {text: page.driver.execute_async_script(RENDER, text) for text in TEXTS}
    assert found == TEXTS
    table = page.driver.execute_async_script(RENDER, "| a | b |\n|:--|--:|\n| 1 | `2` |\n")
    assert '<th class="to-start">a</th><th class="to-end">b</th>' in table
    assert '<td class="to-end"><code>2</code></td>' in table
    page.driver.set_script_timeout(5)
    for text in HARD:  # within the time
        page.driver.execute_async_script(RENDER, text)


def test_enter_sends_and_a_reload_keeps_the_conversation_until_a_new_one(page: PlaygroundPage) -> None:
    field = page.one("#question")
    field.send_keys("What is", Keys.SHIFT, Keys.ENTER)
    field.send_keys(Keys.NULL, "deep learning?")
    assert field.get_property("value") == "What is\ndeep learning?"
    page.set("parameter-max_tokens", "8")
    field.send_keys(Keys.ENTER)
    page.wait_answered(1)
    said = page.answer_text()
    assert said
    page.driver.refresh()
    page.wait_ready()
    page.until(lambda: page.all(".answered"))
    assert page.text(".asked .text") == "What is\ndeep learning?"
    assert page.answer_text() == said
    page.ask("And what is the sea?")
    page.show("code")
    page.until(lambda: "And what is the sea?" in page.text("#code") and "deep learning?" in page.text("#code"))
    page.click("#clear")
    page.driver.refresh()
    page.wait_ready()
    assert not page.all(".answered")


def test_what_is_kept_is_bounded_and_nothing_else_is_taken_for_it(page: PlaygroundPage) -> None:
    keep = """
    const [turns, done] = arguments;
    import(new URL("playground/keeping.js", document.baseURI)).then(({ keep, kept }) => {
      const picture = `data:image/png;base64,${"A".repeat(300000)}`;
      const turn = (place) => [{ role: "user", text: `${place} ${"x".repeat(50000)}`, pictures: [picture] },
        { role: "assistant", text: "y", reasoning: "", calls: [] }];
      keep(Array.from({ length: turns }, (_, place) => turn(place)).flat());
      const size = (localStorage.getItem("dragoman-chat") ?? "").length;
      done([size, kept().map((one) => one.text.slice(0, 2)), kept().filter((one) => one.pictures?.length).length]);
    });
    """
    size, texts, num_pictures = page.driver.execute_async_script(keep, 20)
    assert size <= 400_000
    assert texts[-2:] == ["19", "y"]
    assert texts[0] != "0 "
    assert num_pictures == 0
    assert page.driver.execute_async_script(keep, 1)[2] == 1
    for odd in (
        "{",
        "{}",
        '[{"role": "user"}]',
        '[{"role": "user", "text": "a", "pictures": ["https://a.example/x"]}]',
    ):
        page.script("localStorage.setItem('dragoman-chat', arguments[0])", odd)
        page.driver.refresh()
        page.wait_ready()
        assert not page.all(".asked")
    page.script("localStorage.clear()")


def test_it_samples_as_ollama_does_unless_a_person_says_otherwise(page: PlaygroundPage) -> None:
    usual = ('"temperature":0.8', '"top_k":40', '"top_p":0.9')

    def sent() -> str:
        page.show("code")
        page.until(lambda: "curl" in page.text("#code"))
        return page.text("#code").replace(" ", "").replace("\n", "")

    page.until(lambda: all(one in sent() for one in usual))
    page.show("parameters")
    page.set("parameter-top_p", "0.5")
    page.until(lambda: '"top_p":0.5' in sent() and '"temperature":0.8' in sent())
    page.show("parameters")
    page.set("parameter-temperature", "0")
    page.until(lambda: '"top_k"' not in sent() and '"temperature":0' in sent())
