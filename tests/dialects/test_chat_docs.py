"""The pages about the OpenAI-shaped dialects name every parameter, everything refused or ignored, and every error code."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dragoman.errors import ALL_KINDS
from dragoman.server.apis.openai_wire.completions import CompletionBody
from dragoman.server.apis.openai_wire.conversation import ChatBody
from dragoman.server.apis.openai_wire.errors import CODES, ERRORS, openai_body
from dragoman.server.apis.openai_wire.sampling import IGNORED, REFUSED
from dragoman.server.apis.ovms_wire import ERRORS as OVMS
from tests.support.golden import Failure
from tests.support.tables import table

PAGES = Path(__file__).resolve().parents[2] / "docs" / "dialects"


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


@table(("schema", "pages"), [(CompletionBody, ["openai"]), (ChatBody, ["openai", "chat"])])
def test_every_parameter_is_documented(schema: type[msgspec.Struct], pages: list[str]) -> None:
    text = "".join(page(name) for name in pages)
    assert [name for name in schema.__struct_fields__ if f"`{name}`" not in text] == []


def test_every_refused_and_every_ignored_parameter_is_documented() -> None:
    text = page("openai")
    assert [name for name in (*REFUSED, *IGNORED) if f"`{name}`" not in text] == []
    assert [reason for reason in REFUSED.values() if reason not in text] == []


def test_no_ignored_parameter_is_one_that_has_an_effect() -> None:
    assert set(IGNORED).isdisjoint(CompletionBody.__struct_fields__)
    assert set(IGNORED).isdisjoint(ChatBody.__struct_fields__)


def test_every_status_and_code_of_an_error_is_documented() -> None:
    text = page("openai")
    for error in (Failure(kind, "x").error() for kind in ALL_KINDS):
        assert f"| {ERRORS.statuses[error.kind]} | `{openai_body(error).error.type}` |" in text
    assert [code for code in CODES.values() if f"`{code}`" not in text] == []


def test_every_status_on_v3_is_documented() -> None:
    assert {status for status in OVMS.statuses.values() if str(status) not in page("ovms")} == set()
