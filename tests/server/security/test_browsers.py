"""What browsers send for pages of other origins, and to names that lead here, where no key is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.config.resolve import demo_model_dir, resolve
from dragoman.host.settings import server_config
from dragoman.server.app import ServerConfig
from dragoman.server.security.callers import Scope
from dragoman.server.security.cors import CorsRules
from tests.support.api_document import Checker
from tests.support.every_api import filled
from tests.support.live_routes import live_document, live_operations
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import Rows

OPERATIONS = live_operations()
PAGE, EVIL = "https://page.example", "https://evil.example"
CROSS = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}

FOREIGN: list[Mapping[str, str]] = [
    CROSS,
    {**CROSS, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    {"sec-fetch-site": "same-site", "origin": "http://localhost:3000"},  # a page of another port
    {"sec-fetch-site": "Same-Site"},
    {"origin": EVIL},
    {"origin": "null"},  # a file, or a frame in a sandbox
    {"origin": "http://127.0.0.1"},  # another port
    {"origin": f"{EVIL}, http://{{host}}"},
    {"origin": EVIL, "upgrade": "websocket", "connection": "Upgrade", "sec-websocket-version": "13"},
    {"origin": "http://evil.example", "x-forwarded-host": "other.example"},
]
OWN: list[Mapping[str, str]] = [
    {},
    {"sec-fetch-site": "same-origin", "origin": "http://{host}"},
    {"sec-fetch-site": "same-origin", "origin": "https://proxy.example"},  # a proxy has changed the host
    {"sec-fetch-site": "none"},  # somebody has typed the address
    {"origin": "http://{host}"},
    {"origin": "https://proxy.example", "x-forwarded-host": "proxy.example"},
]
CHAT = {"model": "fake", "prompt": "Hi", "max_tokens": 1}


def sent(client: httpx.Client, headers: Mapping[str, str], path: str = "/v1/completions") -> httpx.Response:
    """A request as a page can have it sent without asking before: it says that it is text."""
    host = client.base_url.netloc.decode()
    filled_in = {name: value.replace("{host}", host) for name, value in headers.items()}
    if path == "/v1/completions" and "upgrade" not in headers:
        return client.post(path, content=json.dumps(CHAT), headers={"content-type": "text/plain", **filled_in})
    return client.get("/v1/models" if path == "/v1/completions" else path, headers=filled_in)


def test_what_pages_of_others_ask_is_refused_in_the_words_of_every_api() -> None:
    """Of whatever does something or tells of it; each answer is documented."""
    checker = Checker(live_document())
    with (
        running_server(dialects=real_dialects(), has_hosting=True) as server,
        httpx.Client(base_url=server.url) as client,
        Rows() as rows,
    ):
        for operation in OPERATIONS:
            if operation.scope is Scope.OPEN:
                continue
            with rows.row(operation.method, operation.path):
                body = operation.example or {}
                answer = client.request(operation.method, filled(operation.path), json=body, headers=CROSS)
                assert (answer.status_code, server.service.requests) == (403, [])
                key = (operation.method, operation.path)
                checker.check_answer(key, 403, answer.headers["content-type"], answer.content)
                assert "--cors-allowed-origin" in answer.text


def test_whose_page_it_is_browsers_tell_in_several_ways() -> None:
    with (
        running_server(dialects=real_dialects()) as server,
        httpx.Client(base_url=server.url) as client,
        Rows() as rows,
    ):
        for headers in FOREIGN:
            with rows.row(headers):
                assert sent(client, headers).status_code == 403
                assert sent(client, headers, "/metrics").status_code == 403
                assert sent(client, headers, "/ping").status_code == 200  # it does nothing, and the browser hides it
        for headers in OWN:
            with rows.row(headers):
                assert sent(client, headers).status_code == 200
                assert sent(client, headers, "/debug/requests").status_code == 200


def test_pages_that_cors_lets_read_may_ask() -> None:
    listed, every = ServerConfig(cors=CorsRules(PAGE)), ServerConfig(cors=CorsRules("*"))
    with running_server(listed, dialects=real_dialects()) as server, httpx.Client(base_url=server.url) as client:
        assert sent(client, {"origin": PAGE, "sec-fetch-site": "cross-site"}).status_code == 200
        for headers in FOREIGN:
            assert sent(client, headers).status_code == 403
    with running_server(every, dialects=real_dialects()) as server, httpx.Client(base_url=server.url) as client:
        for headers in FOREIGN:
            assert sent(client, headers).status_code == 200


def test_where_a_key_is_needed_it_decides_and_where_none_is_the_page() -> None:
    config = ServerConfig(api_keys=frozenset({"k"}), open_scopes=frozenset({Scope.METRICS}))
    with running_server(config, dialects=real_dialects()) as server, httpx.Client(base_url=server.url) as client:
        assert sent(client, CROSS).status_code == 401
        assert sent(client, {**CROSS, "authorization": "Bearer k"}).status_code == 200
        assert sent(client, CROSS, "/metrics").status_code == 403
        assert sent(client, {}, "/metrics").status_code == 200


# --- names that lead here -----------------------------------------------------------------------------------------------


def asked_as(server: RunningServer, host: str, path: str = "/ping", method: str = "GET") -> int:
    return httpx.request(method, f"{server.url}{path}", headers={"host": host}).status_code


def test_a_server_of_this_machine_is_asked_by_its_names_only() -> None:
    with running_server(ServerConfig(allowed_hosts=())) as server, Rows() as rows:
        for host in ("localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1:1", "127.9.9.9", "[::1]", "[::1]:80"):
            with rows.row(host):
                assert asked_as(server, host) == 200
        for host in (
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "10.0.0.1",
            "[::2]:80",
            "xlocalhost",
        ):
            with rows.row(host):
                assert asked_as(server, host) == 403
                assert asked_as(server, host, "/debug/requests") == 403
                assert asked_as(server, host, "/nowhere") == 403
                assert asked_as(server, host, "/v1/models", "OPTIONS") == 403


def test_the_operator_names_other_hosts_whose_pages_are_its_own() -> None:
    with running_server(ServerConfig(allowed_hosts=("box.lan", "*.dev.example", "here.example:81"))) as server:
        with Rows() as rows:
            for host in ("box.lan", "BOX.lan:8080", "a.dev.example:1", "here.example:81", "localhost"):
                with rows.row(host):
                    assert asked_as(server, host) == 200
            for host in ("dev.example", "xbox.lan", "here.example", "here.example:82", "a.box.lan"):
                with rows.row(host):
                    assert asked_as(server, host) == 403
        with httpx.Client(base_url=server.url) as client:
            assert sent(client, {"origin": "http://box.lan:99"}, "/metrics").status_code == 200
            assert sent(client, {"origin": "http://other.lan"}, "/metrics").status_code == 403


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("", ()),
        ("--host localhost", ()),
        ("--host ::1 --allowed-hosts a.example,*.b.example", ("a.example", "*.b.example")),
        ("--allowed-hosts *", ("*",)),
        ("--host 0.0.0.0", ("*",)),
        ("--host 0.0.0.0 --allowed-hosts a.example", ("a.example",)),
        ("--api-key-file KEYS", ("*",)),
    ],
)
def test_only_a_server_of_this_machine_without_keys_is_picky(
    words: str, hosts: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("secret\n", encoding="utf-8")
    arguments = read_arguments(words.replace("KEYS", str(tmp_path / "keys")).split())
    assert server_config(resolve(arguments.givens, {}, demo_model_dir())).allowed_hosts == hosts
