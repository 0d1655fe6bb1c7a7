"""Embedding and rerank classes of LangChain, LiteLLM and Cohere against a real server; skipped where not installed."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tests.support.pooling_checkpoint import case_texts, read_case, recorded, write_pooling_case
from tests.support.server_process import ServerProcess, serve

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

TOLERANCE = 1e-4
TEXTS = case_texts(read_case("bert_mean"))[1:5]
VECTORS = recorded("bert_mean")["embeddings"][1:5]
QUERY, DOCUMENTS = "what is oil?", ["people", "oil is made of water", "the way of water"]

CASES = {"embedder": "bert_mean", "scorer": "xlmr_reranker"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One model that embeds and one that scores, computing in f32."""
    root = tmp_path_factory.mktemp("models")
    places = {name: write_pooling_case(case, root) for name, case in CASES.items()}
    models = ",".join(f"{name}={place}" for name, place in places.items())
    with serve(environ={"SERVING_LOAD_MODELS": models, "OPTION_DTYPE": "f32"}) as running:
        yield running


def test_langchain_embeds(server: ServerProcess) -> None:
    package = pytest.importorskip("langchain_openai")
    with httpx.Client() as http:
        made = package.OpenAIEmbeddings(
            model="embedder",
            base_url=f"{server.base_url}/v1",
            api_key="none",
            http_client=http,
            check_embedding_ctx_length=False,  # else it sends token ids of OpenAI's own models
        )
        np.testing.assert_allclose(made.embed_documents(TEXTS), VECTORS, atol=TOLERANCE)
        np.testing.assert_allclose(made.embed_query(TEXTS[0]), VECTORS[0], atol=TOLERANCE)


def test_litellm_embeds_and_ranks(server: ServerProcess) -> None:
    litellm = pytest.importorskip("litellm")
    made = litellm.embedding("openai/embedder", input=TEXTS, api_base=f"{server.base_url}/v1", api_key="none")
    np.testing.assert_allclose([item["embedding"] for item in made.data], VECTORS, atol=TOLERANCE)
    for provider in ("cohere", "jina_ai"):
        ranked = litellm.rerank(
            f"{provider}/scorer", query=QUERY, documents=DOCUMENTS, top_n=2, api_base=server.base_url, api_key="none"
        )
        scores = [one["relevance_score"] for one in ranked.results]
        assert len(scores) == 2
        assert scores == sorted(scores, reverse=True)


def test_coheres_clients_rank(server: ServerProcess) -> None:
    cohere = pytest.importorskip("cohere")
    orders = []
    for kind in (cohere.Client, cohere.ClientV2):
        with httpx.Client() as http:
            client = kind(api_key="none", base_url=server.base_url, httpx_client=http)
            answer = client.rerank(model="scorer", query=QUERY, documents=DOCUMENTS, top_n=2)
            orders.append([(one.index, one.relevance_score) for one in answer.results])
            assert answer.meta.tokens.input_tokens > 0
            with pytest.raises(cohere.BadRequestError):
                client.rerank(model="scorer", query=QUERY, documents=[])
    assert orders[0] == orders[1]
    assert [score for _, score in orders[0]] == sorted((score for _, score in orders[0]), reverse=True)
