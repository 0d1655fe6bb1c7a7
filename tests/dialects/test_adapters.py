"""How calls name adapters: each API's way, and what is said where there are none."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import InvalidPayload
from dragoman.server.api import ModelProfile
from dragoman.server.apis.lmi.dialect import LmiDialect
from dragoman.server.apis.lmi_wire.parameters import LmiOptions
from dragoman.server.apis.tgi import TgiDialect
from tests.dialects.lmi_calls import http
from tests.support.tables import table

HEADER = {"x_amzn_sagemaker_adapter_identifier": "in-header"}
LMI = LmiDialect(LmiOptions(model=ModelProfile(takes_adapters=True)))


def adapters(body: dict[str, Any], **headers: str) -> list[str | None]:
    """Those of the requests of an LMI body."""
    call = LMI.parse(http({"inputs": "hello", **body}, **headers))
    assert call.ignored == ()
    return [request.adapter for request in call.requests]


def test_body_and_header_name_adapters_and_the_header_counts_more() -> None:
    assert adapters({}) == [None]
    assert adapters({"adapters": "a"}) == ["a"]
    assert adapters({"adapters": ""}) == [""]
    assert adapters({"adapters": ["a"]}) == ["a"]
    assert adapters({"inputs": ["x", "y"], "adapters": "a"}) == ["a", "a"]
    assert adapters({"inputs": ["x", "y"], "adapters": ["a", ""]}) == ["a", ""]
    assert adapters({"adapters": "a"}, **HEADER) == ["in-header"]
    assert adapters({"inputs": ["x", "y"], "adapters": ["a", ""]}, **HEADER) == ["in-header", "in-header"]


@table("named", [5, {"a": 1}, ["a", "b"], [], [None]])
def test_other_forms_are_refused_by_the_field(named: Any) -> None:
    with pytest.raises(InvalidPayload, match="Field 'adapters' must be a name, or an array of one name"):
        adapters({"adapters": named})


def test_where_there_are_no_adapters_the_field_is_told_as_ignored() -> None:
    call = LmiDialect(LmiOptions()).parse(http({"inputs": "x", "adapters": "a"}, **HEADER))
    assert (call.ignored, call.requests[0].adapter) == (("adapters",), None)


@table(("takes", "adapter", "ignored"), [(True, "a", ()), (False, None, ("adapter_id",))])
def test_tgi_names_one_among_the_parameters(takes: bool, adapter: str | None, ignored: tuple[str, ...]) -> None:
    dialect = TgiDialect(ModelProfile(takes_adapters=takes))
    call = dialect.parse(http({"inputs": "x", "parameters": {"adapter_id": "a"}}, "/generate"))
    assert (call.requests[0].adapter, call.ignored) == (adapter, ignored)
