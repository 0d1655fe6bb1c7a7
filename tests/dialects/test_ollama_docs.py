"""The page about Ollama's API names every parameter, every option with its reason, and every status."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dragoman.server.apis.ollama.api import NOT_OFFERED
from dragoman.server.apis.ollama.dialects import OllamaEmbedBody
from dragoman.server.apis.ollama.models import OllamaPullBody
from dragoman.server.apis.ollama.request import (
    IGNORED_OPTIONS,
    STATUSES,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaMessage,
    OllamaOptions,
)
from tests.support.tables import table

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "dialects" / "ollama.md").read_text(encoding="utf-8")


@table("schema", [OllamaGenerateBody, OllamaChatBody, OllamaEmbedBody, OllamaMessage, OllamaOptions, OllamaPullBody])
def test_every_parameter_is_documented(schema: type[msgspec.Struct]) -> None:
    assert [name for name in schema.__struct_fields__ if f"`{name}`" not in PAGE] == []


def test_every_option_without_effect_is_documented_with_its_reason() -> None:
    for name, reason in IGNORED_OPTIONS.items():
        assert any(f"`{name}`" in line and reason in line for line in PAGE.splitlines()), name


def test_no_option_without_effect_is_one_that_has_an_effect() -> None:
    assert set(IGNORED_OPTIONS).isdisjoint(OllamaOptions.__struct_fields__)


def test_every_status_is_documented() -> None:
    table = PAGE.partition("## Errors")[2]
    assert {status for status in STATUSES.values() if str(status) not in table} == set()


def test_everything_that_is_not_offered_is_documented() -> None:
    row = next(line for line in PAGE.splitlines() if "not offered here" in line)
    assert [path for _, path in NOT_OFFERED if path.split("/")[2] not in row] == []
