"""The documentation's site builds strictly and without a network, asks for nothing from elsewhere, and has no dead link."""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.documented import ROOT

# What a browser loads by itself, by tag: the attributes that say from where.
_LOADED = {
    **dict.fromkeys(("audio", "embed", "iframe", "input", "script", "track", "video"), ("src",)),
    **dict.fromkeys(("img", "source"), ("src", "srcset")),
    **dict.fromkeys(("link", "use"), ("href",)),
    "object": ("data",),
}
_IN_CSS = re.compile(r"(?:url\(\s*|@import\s+)['\"]?((?:https?:)?//[^'\")\s]+)")
NO_NETWORK = (
    "import socket\ndef refuse(*words, **more):\n    raise OSError('no network')\nsocket.socket.connect = refuse\n"
)


@dataclass
class Html(HTMLParser):
    """What a page loads, links to, and can be linked to by."""

    loaded: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of one tag."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.loaded += [
            given[name] for name in _LOADED.get(tag, ()) if name in given and given.get("rel") != "canonical"
        ]
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


BUILT = pytest.mark.full("builds the site, which no program here reads")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make site` builds it, in a process that can reach nobody."""
    directory = tmp_path_factory.mktemp("site")
    shut = tmp_path_factory.mktemp("shut")
    (shut / "sitecustomize.py").write_text(NO_NETWORK, encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(shut)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Html]:
    """Every page of the site by its path in it, read."""
    return dict(_read(site))


def _read(site: Path) -> Iterator[tuple[str, Html]]:
    for path in site.rglob("*.html"):
        page = Html()
        page.feed(path.read_text(encoding="utf-8"))
        yield path.relative_to(site).as_posix(), page


def _is_elsewhere(address: str) -> bool:
    return bool(urlsplit(address).netloc)


@BUILT
def test_every_page_is_in_the_site(pages: dict[str, Html]) -> None:
    written = {
        path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in (ROOT / "docs").rglob("*.md")
    }
    assert written | {"changelog.html", "examples.html"} <= set(pages)


@BUILT
def test_no_page_loads_anything_from_elsewhere(site: Path, pages: dict[str, Html]) -> None:
    assert {
        (name, address) for name, page in pages.items() for address in page.loaded if _is_elsewhere(address)
    } == set()
    for path in (*site.rglob("*.css"), *site.rglob("*.svg"), *site.rglob("*.html")):
        assert _IN_CSS.findall(path.read_text(encoding="utf-8")) == [], path


@BUILT
def test_every_link_and_anchor_leads_somewhere(site: Path, pages: dict[str, Html]) -> None:
    dead = []
    for name, page in pages.items():
        for address in [*page.links, *page.loaded]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or name == "404.html":
                continue
            target = (
                posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path))) if parts.path else name
            )
            if target in pages:
                is_there = not parts.fragment or unquote(parts.fragment) in pages[target].anchors
            else:
                is_there = (site / target).exists()
            if not is_there:
                dead.append((name, address))
    assert dead == []


@BUILT
def test_tables_are_tables(site: Path) -> None:
    """Markdown's dialects differ in what they take for one."""
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8").partition("<article")[2].partition("</article")[0]
        text = re.sub(r"<pre\b.*?</pre>", "", text, flags=re.DOTALL)
        assert "\\|" not in text, path
        assert re.findall(r"^\|.*", re.sub(r"<[^>]+>", "", text), re.MULTILINE) == [], path


@BUILT
def test_the_search_finds_words_without_a_server(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "max-step-slowdown" in index
    assert "speculation.html" in index


def test_every_page_is_in_the_navigation() -> None:
    """The strict build refuses a page that is not."""
    named = re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    written = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted([*written, "changelog.md", "examples.md"])


def test_the_files_in_the_picture_of_a_request_exist() -> None:
    picture = (ROOT / "docs" / "images" / "request.svg").read_text(encoding="utf-8")
    names = " ".join(re.findall(r'class="file"[^>]*>([^<]*)<', picture)).split()
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "src" / "dragoman").rglob("*.py")]
    assert len(names) > 15
    assert [name for name in names if not any(f"/{name}" in path for path in files)] == []
