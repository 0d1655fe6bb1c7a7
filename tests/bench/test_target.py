"""Where requests go, by the URL and the API."""

from __future__ import annotations

import pytest

from dragoman.tools.bench.client import read_target
from tests.support.tables import table

CHAT = "/v1/chat/completions"


@table(
    ("url", "path", "endpoint"),
    [
        ("http://h:1", CHAT, CHAT),
        ("http://h:1/", CHAT, CHAT),
        ("http://h:1/v1", CHAT, CHAT),
        ("http://h:1/v3/", CHAT, "/v3/chat/completions"),
        ("http://h:1/v1/chat/completions", CHAT, CHAT),
        ("http://h:1/openai/v1", CHAT, "/openai/v1/chat/completions"),
        ("http://h:1/gateway", CHAT, "/gateway/v1/chat/completions"),
        ("http://h:1/endpoints/mine/invocations", "/invocations", "/endpoints/mine/invocations"),
        ("http://h:1", "/api/chat", "/api/chat"),
    ],
)
def test_the_path_of_an_api_below_a_url(url: str, path: str, endpoint: str) -> None:
    assert read_target(url).endpoint(path) == endpoint


def test_the_parts_of_a_url() -> None:
    target = read_target("https://models.example/x")
    assert (target.host, target.port, target.is_secure, target.path) == ("models.example", 443, True, "/x")
    assert read_target("http://[::1]:81").origin == "http://[::1]:81"
    assert read_target("http://h").port == 80


def test_models_are_listed_below_the_version() -> None:
    target = read_target("http://h/openai/v1")
    assert target.models_path("/openai/v1/chat/completions") == "/openai/v1/models"
    assert target.models_path("/invocations") is None


@table("url", ["h:1", "ftp://h", "http://", "http://h:0", "http://h:x", "http://u@h", "http://h/?q=1", "http://[h"])
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"^must be http://HOST:PORT"):
        read_target(url)
