"""The OpenAPI document is valid and describes exactly the routes, fields and types that the server has."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate

from dragoman.server.api import ModelProfile
from dragoman.server.apis.lmi_wire.parameters import TGI, rows_for
from dragoman.server.apis.openai_wire.completions import CompletionBody
from dragoman.server.apis.openai_wire.conversation import ChatBody
from dragoman.server.apis.openai_wire.describe import CHAT_EFFECTS, COMPLETION_EFFECTS
from dragoman.server.apis.text import BATCH_FIELDS, PROMPT_FIELDS
from dragoman.server.app import ServerConfig
from dragoman.types import Limits
from tests.support.live_routes import live_document, live_operations
from tests.support.running_server import running_server
from tests.support.tables import table

pytestmark = pytest.mark.varies("schemas are read from annotations, which each Python tells in its own way")

DOCUMENT = live_document()
SCHEMAS = DOCUMENT["components"]["schemas"]
LIVE = {(operation.method, operation.path) for operation in live_operations()}


def documented_operations() -> list[tuple[str, str, Any]]:
    return [
        (method.upper(), path, operation)
        for path, item in DOCUMENT["paths"].items()
        for method, operation in item.items()
    ]


def test_the_document_is_valid() -> None:
    validate(DOCUMENT)


def test_every_route_is_described_and_every_description_has_a_route() -> None:
    assert {(method, path) for method, path, _ in documented_operations()} == LIVE


def test_every_described_path_answers_to_the_described_methods(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    for path, item in document["paths"].items():
        allow = client.options(re.sub(r"{\w+}", "fake", path)).headers["allow"].split(", ")
        assert {method.upper() for method in item} == set(allow) - {"OPTIONS", "HEAD"}, path


def test_every_placeholder_in_a_path_is_a_described_parameter() -> None:
    parameters = DOCUMENT["components"]["parameters"]
    for _, path, operation in documented_operations():
        described = [parameters[one["$ref"].rpartition("/")[2]] for one in operation["parameters"]]
        in_path = [one["name"] for one in described if one["in"] == "path"]
        assert in_path == re.findall(r"{(\w+)}", path), path


@table(
    ("struct", "effects", "schemas"),
    [
        (
            CompletionBody,
            COMPLETION_EFFECTS,
            ["CompletionRequestV1", "CompletionRequestV3", "CompletionRequestInvocations"],
        ),
        (ChatBody, CHAT_EFFECTS, ["ChatRequestV1", "ChatRequestV3", "ChatRequestInvocations"]),
    ],
)
def test_every_parameter_that_is_parsed_is_described(struct: Any, effects: Any, schemas: list[str]) -> None:
    assert set(struct.__struct_fields__) <= set(effects)
    for name in schemas:
        properties = SCHEMAS[name]["properties"]
        assert set(properties) == set(struct.__struct_encode_fields__)
        assert [field for field, schema in properties.items() if not schema.get("description")] == []


def test_every_parameter_of_the_lmi_table_is_described() -> None:
    assert set(SCHEMAS["LmiParameters"]["properties"]) == set(rows_for("auto"))
    assert set(SCHEMAS["TgiParameters"]["properties"]) == set(rows_for(TGI))


def test_every_field_of_the_text_service_is_described() -> None:
    assert set(SCHEMAS["GenerateOneRequest"]["properties"]) == set(PROMPT_FIELDS)
    assert set(SCHEMAS["GenerateOneRequest"]["required"]) == set(PROMPT_FIELDS)
    assert set(SCHEMAS["GenerateBatchRequest"]["properties"]) == set(BATCH_FIELDS)


def test_the_operators_limits_and_profile_are_described() -> None:
    limits = Limits(max_stop_strings=3, max_best_of=5)
    profile = ModelProfile(limits=limits, settings={"rolling_batch": "trtllm", "lmi_version": "0.26"})
    schemas = live_document(profile)["components"]["schemas"]
    assert schemas["CompletionRequestV1"]["properties"]["best_of"]["anyOf"][0]["maximum"] == 5
    assert schemas["CompletionRequestV3"]["properties"]["best_of"]["anyOf"][0]["maximum"] == 4
    assert schemas["ChatRequestV1"]["properties"]["stop"]["anyOf"][1]["maxItems"] == 3
    parameters = schemas["LmiParameters"]["properties"]
    assert set(parameters) == set(rows_for("trtllm"))
    assert parameters["max_new_tokens"]["default"] == 128
    assert "rolling_batch=trtllm, lmi_version=0.26" in live_document(profile)["info"]["description"]


def test_keys_are_described_where_they_are_needed() -> None:
    assert "securitySchemes" not in DOCUMENT["components"]
    with running_server(ServerConfig(api_keys=frozenset({"secret"}))) as server:
        document = httpx.get(f"{server.url}/openapi.json").json()
        assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
        for path, item in document["paths"].items():
            for method, operation in item.items():
                answer = httpx.request(method, server.url + re.sub(r"{\w+}", "fake", path))
                assert (answer.status_code in (401, 424)) == ("security" in operation), (method, path)


def test_the_page_needs_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "connect-src 'self'" in page.headers["content-security-policy"]
    assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", page.text) == []
    assert re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?!data:)", page.text) == []
    assert 'fetch("openapi.json")' in page.text
    assert "innerHTML" not in page.text
