"""The page about Responses names every parameter, everything refused or ignored, every event and every limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_type_hints

from dragoman.server.apis.openai_wire.sampling import SharedBody
from dragoman.server.apis.responses.api import API, EFFECTS
from dragoman.server.apis.responses.items import ITEM_TYPES, REFUSED_PARTS, ROLES
from dragoman.server.apis.responses.request import IGNORED, INCLUDES, REFUSED, ResponsesBody
from dragoman.server.apis.responses.schema import EVENTS
from dragoman.server.apis.responses.store import StoreLimits
from tests.support.live_routes import live_document

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "dialects" / "responses.md").read_text(encoding="utf-8")


def test_every_parameter_is_documented() -> None:
    own = set(ResponsesBody.__struct_fields__) - set(SharedBody.__struct_fields__)
    assert [name for name in own if f"`{name}`" not in PAGE] == []


def test_everything_refused_or_without_effect_is_documented_with_its_reason() -> None:
    assert [name for name, reason in REFUSED.items() if f"| `{name}` | {reason} |" not in PAGE] == []
    told = {name: reason for name, reason in IGNORED.items() if "[" not in name and "_options" not in name}
    del told["top_logprobs"]  # it has an effect where log-probabilities are included
    assert [name for name, reason in told.items() if f"| `{name}` | {reason} |" not in PAGE] == []
    assert [name for name in (*INCLUDES, *REFUSED_PARTS, *ITEM_TYPES, *ROLES) if f"`{name}`" not in PAGE] == []


def test_every_event_is_documented() -> None:
    kinds: list[Any] = [kind for event in EVENTS for kind in get_args(get_type_hints(event)["type"])]
    assert len(kinds) == 20
    assert [kind for kind in kinds if f"`{kind}`" not in PAGE] == []


def test_every_route_is_documented() -> None:
    routes = [f"`{one.method} {one.path}`" for one in API.operations if one.path.startswith("/v1")]
    assert [route for route in routes if route not in PAGE] == []


def test_the_limits_of_the_store_are_documented() -> None:
    limits = StoreLimits()
    assert f"`--max-stored-responses` ({limits.max_responses})" in PAGE
    assert f"`--max-stored-responses-mb` ({limits.max_size_bytes >> 20})" in PAGE
    assert f"`--stored-responses-max-age-s` ({limits.max_age_s:g})" in PAGE


def test_every_parameter_is_described_in_the_document() -> None:
    for name in ("ResponsesRequestV1", "ResponsesRequestV3"):
        properties = live_document()["components"]["schemas"][name]["properties"]
        assert set(properties) == set(ResponsesBody.__struct_fields__) - set(REFUSED) <= set(EFFECTS)
        assert [field for field, schema in properties.items() if not schema.get("description")] == []
