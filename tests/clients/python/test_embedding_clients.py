"""What embeds and ranks, in the clients of OpenAI, Ollama, Hugging Face and Cohere, in LangChain and in LlamaIndex."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from tests.clients.conftest import PoolingServer

TOLERANCE = 1e-4
QUERY, DOCUMENTS = "what is oil?", ["people", "oil is made of water", "the way of water"]


def check(made: Any, expected: Any) -> None:
    """The vectors are those that sentence-transformers makes."""
    np.testing.assert_allclose(np.array(made), np.array(expected), atol=TOLERANCE)


# --- The official clients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["v1", "v3"])
def test_openais_client_embeds(pooling: PoolingServer, route: str) -> None:
    openai = import_module("openai")
    with openai.OpenAI(base_url=f"{pooling.base_url}/{route}", api_key="none", max_retries=0) as client:
        for more in ({}, {"encoding_format": "float"}):  # left out, the client asks for base64 and decodes it
            made = client.embeddings.create(model="embedder", input=pooling.texts, **more)
            check([item.embedding for item in made.data], pooling.vectors)
            assert made.usage.prompt_tokens > 0
        short = client.embeddings.create(model="embedder", input=pooling.texts[0], dimensions=8)
        kept = np.array(pooling.vectors[0][:8])
        check(short.data[0].embedding, kept / np.linalg.norm(kept))
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="embedder", input="a", dimensions=4000)
        assert "dimensions" in str(caught.value.body)


def test_ollamas_client_embeds(pooling: PoolingServer) -> None:
    ollama = import_module("ollama")
    client = ollama.Client(host=pooling.base_url)
    check(client.embed("embedder", pooling.texts).embeddings, pooling.vectors)
    check(client.embed("embedder:latest", pooling.texts[0]).embeddings, pooling.vectors[:1])
    assert client.show("embedder").capabilities == ["embedding"]
    with pytest.raises(ollama.ResponseError, match="generate"):
        client.generate("embedder", "Hello!")


def test_hugging_faces_client_extracts_features_as_from_tei(pooling: PoolingServer) -> None:
    hub = import_module("huggingface_hub")
    client = hub.InferenceClient(f"{pooling.base_url}/embed?model_name=embedder")
    check(client.feature_extraction(pooling.texts), pooling.vectors)
    check(client.feature_extraction(pooling.texts[1], normalize=True), pooling.vectors[1:2])
    long = "people " * 200 + "water " * 200
    with pytest.raises(hub.errors.HfHubHTTPError):
        client.feature_extraction(long, truncate=False)
    ends = [client.feature_extraction(long, truncate=True, truncation_direction=side) for side in ("left", "right")]
    assert [end.shape for end in ends] == [(1, len(pooling.vectors[0]))] * 2
    assert not np.allclose(*ends)


@pytest.mark.parametrize("kind", ["Client", "ClientV2"])
def test_coheres_clients_rank(pooling: PoolingServer, kind: str) -> None:
    cohere = import_module("cohere")
    client = getattr(cohere, kind)(api_key="none", base_url=pooling.base_url)
    answer = client.rerank(model="scorer", query=QUERY, documents=DOCUMENTS)
    order = [(one.index, one.relevance_score) for one in answer.results]
    assert sorted(index for index, _ in order) == [0, 1, 2]
    assert [score for _, score in order] == sorted((score for _, score in order), reverse=True)
    best = client.rerank(model="scorer", query=QUERY, documents=DOCUMENTS, top_n=2)
    assert [(one.index, one.relevance_score) for one in best.results] == order[:2]
    assert answer.meta.tokens.input_tokens > 0
    with pytest.raises(cohere.BadRequestError):
        client.rerank(model="scorer", query=QUERY, documents=[])
    with pytest.raises(cohere.NotFoundError):
        client.rerank(model="nobody", query=QUERY, documents=DOCUMENTS)


# --- LangChain and LlamaIndex -----------------------------------------------------------------------------------------


def langchain_openai(base_url: str) -> Any:
    """LangChain's class for OpenAI; unless told not to, it sends token ids of OpenAI's own models."""
    package = import_module("langchain_openai")
    return package.OpenAIEmbeddings(
        model="embedder", base_url=f"{base_url}/v1", api_key="none", check_embedding_ctx_length=False
    )


def langchain_ollama(base_url: str) -> Any:
    """LangChain's class for Ollama."""
    return import_module("langchain_ollama").OllamaEmbeddings(model="embedder", base_url=base_url)


@pytest.mark.parametrize("make", [langchain_openai, langchain_ollama])
def test_langchain_embeds(pooling: PoolingServer, make: Callable[[str], Any]) -> None:
    embeddings = make(pooling.base_url)
    check(embeddings.embed_documents(pooling.texts), pooling.vectors)
    check(embeddings.embed_query(pooling.texts[0]), pooling.vectors[0])


def index_openai(base_url: str) -> Any:
    """LlamaIndex's class for OpenAI, with a model of another name than OpenAI's."""
    package = import_module("llama_index.embeddings.openai")
    return package.OpenAIEmbedding(model_name="embedder", api_base=f"{base_url}/v1", api_key="none")


def index_ollama(base_url: str) -> Any:
    """LlamaIndex's class for Ollama."""
    return import_module("llama_index.embeddings.ollama").OllamaEmbedding(model_name="embedder", base_url=base_url)


def index_tei(base_url: str) -> Any:
    """LlamaIndex's class for TEI, which serves one model alone; here the endpoint names it."""
    package = import_module("llama_index.embeddings.text_embeddings_inference")
    endpoint = "/embed?model_name=embedder"
    return package.TextEmbeddingsInference(model_name="embedder", base_url=base_url, endpoint=endpoint)


@pytest.mark.parametrize("make", [index_openai, index_ollama, index_tei])
def test_llama_index_embeds(pooling: PoolingServer, make: Callable[[str], Any]) -> None:
    embeddings = make(pooling.base_url)
    check(embeddings.get_text_embedding_batch(pooling.texts), pooling.vectors)
    check(embeddings.get_query_embedding(pooling.texts[0]), pooling.vectors[0])
