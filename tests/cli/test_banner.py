"""The banner: what a server writes after its start."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from dragoman.cli.banner import Address, BannerFacts, banner, base_url
from dragoman.server.api import HttpCall, ModelProfile
from dragoman.server.apis.lmi.dialects import negotiate
from dragoman.server.pooling.base import PoolingKind


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("example.org", "http://example.org:80"),
    ],
)
def test_the_url_can_be_opened_on_this_machine(host: str, url: str) -> None:
    assert base_url(host, 80) == url


def command_in(text: str) -> list[str]:
    """The words of the command to copy."""
    return shlex.split("curl" + text.partition("  curl")[2].replace("\\\n", " "))


@pytest.mark.parametrize(("has_template", "path"), [(True, "/v1/chat/completions"), (False, "/v1/completions")])
def test_the_line_to_copy_is_a_complete_curl_command(has_template: bool, path: str) -> None:
    text = banner(BannerFacts("m", "/models/m", Address("127.0.0.1", 8080), has_chat_template=has_template))
    words = command_in(text)
    assert words[:2] == ["curl", f"http://127.0.0.1:8080{path}"]
    assert "max_tokens" in json.loads(words[words.index("-d") + 1])


@pytest.mark.parametrize(
    ("pooling", "path", "names"),
    [
        (PoolingKind.EMBED, "/v1/embeddings", {"input"}),
        (PoolingKind.SCORE, "/v1/rerank", {"query", "documents"}),
    ],
)
def test_the_curl_command_for_a_pooling_model_uses_its_route(pooling: PoolingKind, path: str, names: set[str]) -> None:
    text = banner(BannerFacts("m", "/models/m", Address("127.0.0.1", 8080), pooling=pooling))
    words = command_in(text)
    assert words[:2] == ["curl", f"http://127.0.0.1:8080{path}"]
    assert set(json.loads(words[words.index("-d") + 1])) == names
    assert "LMI's shape" not in text  # of conversations
    assert "/playground" not in text  # which generates
    [line] = [line for line in text.splitlines() if "  speaks " in line]
    assert "TEI" in line
    assert "Anthropic" not in line


def test_the_banner_names_model_address_facts_and_apis() -> None:
    text = banner(BannerFacts("m", "/models/m", Address("127.0.0.1", 8080), ("int8", "2048 tokens")))
    assert "serves m at http://127.0.0.1:8080\n  /models/m (int8, 2048 tokens)\n" in text
    assert "  speaks LMI, OpenAI, " in text
    assert "TEI" not in text  # which embeds
    assert "Bearer" not in text
    several = banner(BannerFacts("m", "/models/m", Address("::1", 80), others=("a", "b"), needs_key=True))
    assert "  and a, b (" in several
    assert len(several.splitlines()) == 8


def test_a_server_with_keys_shows_a_key_in_the_command() -> None:
    text = banner(BannerFacts("m", "/models/m", Address("127.0.0.1", 8080), needs_key=True))
    assert "-H 'Authorization: Bearer YOUR_KEY'" in text


@pytest.mark.parametrize(
    ("chat_format", "needs_key", "has_lmi_signs", "shape", "change"),
    [
        ("auto", False, False, "answers a plain curl in LMI's shape", "--chat-format openai"),
        ("auto", True, False, "answers in OpenAI's shape to calls with a key", "--chat-format lmi"),
        ("auto", True, True, "answers in LMI's shape, as it is configured so", "--chat-format openai"),
        ("lmi", False, False, "answers in LMI's shape;", "--chat-format auto or openai"),
        ("openai", True, True, "answers in OpenAI's shape;", "--chat-format auto or lmi"),
    ],
)
def test_a_line_names_the_format_of_plain_chat_calls(
    chat_format: str, needs_key: bool, has_lmi_signs: bool, shape: str, change: str
) -> None:
    facts = BannerFacts(
        "m",
        "/models/m",
        Address("127.0.0.1", 8080),
        needs_key=needs_key,
        chat_format=chat_format,
        has_lmi_signs=has_lmi_signs,
    )
    (line,) = [line for line in banner(facts).splitlines() if "--chat-format" in line]
    assert line.startswith(f"  /v1/chat/completions {shape}")
    assert change in line
    assert is_openai_shape(line, chat_format, needs_key=needs_key, has_lmi_signs=has_lmi_signs)


def is_openai_shape(line: str, chat_format: Any, *, needs_key: bool, has_lmi_signs: bool) -> bool:
    """The line describes what the dialect does with the banner's curl command."""
    headers = {"user-agent": "curl/8.5", **({"authorization": "Bearer k"} if needs_key else {})}
    model = ModelProfile(settings={"chat_format": chat_format, "has_lmi_signs": has_lmi_signs})
    profile = negotiate(model, HttpCall("POST", "/v1/chat/completions", b"", headers))
    return (profile.name == "v1") is ("answers in OpenAI's" in line)


def test_without_a_chat_template_no_line_names_a_format() -> None:
    text = banner(BannerFacts("m", "/models/m", Address("127.0.0.1", 8080), has_chat_template=False))
    assert "--chat-format" not in text


def test_a_handler_without_a_model_has_only_its_apis_in_the_banner() -> None:
    text = banner(BannerFacts("m", "/models/m", Address("127.0.0.1", 8080), can_generate=False))
    assert "  speaks LMI, SageMaker; " in text
    assert "curl" not in text


@pytest.mark.parametrize("has_playground", [True, False])
def test_the_banner_names_the_playground_if_there_is_one(has_playground: bool) -> None:
    text = banner(BannerFacts("m", "/models/m", Address("0.0.0.0", 9000, is_tls=True), has_playground=has_playground))
    assert ("https://127.0.0.1:9000/playground" in text) == has_playground
