"""Descriptions of the operations on LMI's routes; SageMaker's wrap the same bodies and answers."""

from __future__ import annotations

from dragoman.server.api import JSON_MEDIA_TYPE, JSONLINES_MEDIA_TYPE, SSE_MEDIA_TYPE, TEXT_MEDIA_TYPE
from dragoman.server.apis.lmi.dialect import LmiOptions
from dragoman.server.apis.lmi.errors import LMI_ERRORS, FrontError, LmiBatchError, LmiShortError, LmiStreamFailure
from dragoman.server.apis.lmi_wire.answers import (
    LMI_RESULTS,
    LmiBatch,
    LmiLine,
    LmiOutputsLine,
    LmiResult,
    LmiResultOfSeveral,
)
from dragoman.server.apis.lmi_wire.body import FORM_SCHEMA, body_schemas
from dragoman.server.apis.lmi_wire.parameters import parameter_schemas, rows_for
from dragoman.server.apis.openai_wire.chat import ChatCompletion, ChatCompletionChunk
from dragoman.server.apis.openai_wire.completions import Completion, CompletionChunk
from dragoman.server.apis.openai_wire.errors import ERRORS as OPENAI_ERRORS
from dragoman.server.apis.openai_wire.errors import OpenAiError
from dragoman.server.descriptions import (
    BOOLEAN,
    GENERATED,
    LENIENT_BOOLEAN,
    NON_EMPTY_TEXT,
    QUESTION,
    TEXT,
    Answer,
    Answers,
    Content,
    Schema,
    an_object,
    any_of,
    array,
    described,
    header,
    json_answer,
    merged,
    nullable,
    parameter,
    ref,
)

EXAMPLE = {"inputs": QUESTION, "parameters": {"max_new_tokens": 32, "details": True}, "stream": True}
POLLING = ("x-synchronous", "x-starting-token", "x-max-items")
_NEXT = ("x-next-token", "X-Amzn-SageMaker-Custom-Attributes")

_PAIR = an_object({"key": TEXT, "value": TEXT})
_PAIRS = an_object({"inputs": any_of(_PAIR, array(_PAIR, minItems=1))}, text="for a model that scores")

BODIES = body_schemas(
    any_of(ref("LmiRequest"), ref("ChatRequestInvocations"), ref("CompletionRequestInvocations"), _PAIRS)
)
_STREAM = (
    LmiLine,
    LmiOutputsLine,
    LmiStreamFailure,
    LmiBatchError,
    ChatCompletionChunk,
    CompletionChunk,
    LmiShortError,
)
TEXT_OF_ALL = (
    "A JSON object with `messages` is a conversation, one with `prompt` and without `inputs` a completion, everything else "
    "LMI's `inputs`. Streams are JSON lines, or server-sent events if `Accept` names `text/event-stream`.\n\n"
    "With `x-synchronous: false` the call runs without a waiting client. Its answer is fetched with calls that have "
    "`x-starting-token`, the `x-next-token` of the answer before: 202 while there is nothing new, else what was written "
    "since, with the status of the call itself; the last answer has no `x-next-token`."
)


def answered(content: Content, description: str = "the answer", *headers: str) -> Answers:
    return {200: Answer(description, content, (*GENERATED, *headers))}


DEFERRED: Answers = {
    200: Answer(
        "empty, with a token to poll with, for `x-synchronous: false`",
        {TEXT_MEDIA_TYPE: {**TEXT, "maxLength": 0}},
        _NEXT,
    ),
    202: Answer("a poll: nothing new yet", {}, _NEXT),
}
REFUSED_BY_FRONT: Answers = {
    400: json_answer(FrontError, "the poll names no answer, or the call tries to override the handler")
}

CONTENT: Content = {
    JSON_MEDIA_TYPE: (
        *LMI_RESULTS,
        list[LmiResult],
        list[LmiResultOfSeveral],
        LmiBatch,
        ChatCompletion,
        Completion,
        list[float],  # of models that embed or score
        list[list[float]],
    ),
    JSONLINES_MEDIA_TYPE: _STREAM,
    SSE_MEDIA_TYPE: (*_STREAM, OpenAiError),
}
# Chat that asks for server-sent events gets errors in OpenAI's form.
ANSWERS = merged(answered(CONTENT), DEFERRED, REFUSED_BY_FRONT, LMI_ERRORS.answers(), OPENAI_ERRORS.answers())

PARAMETERS = {
    "model_path": parameter("path", "model", "the model's name; `name/version` asks for that version", TEXT),
    "x-synchronous": parameter(
        "header", "x-synchronous", "false: answer at once with a token to poll with", {**BOOLEAN, "default": True}
    ),
    "x-starting-token": parameter(
        "header", "x-starting-token", "a poll: send what was answered since this token was made", TEXT
    ),
    "x-max-items": parameter(
        "header",
        "x-max-items",
        "a poll: at most this many records",
        {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    ),
    "x-amzn-sagemaker-target-model": parameter(
        "header",
        "X-Amzn-SageMaker-Target-Model",
        "the model to use, as `NAME` or `NAME.tar.gz`; one of the operator's model store is loaded if need be",
        TEXT,
    ),
}

HEADERS = {
    "x-next-token": header("the token to poll with next, as long as more may come"),
    "X-Amzn-SageMaker-Custom-Attributes": header("`x-next-token=TOKEN`, which SageMaker's runtime hands on"),
}


def request_bodies(options: LmiOptions) -> dict[str, Schema]:
    rows = rows_for(options.profile, with_tgi_names=options.tgi_compat)
    return {
        **parameter_schemas("LmiParameters", rows, options.profile, options.lmi_version, options.model.limits),
        "LmiRequest": _request(options),
        "LmiForm": FORM_SCHEMA,
    }


def _request(options: LmiOptions) -> Schema:
    return an_object(
        {
            "inputs": described(
                any_of(NON_EMPTY_TEXT, array(NON_EMPTY_TEXT, minItems=1, maxItems=options.model.limits.max_prompts)),
                "the prompt, or several",
            )
        },
        {
            "parameters": nullable(ref("LmiParameters")),
            "stream": described(nullable(LENIENT_BOOLEAN), "send the answer token by token", False),
            "model_name": described({}, "tolerated: the model is chosen by path, query or header"),
        },
        text=f"Profile {options.profile}, LMI version {options.lmi_version}.",
    )
