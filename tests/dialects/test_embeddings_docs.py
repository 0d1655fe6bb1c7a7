"""The page about embeddings and reranking names every parameter and every route."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dragoman.server.apis.openai_wire.pooling import EmbeddingsBody
from dragoman.server.apis.pooling import API as POOLING
from dragoman.server.apis.pooling import ClassifyBody, PoolingBody
from dragoman.server.apis.rerank import API as RERANK
from dragoman.server.apis.rerank import ScoreBody
from dragoman.server.apis.rerank_wire import RerankBody
from dragoman.server.apis.tei import API as TEI
from dragoman.server.apis.tei_wire import TeiEmbedAllBody, TeiEmbedBody, TeiPredictBody, TeiRerankBody
from dragoman.server.operations import Api
from tests.support.tables import table

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "dialects" / "embeddings.md").read_text(encoding="utf-8")


SCHEMAS = [EmbeddingsBody, RerankBody, ScoreBody, ClassifyBody, PoolingBody]
TEI_SCHEMAS = [TeiEmbedBody, TeiEmbedAllBody, TeiPredictBody, TeiRerankBody]


@table("schema", [*SCHEMAS, *TEI_SCHEMAS])
def test_every_parameter_is_documented(schema: type[msgspec.Struct]) -> None:
    assert [name for name in schema.__struct_fields__ if f"`{name}`" not in PAGE] == []


@table("api", [RERANK, TEI, POOLING], ids=lambda api: api.name)
def test_every_route_is_documented(api: Api) -> None:
    assert [one.path for one in api.operations if one.path not in PAGE] == []
