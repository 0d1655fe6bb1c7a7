"""The page about llama.cpp's API names every parameter, every one without effect with its reason, and every status."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dragoman.errors import ALL_KINDS
from dragoman.server.apis.llamacpp.api import LlamaEmbedBody
from dragoman.server.apis.llamacpp.request import NEUTRAL, WORDS, LlamaCompletionBody, LlamaInfillBody, error_body
from tests.support.golden import Failure
from tests.support.tables import table

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "dialects" / "llamacpp.md").read_text(encoding="utf-8")


@table("schema", [LlamaCompletionBody, LlamaInfillBody, LlamaEmbedBody])
def test_every_parameter_is_documented(schema: type[msgspec.Struct]) -> None:
    assert [name for name in schema.__struct_fields__ if f"`{name}`" not in PAGE] == []


def test_every_parameter_without_effect_is_documented_with_its_reason() -> None:
    for name, (_, reason) in NEUTRAL.items():
        assert any(f"`{name}`" in line and reason in line for line in PAGE.splitlines()), name


def test_every_range_is_of_a_parameter() -> None:
    assert set(WORDS.bounds) <= set(LlamaCompletionBody.__struct_fields__)


def test_every_status_and_type_is_documented() -> None:
    told = PAGE.partition("## Errors")[2]
    rows = [error_body(Failure(kind, "x").error()).error for kind in ALL_KINDS]
    assert [row for row in rows if str(row.code) not in told or row.type not in told] == []
