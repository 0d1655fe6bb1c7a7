"""vLLM's pooling as an API: classification, and vectors of texts or of their tokens."""

from __future__ import annotations

from typing import Any

from dragoman.server.api import JSON_MEDIA_TYPE, Dialects, ModelProfile, model_of_body
from dragoman.server.apis.openai_wire.errors import ERRORS
from dragoman.server.apis.openai_wire.pooling.dialect import TextsDialect
from dragoman.server.apis.pooling.dialect import CLASSIFY, POOL
from dragoman.server.apis.pooling.schema import ClassList, PoolingList, bodies
from dragoman.server.describe.answers import json_answer
from dragoman.server.describe.components import IGNORED, QUESTION
from dragoman.server.describe.json_schema import ref
from dragoman.server.operations import Api, PoolingOperation

NAME = "pooling"


def set_up(profile: ModelProfile) -> Dialects:
    return {f"{NAME}.classify": TextsDialect(profile, CLASSIFY), NAME: TextsDialect(profile, POOL)}


def _operation(path: str, summary: str, kind: Any, body: str, dialect: str) -> PoolingOperation:
    return PoolingOperation(
        path=path,
        tag="Pooling",
        summary=summary,
        answers=ERRORS.beside(json_answer(kind, "what was made, in the order of the texts", *IGNORED)),
        body={JSON_MEDIA_TYPE: ref(body)},
        example={"model": "default", "input": [QUESTION]},
        dialect=dialect,
        model=model_of_body,
    )


API = Api(
    name=NAME,
    title="Pooling",
    owns=("/classify", "/pooling"),
    set_up=set_up,
    teller=lambda dialects: dialects[NAME],
    schemas=bodies,
    operations=(
        _operation("/classify", "Classify texts, as vLLM does", ClassList, "ClassifyRequest", f"{NAME}.classify"),
        _operation(
            "/pooling",
            "Embed or classify texts, or embed their tokens, as vLLM does",
            PoolingList,
            "PoolingRequest",
            NAME,
        ),
    ),
)
