"""The plain-text service as an API."""

from __future__ import annotations

from functools import partial

from dragoman.server.api import JSON_MEDIA_TYPE, TEXT_MEDIA_TYPE, Dialects, ModelProfile, model_of_query_or_header
from dragoman.server.apis.text.dialect import (
    BATCH_PATH,
    COMPLETE,
    ERROR_STATUS,
    ONE_PATH,
    PARTIAL,
    BatchAnswerItem,
    TextDialect,
    TextError,
)
from dragoman.server.describe.answers import Answer, Answers, ErrorFamily, Shape, json_errors, merged
from dragoman.server.describe.components import BY_NAME, GENERATED, QUESTION, VERSIONED, header, parameter
from dragoman.server.describe.json_schema import (
    NON_EMPTY_TEXT,
    NUMBER,
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    described,
    nullable,
    ref,
)
from dragoman.server.operations import Api, GenerateOperation

NAME = "text"


def set_up(profile: ModelProfile) -> Dialects:
    asked = {"hold_ms": "text_status_hold_ms", "chat_template": "text_chat_template"}
    chosen = {name: profile.settings[option] for name, option in asked.items() if option in profile.settings}
    return {NAME: TextDialect(sampling=profile.default_sampling, limits=profile.limits, **chosen)}


def _schemas(profile: ModelProfile) -> dict[str, Schema]:
    name, prompt = (
        described(any_of(TEXT, NUMBER), "the caller's name for the prompt"),
        described(NON_EMPTY_TEXT, "the text to continue"),
    )
    length: Schema = {"type": "integer", "minimum": 1}
    most = described(length, "tokens to generate at most, the end-of-sequence token included")
    entry = an_object(
        {"id": name, "prompt": prompt}, {"maxLength": described(nullable(length), "wins over the shared one")}
    )
    entries = {**array(entry, minItems=1, maxItems=profile.limits.max_prompts), "description": "ids must differ"}
    shared = {"maxLength": described(nullable(length), "for prompts without their own")}
    return {
        "GenerateOneRequest": an_object({"id": name, "prompt": prompt, "maxLength": most}),
        "GenerateBatchRequest": an_object({"prompts": entries}, shared),
    }


def _generated(media_type: str, shape: Shape, whole: str, part: str, errors: Answers, *headers: str) -> Answers:
    """`whole`, `part`: what a status of 200 or 206 means."""
    content, names = {media_type: shape}, (*GENERATED, *headers)
    return merged({COMPLETE: Answer(whole, content, names), PARTIAL: Answer(part, content, names)}, errors)


_STATUS = "200 if the text ended by itself; 206 if it was cut at `maxLength`, or if its end is not known yet."
_operation = partial(GenerateOperation, tag="Plain text", dialect=NAME, model=model_of_query_or_header)

API = Api(
    name=NAME,
    title="plain text",
    owns=("/api",),
    set_up=set_up,
    teller=lambda dialects: dialects[NAME],
    schemas=_schemas,
    operations=(
        _operation(
            path=ONE_PATH,
            summary="Continue one prompt; the body of the answer is the text",
            answers=_generated(
                TEXT_MEDIA_TYPE,
                TEXT,
                "the text, complete",
                "the text, cut, or not known yet to be complete",
                ErrorFamily(ERROR_STATUS, lambda status: {TEXT_MEDIA_TYPE: TEXT}).answers(),
                "Trailer",
            ),
            description=f"{_STATUS} With `TE: trailers`, the trailers `X-Status` and `X-Finish-Reason` tell the exact "
            "outcome. A failure in the middle closes the connection without the final chunk.",
            parameters=(*BY_NAME, *VERSIONED, "stream_query"),
            body={JSON_MEDIA_TYPE: ref("GenerateOneRequest")},
            example={"id": "123", "prompt": QUESTION, "maxLength": 32},
        ),
        _operation(
            path=BATCH_PATH,
            summary="Continue several prompts at once",
            answers=_generated(
                JSON_MEDIA_TYPE,
                list[BatchAnswerItem],
                "the texts, all of them complete",
                "the texts, at least one of them cut",
                json_errors(ERROR_STATUS, TextError).answers(),
            ),
            description="200 if every text ended by itself, else 206. Never streamed.",
            parameters=(*BY_NAME, *VERSIONED),
            body={JSON_MEDIA_TYPE: ref("GenerateBatchRequest")},
            example={
                "prompts": [
                    {"id": "123", "prompt": QUESTION, "maxLength": 10},
                    {"id": "456", "prompt": "Write a story."},
                ],
                "maxLength": 20,
            },
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
