"""The page about Anthropic's API names every parameter, block and reason, everything refused or ignored, and every error."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from dragoman.server.apis.anthropic.conversation import ALLOWED, BILLING_HEADER, CHOICES
from dragoman.server.apis.anthropic.messages import StopWord
from dragoman.server.apis.anthropic.request import IGNORED, IGNORED_IN_TOOLS, REFUSED, STATUSES, MessagesBody, type_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "dialects" / "anthropic.md").read_text(encoding="utf-8")


def test_every_parameter_block_and_word_is_documented() -> None:
    blocks = [block for allowed in ALLOWED.values() for block in allowed]
    for name in (*MessagesBody.__struct_fields__, *ALLOWED, *blocks, *CHOICES, *get_args(StopWord), BILLING_HEADER):
        assert f"`{name}`" in PAGE, name


def test_everything_refused_or_ignored_is_documented_with_its_reason() -> None:
    for name, reason in (*REFUSED.items(), *IGNORED.items()):
        assert f"`{name}`" in PAGE, name
        assert reason in PAGE, name
    for name, reason in IGNORED_IN_TOOLS.items():
        assert reason in PAGE, name


def test_no_ignored_parameter_is_one_that_has_an_effect() -> None:
    typed_only = {"metadata", "service_tier"}  # checked
    assert set(IGNORED) & set(MessagesBody.__struct_fields__) == typed_only


def test_every_status_and_type_of_an_error_is_documented() -> None:
    for status, kind in {(status, type_of(kind)) for kind, status in STATUSES.items()}:
        assert f"| {status} | `{kind}` |" in PAGE
