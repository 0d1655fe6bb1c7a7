"""Text Embeddings Inference as an API. Bodies of `/rerank` may be Cohere's and Jina's as well."""

from __future__ import annotations

from functools import partial
from typing import Any

from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    Dialects,
    HttpCall,
    ModelProfile,
    model_of_body,
    model_of_query_or_header,
)
from dragoman.server.apis.openai_wire.errors import ERRORS as OPENAI_ERRORS
from dragoman.server.apis.openai_wire.pooling import TextsDialect
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.apis.rerank_wire import RerankAnswer, rerank_body, rerank_dialect
from dragoman.server.apis.tei_wire import ERRORS, OPERATIONS, TeiError, TeiPrediction, TeiRank, TeiWord, schemas
from dragoman.server.descriptions import (
    BY_NAME,
    IGNORED,
    QUESTION,
    VERSIONED,
    Answers,
    any_of,
    json_answer,
    merged,
    ref,
)
from dragoman.server.operations import Api, PoolingOperation, Server

NAME = "tei"
BY_DOCUMENTS = f"{NAME}.by_documents"
"""The dialect of bodies of `/rerank` in Cohere's and Jina's words."""

_FAILURES = merged(ERRORS.answers(), {400: json_answer(TeiError, "there is no text in the body")})


def set_up(profile: ModelProfile) -> Dialects:
    dialects = {f"{NAME}.{name}": TextsDialect(profile, operation) for name, operation in OPERATIONS.items()}
    return {**dialects, BY_DOCUMENTS: rerank_dialect(profile, V1)}


def _dialect_of_rerank(http: HttpCall) -> str:
    """A body with `documents` and without `texts` is not TEI's."""
    is_others = http.field("texts") is None and http.field("documents") is not None
    return BY_DOCUMENTS if is_others else f"{NAME}.rerank"


def _model_of_rerank(http: HttpCall, server: Server) -> str | None:
    named = model_of_query_or_header(http, server)
    return named or (model_of_body(http, server) if _dialect_of_rerank(http) == BY_DOCUMENTS else None)


_operation = partial(
    PoolingOperation,
    tag="Text Embeddings Inference",
    parameters=(*BY_NAME, *VERSIONED),
    model=model_of_query_or_header,
)


def _of_inputs(name: str, summary: str, answer: Answers, body: str, example: Any = QUESTION) -> PoolingOperation:
    return _operation(
        path=f"/{name}",
        summary=summary,
        answers=merged(answer, _FAILURES),
        body={JSON_MEDIA_TYPE: ref(body)},
        example={"inputs": example},
        dialect=f"{NAME}.{name}",
    )


_VECTORS = {200: json_answer(list[list[float]], "the vectors", *IGNORED)}
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
    teller=lambda dialects: ERRORS,
    schemas=lambda profile: {**schemas(profile), "RerankRequest": rerank_body(V1, profile)},
    operations=(
        _of_inputs("embed", "Embed texts", _VECTORS, "TeiEmbedRequest", [QUESTION]),
        _of_inputs("embed_all", "Embed the tokens of texts", _EVERY_TOKEN, "TeiEmbedAllRequest"),
        _of_inputs("embed_sparse", "Weigh the words of texts", _WORDS, "TeiEmbedAllRequest"),
        _of_inputs("predict", "Classify texts or pairs of texts", _PREDICTIONS, "TeiPredictRequest"),
        _operation(
            path="/rerank",
            summary="Order texts by what they say of a query; as Cohere and Jina for bodies with `documents`",
            answers=merged(
                {200: json_answer(list[TeiRank], "the texts, best first", *IGNORED)},
                {200: json_answer(RerankAnswer, "the documents, best first", *IGNORED)},
                _FAILURES,
                OPENAI_ERRORS.answers(),
            ),
            body={JSON_MEDIA_TYPE: any_of(ref("TeiRerankRequest"), ref("RerankRequest"))},
            example={"query": QUESTION, "texts": ["A kind of learning", "A kind of bread"]},
            dialect=_dialect_of_rerank,
            model=_model_of_rerank,
        ),
    ),
)
