"""What browsers are told: which pages may read answers, what of them, and what they may send."""

from __future__ import annotations

import httpx
import pytest

from dragoman.config.kinds import Origins
from dragoman.server.app import ServerConfig
from dragoman.server.operations import Operation
from dragoman.server.security.cors import CorsRules
from tests.support.every_api import filled
from tests.support.live_routes import live_document, live_operations
from tests.support.running_server import running_server
from tests.support.tables import table

PAGE, OTHER, EVIL = "https://page.example", "http://localhost:3000", "https://evil.example"
LISTED = ServerConfig(cors=CorsRules(f"{PAGE},{OTHER}", allows_credentials=True), api_keys=frozenset({"k"}))


def preflight(client: httpx.Client, operation: Operation, origin: str) -> httpx.Response:
    asked = {
        "origin": origin,
        "access-control-request-method": operation.method,
        "access-control-request-headers": "authorization,content-type",
    }
    return client.options(filled(operation.path), headers=asked)


def test_every_route_answers_the_preflight_of_a_page_that_may() -> None:
    with running_server(LISTED, has_hosting=True) as server, httpx.Client(base_url=server.url) as client:
        for operation in live_operations():
            answer = preflight(client, operation, PAGE)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert operation.method in answer.headers["access-control-allow-methods"].split(", ")
            assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
            assert answer.headers["access-control-allow-credentials"] == "true"
            assert answer.headers["vary"] == "origin"
            assert int(answer.headers["access-control-max-age"]) > 0


@table("origin", [EVIL, "null", "https://page.example.evil.example", "http://page.example", "*"])
def test_other_pages_are_told_nothing(origin: str) -> None:
    with running_server(LISTED) as server, httpx.Client(base_url=server.url) as client:
        asked = [preflight(client, live_operations()[0], origin), client.get("/ping", headers={"origin": origin})]
        for answer in asked:
            assert not [name for name in answer.headers if name.startswith("access-control-")]
            assert answer.headers["vary"] == "origin"  # or a cache would hand this answer to a page that may


def test_each_listed_page_is_told_its_own_origin() -> None:
    with running_server(LISTED) as server:
        for origin in (PAGE, OTHER):
            answer = httpx.get(f"{server.url}/ping", headers={"origin": origin})
            assert answer.headers["access-control-allow-origin"] == origin


def test_an_answer_that_varies_by_itself_does_so_for_both_reasons() -> None:
    with running_server(LISTED) as server:
        assert httpx.get(f"{server.url}/", headers={"origin": PAGE}).headers["vary"] == "accept, origin"


def test_streams_and_errors_are_readable_too() -> None:
    with running_server(LISTED) as server:
        key = {"x-api-key": "k"}
        for body, headers, status in (({"stream": True}, key, 200), ({}, {}, 401)):
            answer = httpx.post(f"{server.url}/invocations", json=body, headers={"origin": PAGE, **headers})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
        missing = httpx.get(f"{server.url}/none", headers={"origin": PAGE})
        assert (missing.status_code, missing.headers["access-control-allow-origin"]) == (404, PAGE)


def test_pages_may_read_every_field_that_means_something() -> None:
    described = live_document()["components"]["headers"]
    with running_server(LISTED) as server:
        answer = httpx.get(f"{server.url}/ping", headers={"origin": PAGE})
        exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {name.lower() for name in described} | {"x-request-id", "retry-after", "x-dragoman-ignored"} <= set(exposed)
    assert {"x-ratelimit-limit-requests", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-requests"} <= set(exposed)


def test_all_pages_may_read_but_none_with_what_a_browser_keeps() -> None:
    with running_server(ServerConfig(cors=CorsRules("*"))) as server:
        answer = httpx.get(f"{server.url}/ping", headers={"origin": EVIL})
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


def test_nothing_is_said_where_nothing_is_allowed() -> None:
    with running_server() as server, httpx.Client(base_url=server.url) as client:
        answer = preflight(client, live_operations()[0], PAGE)
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("access-control-") or name == "vary"]


@table(
    ("text", "origins"),
    [("*", "*"), ("https://A.example", "https://a.example"), (f"{PAGE}, {OTHER}", f"{PAGE},{OTHER}"),
     ("http://[::1]:80", "http://[::1]:80"), ("chrome-extension://abc", "chrome-extension://abc")],
)  # fmt: skip
def test_origins_are_read(text: str, origins: str) -> None:
    assert Origins().parse(text) == origins


@table(
    "text",
    ["", ",", "null", "page.example", "https://*.example", "https://page.example/", "*,https://page.example", "**"],
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Origins().parse(text)
