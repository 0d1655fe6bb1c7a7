"""The plain-text service as an API: its two operations and how it is set up for a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.server.api import JSON_MEDIA_TYPE, TEXT_MEDIA_TYPE, Dialects, ModelProfile, model_of_query_or_header
from dragoman.server.apis.text.describe import BATCH_ERRORS, ONE_ERRORS, schemas
from dragoman.server.apis.text.dialect import BATCH_PATH, ONE_PATH, TextDialect, TextOptions
from dragoman.server.apis.text.schema import BatchAnswerItem
from dragoman.server.describe.answers import Answer, Answers, Shape, merged
from dragoman.server.describe.components import BY_NAME, GENERATED, QUESTION, VERSIONED, header, parameter
from dragoman.server.describe.json_schema import TEXT, ref
from dragoman.server.operations import Api, GenerateOperation

NAME = "text"


def options_of(profile: ModelProfile) -> TextOptions:
    """The options that the operator chose for the service."""
    default = TextOptions()
    return TextOptions(
        hold_ms=profile.settings.get("text_status_hold_ms", default.hold_ms),
        chat_template=profile.settings.get("text_chat_template", default.chat_template),
        sampling=profile.default_sampling,
        limits=profile.limits,
    )


def set_up(profile: ModelProfile) -> Dialects:
    """Its dialect for a model."""
    return {NAME: TextDialect(options_of(profile))}


def _generated(status: int, media_type: str, shape: Shape, text: str, *headers: str) -> Answers:
    return {status: Answer(text, {media_type: shape}, (*GENERATED, *headers))}


_STATUS = "200 if the text ended by itself; 206 if it was cut at `maxLength`, or if its end is not known yet."
_ONE_EXAMPLE: Mapping[str, Any] = {"id": "123", "prompt": QUESTION, "maxLength": 32}
_BATCH_EXAMPLE: Mapping[str, Any] = {
    "prompts": [{"id": "123", "prompt": QUESTION, "maxLength": 10}, {"id": "456", "prompt": "Write a story."}],
    "maxLength": 20,
}
_ONE = merged(
    _generated(200, TEXT_MEDIA_TYPE, TEXT, "the text, complete", "Trailer"),
    _generated(206, TEXT_MEDIA_TYPE, TEXT, "the text, cut, or not known yet to be complete", "Trailer"),
    ONE_ERRORS.answers(),
)
_BATCH = merged(
    _generated(200, JSON_MEDIA_TYPE, list[BatchAnswerItem], "the texts, all of them complete"),
    _generated(206, JSON_MEDIA_TYPE, list[BatchAnswerItem], "the texts, at least one of them cut"),
    BATCH_ERRORS.answers(),
)

API = Api(
    name=NAME,
    title="plain text",
    owns=("/api",),
    set_up=set_up,
    teller=lambda dialects: dialects[NAME],
    schemas=lambda profile: schemas(options_of(profile)),
    operations=(
        GenerateOperation(
            path=ONE_PATH,
            tag="Plain text",
            summary="Continue one prompt; the body of the answer is the text",
            answers=_ONE,
            description=f"{_STATUS} With `TE: trailers`, the trailers `X-Status` and `X-Finish-Reason` tell the exact "
            "outcome. A failure in the middle closes the connection without the final chunk.",
            parameters=(*BY_NAME, *VERSIONED, "stream_query"),
            body={JSON_MEDIA_TYPE: ref("GenerateOneRequest")},
            example=_ONE_EXAMPLE,
            dialect=NAME,
            model=model_of_query_or_header,
        ),
        GenerateOperation(
            path=BATCH_PATH,
            tag="Plain text",
            summary="Continue several prompts at once",
            answers=_BATCH,
            description="200 if every text ended by itself, else 206. Never streamed.",
            parameters=(*BY_NAME, *VERSIONED),
            body={JSON_MEDIA_TYPE: ref("GenerateBatchRequest")},
            example=_BATCH_EXAMPLE,
            dialect=NAME,
            model=model_of_query_or_header,
        ),
    ),
    parameters={
        "stream_query": parameter(
            "query",
            "stream",
            "false waits for the whole text and gives the exact status; an empty value means true",
            {"enum": ["true", "false", "1", "0", ""], "default": "true"},
        ),
    },
    headers={"Trailer": header("the trailers that follow, for clients that take them")},
)
