"""The playground over HTTP: where it is, what it may load, how it is kept, and that all of it can be named and read."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files

import httpx

from dragoman.server.app import ServerConfig
from dragoman.server.security.callers import Scope
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PAGE_DIR = files("dragoman.server.apis.playground").joinpath("page")
NAMES = sorted(one.name for one in PAGE_DIR.iterdir())
TEXTS = {name: PAGE_DIR.joinpath(name).read_text(encoding="utf-8") for name in NAMES}
SCRIPTS = [name for name in NAMES if name.endswith(".js")]
CONTROLS = ("button", "input", "select", "textarea", "a")


class Elements(HTMLParser):
    """Every element of a page: its name and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


ELEMENTS = Elements(TEXTS["index.html"]).found


class TestTheWayThere:
    def test_browsers_that_ask_for_the_root_are_sent_to_the_page(self, client: httpx.Client) -> None:
        answer = client.get("/", headers=BROWSER)
        assert (answer.status_code, answer.headers["location"]) == (307, "playground")
        assert "accept" in answer.headers["vary"]
        assert "</html>" in client.get("/", headers=BROWSER, follow_redirects=True).text

    def test_other_clients_get_the_list_as_ever(self, client: httpx.Client) -> None:
        for accept in ("*/*", "application/json"):
            answer = client.get("/", headers={"accept": accept})
            assert (answer.status_code, answer.json()["server"]) == (200, "dragoman")

    def test_a_server_that_is_not_ready_gives_browsers_the_page_with_its_status(
        self, server: RunningServer, client: httpx.Client
    ) -> None:
        server.engine.death = "out of memory"
        answer = client.get("/", headers=BROWSER)
        assert answer.status_code == 500
        assert answer.text == client.get("/playground").text

    def test_it_can_be_switched_off(self) -> None:
        with running_server(ServerConfig(left_out=frozenset({"playground"}))) as server:
            assert httpx.get(f"{server.url}/playground").status_code == 404
            assert httpx.get(f"{server.url}/playground/page.js").status_code == 404
            root = httpx.get(server.url, headers=BROWSER)
            assert (root.status_code, root.content) == (200, httpx.get(f"{server.url}/docs").content)
            assert "/playground" not in httpx.get(f"{server.url}/openapi.json").json()["paths"]

    def test_it_needs_no_key_where_all_else_does(self) -> None:
        with running_server(ServerConfig(api_keys=frozenset({"secret"}))) as server:
            for name in ("", *(f"/{name}" for name in NAMES)):
                assert httpx.get(f"{server.url}/playground{name}").status_code == 200
            assert httpx.get(f"{server.url}/v1/models").status_code == 401

    def test_it_has_no_other_scope_than_open(self) -> None:
        from dragoman.server.apis.playground import API

        assert {operation.scope for operation in API.operations} == {Scope.OPEN}


class TestHowItIsSent:
    @table("name", NAMES)
    def test_every_file_comes_plain_and_compressed_and_only_once(self, client: httpx.Client, name: str) -> None:
        path = f"/playground/{name}"
        plain = client.get(path, headers={"accept-encoding": "identity"})
        assert plain.text == TEXTS[name]
        assert "content-encoding" not in plain.headers
        with client.stream("GET", path, headers={"accept-encoding": "gzip"}) as packed:
            raw = b"".join(packed.iter_raw())
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(raw) == plain.content
        assert packed.headers["etag"] != plain.headers["etag"]
        for answer, encoding in ((plain, "identity"), (packed, "gzip")):
            headers = {"accept-encoding": encoding, "if-none-match": f'"other", W/{answer.headers["etag"]}'}
            again = client.get(path, headers=headers)
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == answer.headers["etag"]

    def test_the_page_is_small(self, client: httpx.Client) -> None:
        sizes = [int(client.get(f"/playground/{name}", headers={"accept-encoding": "gzip"}).headers["content-length"])
                 for name in NAMES]  # fmt: skip
        assert sum(sizes) < 64 * 1024

    @table("coding", ["", "identity", "br", "gzip;q=0", "gzip; q=0.0", "deflate, gzip;q=0"])
    def test_clients_that_do_not_take_gzip_get_none(self, client: httpx.Client, coding: str) -> None:
        answer = client.get("/playground", headers={"accept-encoding": coding})
        assert "content-encoding" not in answer.headers

    @table("name", ["nothing.js", "..%2Fapi.py", "../assets.py", "sub/page.js", ""])
    def test_no_other_file_is_served(self, client: httpx.Client, name: str) -> None:
        assert client.get(f"/playground/{name}").status_code == 404

    def test_browsers_may_load_from_this_server_only(self, client: httpx.Client) -> None:
        for name in ("", "/page.js"):
            policy = client.get(f"/playground{name}").headers["content-security-policy"]
            rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
            assert rules["default-src"] == "'self'"
            assert {rules[one] for one in ("object-src", "base-uri", "form-action", "frame-ancestors")} == {"'none'"}
            assert rules["require-trusted-types-for"] == "'script'"
            assert "unsafe" not in policy
            assert "script-src" not in rules  # so that nothing weakens the default


class TestWhatItIsMadeOf:
    def test_nothing_is_inline_and_nothing_comes_from_elsewhere(self) -> None:
        for tag, attributes in ELEMENTS:
            assert not any(name.startswith("on") or name == "style" for name in attributes), (tag, attributes)
            assert tag != "style"
            if tag == "script":
                assert attributes["src"]
        for name, text in TEXTS.items():
            addresses = set(re.findall(r"https?://[^\s\"'`)<>]+", text)) - {"http://www.w3.org/2000/svg"}
            assert not addresses, (name, addresses)
            assert "@import" not in text
            assert not re.search(r"\burl\((?!data:)", text), name

    def test_no_text_is_read_as_html_or_code(self) -> None:
        for name in SCRIPTS:
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", TEXTS[name]
            )

    def test_every_file_is_used_and_every_reference_has_its_file(self) -> None:
        used = {"index.html"}
        for _, attributes in ELEMENTS:
            for value in (attributes.get("src"), attributes.get("href")):
                if value is not None and value.startswith("playground/"):
                    used.add(value.removeprefix("playground/"))
        for name in SCRIPTS:
            used |= set(re.findall(r'from "\./([^"]+)"', TEXTS[name]))
        assert used == set(NAMES)

    def test_every_control_has_a_label(self) -> None:
        controls = [(tag, attributes) for tag, attributes in ELEMENTS if tag in CONTROLS]
        assert len(controls) > 25
        for tag, attributes in controls:
            assert attributes.get("aria-label") or attributes.get("class") == "skip", (tag, attributes)
        for tag, attributes in ELEMENTS:
            if attributes.get("role") in ("log", "status", "alert", "group", "tablist", "tab", "list"):
                assert attributes.get("aria-label"), (tag, attributes)

    def test_what_elements_refer_to_is_there(self) -> None:
        ids = {attributes["id"] for _, attributes in ELEMENTS if "id" in attributes}
        for _, attributes in ELEMENTS:
            for name in ("aria-labelledby", "aria-describedby", "aria-controls", "for"):
                assert set((attributes.get(name) or "").split()) <= ids, attributes
        asked = {found for name in SCRIPTS for found in re.findall(r'byId\("([\w-]+)"\)', TEXTS[name])}
        assert asked <= ids, asked - ids

    def test_controls_that_scripts_make_have_labels(self) -> None:
        made = [
            (name, call)
            for name in SCRIPTS
            for call in re.findall(r'make\("(?:button|input|textarea|select)", (\{.*?\})[,)]', TEXTS[name], re.DOTALL)
        ]
        assert len(made) > 8
        for name, call in made:
            assert "aria-label" in call or "...shared" in call or '"unseen"' in call, (name, call)

    @table("theme", ["light", "dark"])
    def test_texts_stand_out_from_what_is_behind_them(self, theme: str) -> None:
        """WCAG 2.2, 1.4.3: at least 4.5 to 1."""
        colours = dict(palettes(TEXTS["style.css"]))[theme]
        pairs = [(front, back) for front in ("ink", "muted", "accent", "bad") for back in ("paper", "raised")]
        for front, back in [
            *pairs,
            ("on-accent", "accent"),
            ("bad", "bad-paper"),
            ("ink", "bad-paper"),
            ("muted", "sunk"),
        ]:
            assert contrast(colours[front], colours[back]) >= 4.5, (theme, front, back)
        shares = [int(one) / 100 for one in re.findall(r"rgb\(var\(--heat\) / (\d+)%\)", TEXTS["style.css"])]
        assert len(shares) == 4
        for share in shares:  # behind tokens
            shade = mixed(colours["heat"], colours["paper"], share)
            assert contrast(colours["ink"], shade) >= 4.5, (theme, share)

    def test_the_dark_theme_is_the_same_by_system_and_by_choice(self) -> None:
        blocks = re.findall(r"\{([^{}]*color-scheme: dark;[^{}]*)\}", TEXTS["style.css"])
        one, other = (re.findall(r"--[\w-]+: [^;]+", block) for block in blocks)
        assert one == other


def palettes(css: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The colours of each theme by name."""
    for block in re.findall(r"\{([^{}]*color-scheme: (?:light|dark);[^{}]*)\}", css):
        theme = re.search(r"color-scheme: (\w+)", block)
        assert theme is not None
        heat = re.search(r"--heat: (\d+) (\d+) (\d+);", block)
        assert heat is not None
        named = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        yield theme[1], {**named, "heat": "#" + "".join(f"{int(one):02x}" for one in heat.groups())}


def mixed(front: str, back: str, share: float) -> str:
    """A colour that lies over another one with so much of its own."""
    pairs = [(int(front[at : at + 2], 16), int(back[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(own * share + other * (1 - share)):02x}" for own, other in pairs)


def contrast(one: str, other: str) -> float:
    """The ratio of two colours' luminance (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """The relative luminance of `#rrggbb` (WCAG 2.2)."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
