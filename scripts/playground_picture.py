"""Takes docs/playground.png: the playground as a browser shows it, with the bundled model.

Run `python scripts/playground_picture.py` from the repository's root; it needs Chromium, chromedriver and Selenium. The
server runs in f32 and the answer has a seed, so the words are the same wherever it is taken; fonts are those of the machine.
"""

from __future__ import annotations

import argparse
import io
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
import httpx  # noqa: E402
from PIL import Image  # noqa: E402

from tests.browser.playground_page import PlaygroundPage, start_browser  # noqa: E402
from tests.support.server_process import serve  # noqa: E402

SIZE = (1280, 800)
MAX_BYTES = 200_000
CACHE_GB = "0.01"  # so little that one sees it being used
QUESTION = "What is deep learning?"
STORY = "Tell me a story about the sea."
WAVES = (1, 2, 4, 8, 6, 3, 5, 7, 4, 2, 3, 6, 2)  # calls at once, by turns, so that the plots have something to show


def make_waves(url: str) -> None:
    """Keep the server busy as many clients would, more and less of them by turns."""

    def call(number: int) -> None:
        body = {"prompt": f"Story {number}:", "max_tokens": 120, "temperature": 1, "ignore_eos": True, "seed": number}
        httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status()

    with ThreadPoolExecutor(max(WAVES)) as clients:
        for width in WAVES:
            list(clients.map(call, range(width)))


def take(page: PlaygroundPage) -> bytes:
    """The picture: a conversation, its end as tokens, candidates of one of them, and the server's numbers."""
    page.open(size=SIZE)
    page.set("parameter-temperature", "0")
    page.show("server")
    make_waves(page.url)
    page.ask(QUESTION)
    page.switch("#tokens", True)
    page.show("parameters")
    page.set("parameter-temperature", "1.1")
    page.set("parameter-seed", "5")
    page.show("server")
    page.ask(STORY)
    shaded = page.all(".token.shade-2, .token.shade-3, .token.shade-4")
    page.script("arguments[0].focus({focusVisible: true})", shaded[0] if shaded else page.one(".token"))
    page.until(page.one("#popover").is_displayed)
    taken: bytes = page.driver.get_screenshot_as_png()
    return taken


def small(picture: bytes) -> bytes:
    """The same with as many colours as the page needs."""
    file = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(colors=128, dither=Image.Dither.NONE).save(
        file, "PNG", optimize=True
    )
    return file.getvalue()


def main(arguments: list[str]) -> int:
    """Take and write the picture; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "playground.png", help="where to write it")
    out: Path = parser.parse_args(arguments).out
    driver = start_browser()
    try:
        with serve("--name", "demo", "--dtype", "f32", "--kv-cache-gb", CACHE_GB) as server:
            picture = small(take(PlaygroundPage(driver, server.base_url, out.parent)))
    finally:
        driver.quit()
    if len(picture) > MAX_BYTES:
        sys.stderr.write(f"the picture has {len(picture)} bytes, at most {MAX_BYTES} are allowed\n")
        return 1
    out.write_bytes(picture)
    sys.stdout.write(f"{out}: {len(picture)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
