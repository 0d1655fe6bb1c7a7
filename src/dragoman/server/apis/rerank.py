"""Reranking and scoring as an API: Cohere's and Jina's operations, OpenVINO Model Server's, vLLM's scores.

On the event loop. Source of the scores: vLLM's score API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import JSON_MEDIA_TYPE, Dialects, HttpCall, ModelProfile, Reply, model_of_body
from dragoman.server.apis.openai_wire.common import Created
from dragoman.server.apis.openai_wire.describe import struct_body
from dragoman.server.apis.openai_wire.errors import ERRORS as OPENAI_ERRORS
from dragoman.server.apis.openai_wire.errors import error_shape
from dragoman.server.apis.openai_wire.pooling import (
    CUT_SCHEMA,
    IGNORED_FIELDS,
    TextsCall,
    TextsDialect,
    TextsField,
    TextsOperation,
    TextUsage,
    read_cut,
    read_string,
    read_strings,
    usage_of,
)
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.apis.ovms_wire import ERRORS as OVMS_ERRORS
from dragoman.server.apis.ovms_wire import V3_RERANK
from dragoman.server.apis.rerank_wire import (
    EFFECTS,
    CohereRerankAnswer,
    OvmsRerankAnswer,
    RerankAnswer,
    rerank_body,
    rerank_dialect,
    told_by_cohere,
    told_by_ovms,
)
from dragoman.server.descriptions import (
    IGNORED,
    QUESTION,
    TEXT,
    ErrorFamily,
    Schema,
    an_object,
    any_of,
    array,
    json_answer,
    ref,
    statuses,
)
from dragoman.server.operations import Api, PoolingOperation
from dragoman.server.pooling.base import ScoreRequest, scorer
from dragoman.types import Limits

# --- scores -----------------------------------------------------------------------------------------------------------


class ScoreBody(msgspec.Struct, kw_only=True):
    """The body of a score call; both sides are read by hand, as they have several names."""

    model: str | None = None
    text_1: Any = None
    text_2: Any = None
    queries: Any = None
    documents: Any = None
    items: Any = None
    data_1: Any = None
    data_2: Any = None
    truncate_prompt_tokens: int | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    instruction: str | None = None


SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
"""Names of the two sides of a score call, the newest versions' last."""


class ScoreItem(msgspec.Struct):
    """One pair's score."""

    index: int
    object: Literal["score"]
    score: float


class ScoreList(msgspec.Struct):
    """The scores in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: Created
    model: str
    data: list[ScoreItem]
    usage: TextUsage


async def _score(call: TextsCall[ScoreBody]) -> ScoreList:
    body, service = call.body, scorer(call.profile, by_similarity=True)
    first, second = names_of_sides(call.raw)
    activation = body.activation if body.use_activation is None else body.use_activation
    request = ScoreRequest(
        pairs=_pairs(call, first, second),
        request_id=call.request_id,
        **read_cut(body.truncate_prompt_tokens, V1),
        raw=activation is False,
        instruction=body.instruction,
    )
    made = await TextsField(second, isinstance(call.raw[second], list)).asked(service.score, request)
    return ScoreList(
        f"score-{call.request_id}",
        "list",
        int(call.clock()),
        body.model or call.profile.name,
        [ScoreItem(index, "score", score) for index, score in enumerate(made.values.tolist())],
        usage_of(made.num_tokens),
    )


SCORE = TextsOperation(ScoreBody, _score, V1)


def _pairs(call: TextsCall[ScoreBody], first: str, second: str) -> list[tuple[str, str]]:
    ones, others = (_side(name, call.raw[name], call.limits) for name in (first, second))
    if len(ones) == 1:
        ones *= len(others)
    if len(ones) != len(others):
        message = f"{first} must have 1 text or as many as {second}, got {len(ones)} and {len(others)}"
        raise V1.fault(first, "count", message)
    return list(zip(ones, others, strict=True))


def _side(name: str, value: Any, limits: Limits) -> list[str]:
    return read_strings(name, value, limits, V1) if isinstance(value, list) else [read_string(name, value, limits, V1)]


def names_of_sides(raw: Mapping[str, Any]) -> tuple[str, str]:
    """The names that the call uses for the two sides. Raises: InvalidRequest if one is missing."""
    for first, second in SIDES:
        if first in raw and second in raw:
            return first, second
    present = next((pair for pair in SIDES if pair[0] in raw or pair[1] in raw), SIDES[0])
    missing = present[0] if present[0] not in raw else present[1]
    raise V1.fault(missing, "missing", f"{missing} is missing: give text_1 and text_2, or queries and documents")


def score_body(profile: ModelProfile) -> Schema:
    side = any_of(TEXT, array(TEXT, minItems=1, maxItems=profile.limits.max_prompts))
    cut = f"{EFFECTS['truncate_prompt_tokens']}; too long ones are refused if absent"
    whole = struct_body(
        ScoreBody,
        {**EFFECTS, "truncate_prompt_tokens": cut},
        replace(V1, ignored=IGNORED_FIELDS),
        profile,
        needed={},
        defaults={"use_activation": True},
        own={"truncate_prompt_tokens": CUT_SCHEMA},
    )["properties"]
    more = {name: schema for name, schema in whole.items() if not any(name in pair for pair in SIDES)}
    return any_of(*(an_object({first: side, second: side}, more) for first, second in SIDES))


# --- the API ----------------------------------------------------------------------------------------------------------

NAME = "rerank"
V1_RERANK = f"{NAME}.v1"

EXAMPLE = {"model": "default", "query": QUESTION, "documents": ["A kind of learning", "A kind of bread"], "top_n": 1}

COHERE_PATH = "/v2/rerank"


class CohereError(msgspec.Struct):
    """The body of an error. Source: Cohere API reference, errors."""

    message: str


COHERE_ERRORS = error_shape(statuses(unsupported=422), CohereError, lambda error: CohereError(error.message))


class RerankErrors:
    """Errors of calls below the paths that this API owns: Cohere's second version, vLLM's scores."""

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        return (COHERE_ERRORS if http.path.startswith(COHERE_PATH) else OPENAI_ERRORS).reply(error)


_TELLER = RerankErrors()


def set_up(profile: ModelProfile) -> Dialects:
    return {
        V1_RERANK: rerank_dialect(profile, V1),
        f"{NAME}.v2": rerank_dialect(profile, replace(V1, name="cohere", errors=COHERE_ERRORS), told_by_cohere),
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
            COHERE_ERRORS,
            "RerankRequest",
            f"{NAME}.v2",
        ),
        _reranks("/v3/rerank", "as OVMS", OvmsRerankAnswer, OVMS_ERRORS, "RerankRequestV3", f"{NAME}.v3"),
        _scores("/v1/score"),
        _scores("/score"),
    ),
)
