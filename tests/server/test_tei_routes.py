"""What clients of Text Embeddings Inference find at the root of a server whose model embeds or scores."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import numpy as np
from huggingface_hub import InferenceClient

from dragoman.server.admission import Admission
from dragoman.server.api import HttpCall
from dragoman.server.apis.tgi import API
from dragoman.server.operations import AnswerOperation
from dragoman.server.pooling.base import PoolingKind
from dragoman.server.registry import ServedModel
from tests.support.fake_pooling import FakePooling, vectors_of
from tests.support.fake_service import FakeEngine, FakeService
from tests.support.real_dialects import real_dialects
from tests.support.running_server import running_server


def test_the_hub_s_client_embeds_at_the_root() -> None:
    with running_server(dialects=real_dialects(pooling=FakePooling())) as server:
        client = InferenceClient(model=server.url)
        np.testing.assert_array_equal(client.feature_extraction("a b"), vectors_of(["a b"]))
        refused = httpx.post(server.url, json={"inputs": []})
        assert (refused.status_code, refused.json()["error_type"]) == (400, "Empty")
        generate = httpx.post(f"{server.url}/generate", json={"inputs": "a"})
        assert "generated_text" in generate.json()  # the fake service generates; a real one that embeds refuses


def test_texts_are_ranked_at_the_root_of_a_model_that_scores() -> None:
    with running_server(dialects=real_dialects(pooling=FakePooling(PoolingKind.SCORE))) as server:
        body = {"query": "a", "texts": ["b", "a c"]}
        at_root, named = (httpx.post(f"{server.url}{path}", json=body).json() for path in ("/", "/rerank"))
        assert at_root == named
        assert {rank["index"] for rank in at_root} == {0, 1}


def test_info_tells_what_the_model_is() -> None:
    [operation] = [one for one in API.operations if one.path == "/info"]
    assert isinstance(operation, AnswerOperation)

    def told(pooling: FakePooling | None) -> dict[str, Any]:
        model = ServedModel("m", FakeService(), FakeEngine(), {}, Admission("m"), pooling=pooling)

        class Models:
            def find(self, name: str | None) -> ServedModel:
                return model

        class Server:
            models = Models()

        made = asyncio.run(_answer(operation, Server()))
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))
        return found

    assert told(None)["model_pipeline_tag"] == "text-generation"
    embeds, scores = told(FakePooling()), told(FakePooling(PoolingKind.SCORE))
    assert (list(embeds["model_type"]), embeds["max_input_length"]) == (["embedding"], 12)
    assert list(scores["model_type"]) == ["reranker"]
    assert "model_pipeline_tag" not in embeds


async def _answer(operation: AnswerOperation, server: Any) -> Any:
    return await operation.answer(HttpCall("GET", "/info", b"", {}), server)
