"""Reranking and scoring as an API: Cohere's and Jina's operations, OpenVINO Model Server's, vLLM's scores."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import JSON_MEDIA_TYPE, Dialects, HttpCall, ModelProfile, Reply, model_of_body
from dragoman.server.apis.openai_wire.errors import ERRORS as OPENAI_ERRORS
from dragoman.server.apis.openai_wire.errors import OPENAI, ErrorShape
from dragoman.server.apis.openai_wire.pooling import TextsDialect
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.apis.ovms_wire.profile import ERRORS as OVMS_ERRORS
from dragoman.server.apis.ovms_wire.profile import V3_RERANK
from dragoman.server.apis.rerank.score import SCORE, ScoreList, score_body
from dragoman.server.apis.rerank_wire import (
    CohereRerankAnswer,
    OvmsRerankAnswer,
    RerankAnswer,
    rerank_body,
    rerank_dialect,
    told_by_cohere,
    told_by_ovms,
)
from dragoman.server.describe.answers import ErrorFamily, json_answer, json_errors
from dragoman.server.describe.components import IGNORED, QUESTION
from dragoman.server.describe.json_schema import ref
from dragoman.server.error_kinds import statuses
from dragoman.server.operations import Api, PoolingOperation

NAME = "rerank"
V1_RERANK = f"{NAME}.v1"

EXAMPLE = {"model": "default", "query": QUESTION, "documents": ["A kind of learning", "A kind of bread"], "top_n": 1}

COHERE_PATH = "/v2/rerank"


class CohereError(msgspec.Struct):
    """The body of an error. Source: Cohere API reference, errors."""

    message: str


COHERE = ErrorShape(statuses(unsupported=422), lambda error: CohereError(error.message))


class RerankErrors:
    """Errors of calls below the paths that this API owns: Cohere's second version, vLLM's scores."""

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        return (COHERE if http.path.startswith(COHERE_PATH) else OPENAI).reply(error)


_TELLER = RerankErrors()


def set_up(profile: ModelProfile) -> Dialects:
    return {
        V1_RERANK: rerank_dialect(profile, V1),
        f"{NAME}.v2": rerank_dialect(profile, replace(V1, name="cohere", errors=COHERE), told_by_cohere),
        f"{NAME}.v3": rerank_dialect(profile, V3_RERANK, told_by_ovms),
        f"{NAME}.score": TextsDialect(profile, SCORE),
    }


_operation = partial(PoolingOperation, tag="Rerank", model=model_of_body)


def _reranks(path: str, whose: str, kind: Any, errors: ErrorFamily, body: str, dialect: str) -> PoolingOperation:
    return _operation(
        path=path,
        summary=f"Order documents by what they say of a query, {whose}",
        answers=errors.beside(json_answer(kind, "the documents, best first", *IGNORED)),
        body={JSON_MEDIA_TYPE: ref(body)},
        example=EXAMPLE,
        dialect=dialect,
    )


def _scores(path: str) -> PoolingOperation:
    return _operation(
        path=path,
        summary="Score pairs of texts, as vLLM does",
        answers=OPENAI_ERRORS.beside(json_answer(ScoreList, "the scores", *IGNORED)),
        body={JSON_MEDIA_TYPE: ref("ScoreRequest")},
        example={"model": "default", "text_1": QUESTION, "text_2": ["A kind of learning", "A kind of bread"]},
        dialect=f"{NAME}.score",
    )


API = Api(
    name=NAME,
    title="Rerank",
    owns=(COHERE_PATH, "/score"),
    set_up=set_up,
    teller=lambda dialects: _TELLER,
    schemas=lambda profile: {
        "RerankRequest": rerank_body(V1, profile),
        "RerankRequestV3": rerank_body(V3_RERANK, profile),
        "ScoreRequest": score_body(profile),
    },
    operations=(
        _reranks("/v1/rerank", "as Cohere and Jina", RerankAnswer, OPENAI_ERRORS, "RerankRequest", V1_RERANK),
        _reranks(
            COHERE_PATH,
            "as Cohere",
            CohereRerankAnswer,
            json_errors(COHERE.statuses, CohereError),
            "RerankRequest",
            f"{NAME}.v2",
        ),
        _reranks("/v3/rerank", "as OVMS", OvmsRerankAnswer, OVMS_ERRORS, "RerankRequestV3", f"{NAME}.v3"),
        _scores("/v1/score"),
        _scores("/score"),
    ),
)
