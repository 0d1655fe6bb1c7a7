"""Text Embeddings Inference as an API: embedding, reranking and classification.

Bodies of `/rerank` may be Cohere's and Jina's as well.
"""

from __future__ import annotations

from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    Dialects,
    HttpCall,
    ModelProfile,
    model_of_body,
    model_of_query_or_header,
)
from dragoman.server.apis.openai_wire.errors import ERRORS as OPENAI_ERRORS
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.apis.rerank_wire.dialect import RerankDialect, told_by_all
from dragoman.server.apis.rerank_wire.schema import RerankAnswer, rerank_body
from dragoman.server.apis.tei_wire.dialect import (
    TeiEmbedAllDialect,
    TeiEmbedDialect,
    TeiPredictDialect,
    TeiRerankDialect,
    by_body,
)
from dragoman.server.apis.tei_wire.errors import ERRORS, TeiError, TeiErrors
from dragoman.server.apis.tei_wire.schema import TeiPrediction, TeiRank, TeiWord, schemas
from dragoman.server.describe.answers import Answers, json_answer, merged
from dragoman.server.describe.components import BY_NAME, IGNORED, QUESTION, VERSIONED
from dragoman.server.describe.json_schema import any_of, ref
from dragoman.server.operations import Api, PoolingOperation, Server

NAME = "tei"
TAG = "Text Embeddings Inference"
EMBED, RERANK, PREDICT = f"{NAME}.embed", f"{NAME}.rerank", f"{NAME}.predict"
BY_DOCUMENTS = f"{NAME}.by_documents"
"""The dialect of bodies of `/rerank` in Cohere's and Jina's words."""
EMBED_ALL, EMBED_SPARSE = f"{NAME}.embed_all", f"{NAME}.embed_sparse"

_TELLER = TeiErrors()
_FAILURES = merged(ERRORS.answers(), {400: json_answer(TeiError, "there is no text in the body")})


def set_up(profile: ModelProfile) -> Dialects:
    """Its dialects for a model."""
    return {
        EMBED: TeiEmbedDialect(profile),
        EMBED_ALL: TeiEmbedAllDialect(profile, is_sparse=False),
        EMBED_SPARSE: TeiEmbedAllDialect(profile, is_sparse=True),
        RERANK: TeiRerankDialect(profile),
        BY_DOCUMENTS: RerankDialect(profile, V1, told_by_all),
        PREDICT: TeiPredictDialect(profile),
    }


def _dialect_of_rerank(http: HttpCall) -> str:
    return by_body(http, RERANK, BY_DOCUMENTS)


def _model_of_rerank(http: HttpCall, server: Server) -> str | None:
    """Query and header name it, or the body where its words have that."""
    named = model_of_query_or_header(http, server)
    return named or (model_of_body(http, server) if _dialect_of_rerank(http) == BY_DOCUMENTS else None)


def _of_texts(path: str, summary: str, answer: Answers, body: str, dialect: str) -> PoolingOperation:
    return PoolingOperation(
        path=path,
        tag=TAG,
        summary=summary,
        answers=merged(answer, _FAILURES),
        parameters=(*BY_NAME, *VERSIONED),
        body={JSON_MEDIA_TYPE: ref(body)},
        example={"inputs": QUESTION},
        dialect=dialect,
        model=model_of_query_or_header,
    )


_EVERY_TOKEN = {200: json_answer(list[list[list[float]]], "a vector of each token, for each text", *IGNORED)}
_WORDS = {200: json_answer(list[list[TeiWord]], "the words that have weights, for each text", *IGNORED)}
_PREDICTIONS = merged(
    {200: json_answer(list[TeiPrediction], "the labels of a text, the likeliest first", *IGNORED)},
    {200: json_answer(list[list[TeiPrediction]], "those of each text", *IGNORED)},
)

API = Api(
    name=NAME,
    title="TEI",
    owns=("/embed", "/embed_all", "/embed_sparse", "/predict", "/rerank"),
    set_up=set_up,
    teller=lambda dialects: _TELLER,
    schemas=lambda profile: {**schemas(profile), "RerankRequest": rerank_body(V1, profile)},
    operations=(
        PoolingOperation(
            path="/embed",
            tag=TAG,
            summary="Embed texts",
            answers=merged({200: json_answer(list[list[float]], "the vectors", *IGNORED)}, _FAILURES),
            parameters=(*BY_NAME, *VERSIONED),
            body={JSON_MEDIA_TYPE: ref("TeiEmbedRequest")},
            example={"inputs": [QUESTION]},
            dialect=EMBED,
            model=model_of_query_or_header,
        ),
        _of_texts("/embed_all", "Embed the tokens of texts", _EVERY_TOKEN, "TeiEmbedAllRequest", EMBED_ALL),
        _of_texts("/embed_sparse", "Weigh the words of texts", _WORDS, "TeiEmbedAllRequest", EMBED_SPARSE),
        _of_texts("/predict", "Classify texts or pairs of texts", _PREDICTIONS, "TeiPredictRequest", PREDICT),
        PoolingOperation(
            path="/rerank",
            tag=TAG,
            summary="Order texts by what they say of a query; as Cohere and Jina for bodies with `documents`",
            answers=merged(
                {200: json_answer(list[TeiRank], "the texts, best first", *IGNORED)},
                {200: json_answer(RerankAnswer, "the documents, best first", *IGNORED)},
                _FAILURES,
                OPENAI_ERRORS.answers(),
            ),
            parameters=(*BY_NAME, *VERSIONED),
            body={JSON_MEDIA_TYPE: any_of(ref("TeiRerankRequest"), ref("RerankRequest"))},
            example={"query": QUESTION, "texts": ["A kind of learning", "A kind of bread"]},
            dialect=_dialect_of_rerank,
            model=_model_of_rerank,
        ),
    ),
)
