"""The lists of served models in both shapes, and the models that are not there."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dragoman.errors import InvalidParameter
from dragoman.server.apis.lmi.models import lmi_model, lmi_models
from dragoman.server.apis.openai_wire.routes import openai_model, openai_models
from dragoman.server.model_facts import ModelFacts
from tests.support.tables import table

SMALL = ModelFacts("small", 1_700_000_000, url="file:///models/small", max_model_len=2048, queue_size=9, num_waiting=2)
LARGE = ModelFacts("org/large", 1_700_000_001, url="file:///models/large", version="2")
MODELS = (SMALL, LARGE)


def body(answer: Any) -> Any:
    return json.loads(msgspec.json.encode(answer))


def test_the_openai_list_names_every_model() -> None:
    small = {"id": "small", "object": "model", "created": 1_700_000_000, "owned_by": "dragoman", "max_model_len": 2048}
    large = {"id": "org/large", "object": "model", "created": 1_700_000_001, "owned_by": "dragoman"}
    assert body(openai_models(MODELS)) == {"object": "list", "data": [small, large]}


def test_the_list_on_v3_says_what_that_server_says() -> None:
    assert {entry["owned_by"] for entry in body(openai_models(MODELS, owned_by="OVMS"))["data"]} == {"OVMS"}
    assert body(openai_model(SMALL, owned_by="OVMS"))["owned_by"] == "OVMS"


def test_one_model_is_found_by_its_name_slashes_included() -> None:
    assert body(openai_model(LARGE))["id"] == "org/large"


def test_the_lmi_list_has_name_url_and_status() -> None:
    assert body(lmi_models(MODELS)) == {
        "models": [
            {"modelName": "small", "modelUrl": "file:///models/small", "status": "READY"},
            {"modelName": "org/large", "version": "2", "modelUrl": "file:///models/large", "status": "READY"},
        ],
        **body(openai_models(MODELS)),
    }


def test_the_lmi_list_has_those_that_answer_in_openais_shape_with_all_names_and_tags() -> None:
    """Where llama.cpp's clients look for them."""
    named = replace(SMALL, names=("small", "s"), tags=("chat", "fim"))
    listed = body(lmi_models([named, replace(LARGE, status="PENDING")]))
    [entry] = listed["data"]
    assert (entry["id"], entry["aliases"], entry["tags"]) == ("small", ["small", "s"], ["chat", "fim"])
    assert [one["modelName"] for one in listed["models"]] == ["small", "org/large"]


def test_the_lmi_list_comes_in_pages() -> None:
    first = body(lmi_models(MODELS, {"limit": "1"}))
    assert ([entry["modelName"] for entry in first["models"]], first["nextPageToken"]) == (["small"], "1")
    second = body(lmi_models(MODELS, {"limit": "1", "next_page_token": first["nextPageToken"]}))
    assert [entry["modelName"] for entry in second["models"]] == ["org/large"]
    assert "nextPageToken" not in second


@table("query", [{"limit": "0"}, {"limit": "x"}, {"next_page_token": "-1"}, {"limit": "²"}])
def test_a_page_that_is_no_number_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(query))):
        lmi_models(MODELS, query)


def test_the_lmi_description_tells_queue_and_workers() -> None:
    [workflow] = body(lmi_model(SMALL))
    [model] = workflow["models"]
    assert (workflow["workflowName"], model["modelName"], model["status"]) == ("small", "small", "READY")
    assert (model["queueSize"], model["requestInQueue"]) == (9, 2)
    [group] = model["workerGroups"]
    assert group["device"]["deviceType"] == "cpu"
    assert group["workers"] == [{"id": 1, "startTime": "2023-11-14T22:13:20.000Z", "status": "READY"}]


def test_the_lmi_description_has_the_version_where_there_is_one() -> None:
    assert body(lmi_model(LARGE))[0]["models"][0]["version"] == "2"
