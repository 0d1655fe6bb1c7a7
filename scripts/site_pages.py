"""Hooks of mkdocs (mkdocs.yml) that bring into the site what pages link to outside docs/.

CHANGELOG.md and examples/README.md become pages; a source file or another text becomes a copy that browsers show. Links are
rewritten, so that the pages stay as they are and lead somewhere on GitHub as well. A link to what does not exist stays as it
is, and mkdocs, which is strict, refuses it. Does not write pages or check anchors. Called by mkdocs, on its thread.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"CHANGELOG.md": "changelog.md", "examples/README.md": "examples.md"}
"""What lies outside docs/, by its path in the repository: the page that it becomes."""

COPIES = "repository"  # the folder of the site that copies lie in
_CODE_IN_TABLE = re.compile(r"^\|.*`.*$", re.MULTILINE)
_LINK = re.compile(r"(?P<head>\]\()(?P<target>[^)#:\s]+)(?P<tail>(?:#[^)\s]*)?\))")


def repository_path(page: str) -> str:
    """Where in the repository the text of a page of the site lies."""
    return {made: source for source, made in PAGES.items()}.get(page, f"docs/{page}")


def place_in_site(path: str) -> str | None:
    """Where in the site a file of the repository is found, by its path; None if it is none, and the link stays."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path / "README.md").is_file():
        return place_in_site(f"{path}/README.md")
    # Browsers show what ends in .txt, and would download the rest.
    return f"{COPIES}/{path}.txt" if (ROOT / path).is_file() and not path.startswith("..") else None


def links_of(markdown: str, page: str) -> Iterator[str]:
    """The paths in the repository that a page of the site links to."""
    folder = posixpath.dirname(repository_path(page))
    for match in _LINK.finditer(markdown):
        yield posixpath.normpath(posixpath.join(folder, match["target"]))


def rewritten(markdown: str, page: str) -> str:
    """The text of a page with links that hold in the site."""
    source, made = posixpath.dirname(repository_path(page)), posixpath.dirname(page)

    def link(match: re.Match[str]) -> str:
        place = place_in_site(posixpath.normpath(posixpath.join(source, match["target"])))
        target = match["target"] if place is None else posixpath.relpath(place, made or ".")
        return f"{match['head']}{target}{match['tail']}"

    return _LINK.sub(link, markdown)


def unescaped(markdown: str) -> str:
    r"""The text with `|` for `\|` in code within tables: GitHub wants the escape, Python's Markdown would show it."""

    def row(match: re.Match[str]) -> str:
        return re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), match[0])

    return _CODE_IN_TABLE.sub(row, markdown)


def on_config(config: Any) -> Any:
    """Leave out of the navigation what is not written. Mutates: config."""
    for section in config["nav"]:
        for title, entries in section.items():
            if isinstance(entries, list):
                section[title] = [entry for entry in entries if all(map(_is_written, entry.values()))]
    return config


def _is_written(page: str) -> bool:
    return (ROOT / repository_path(page)).is_file()


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and copies that are linked to. Mutates: files."""
    from mkdocs.structure.files import File as SiteFile

    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for source, made in PAGES.items():
        texts[made] = (ROOT / source).read_text(encoding="utf-8")
        files.append(SiteFile.generated(config, made, content=texts[made]))
    for page, markdown in texts.items():
        for path in links_of(markdown, page):
            place = place_in_site(path)
            if place is not None and place.startswith(COPIES) and files.get_file_from_path(place) is None:
                files.append(SiteFile.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The text of a page with links that hold in the site."""
    return unescaped(rewritten(markdown, page.file.src_uri))
