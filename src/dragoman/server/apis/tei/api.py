"""Text Embeddings Inference as an API: embedding and reranking. Bodies of `/rerank` may be Cohere's and Jina's as well."""

from __future__ import annotations

from dragoman.server.api import Dialects, HttpCall, ModelProfile, model_of_body, model_of_query_or_header
from dragoman.server.apis.openai_wire.errors import ERRORS as OPENAI_ERRORS
from dragoman.server.apis.rerank.api import BY_DOCUMENTS
from dragoman.server.apis.rerank.schema import RerankAnswer
from dragoman.server.apis.tei.dialect import TeiEmbedDialect, TeiRerankDialect, by_body
from dragoman.server.apis.tei.errors import ERRORS, TeiError, TeiErrors
from dragoman.server.apis.tei.schema import TeiRank, schemas
from dragoman.server.describe.answers import json_answer, merged
from dragoman.server.describe.components import BY_NAME, IGNORED, QUESTION, VERSIONED
from dragoman.server.describe.json_schema import any_of, ref
from dragoman.server.http.framing import JSON_MEDIA_TYPE
from dragoman.server.operations import Api, PoolingOperation, Server

NAME = "tei"
TAG = "Text Embeddings Inference"
EMBED, RERANK = f"{NAME}.embed", f"{NAME}.rerank"

_TELLER = TeiErrors()
_FAILURES = merged(ERRORS.answers(), {400: json_answer(TeiError, "there is no text in the body")})


def set_up(profile: ModelProfile) -> Dialects:
    """Its dialects for a model."""
    return {EMBED: TeiEmbedDialect(profile), RERANK: TeiRerankDialect(profile)}


def _dialect_of_rerank(http: HttpCall) -> str:
    return by_body(http, RERANK, BY_DOCUMENTS)


def _model_of_rerank(http: HttpCall, server: Server) -> str | None:
    """Query and header name it, or the body where its words have that."""
    named = model_of_query_or_header(http, server)
    return named or (model_of_body(http, server) if _dialect_of_rerank(http) == BY_DOCUMENTS else None)


API = Api(
    name=NAME,
    title="TEI",
    owns=("/embed", "/rerank"),
    set_up=set_up,
    teller=lambda dialects: _TELLER,
    schemas=schemas,
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
