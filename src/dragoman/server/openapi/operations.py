"""What each route does: its parameters, bodies, answers and an example that works, one row per method and path.

Does: describe the inference routes; `management_operations` describes the others. Does not: know which routes a server has
(`document` asks the live table). Used when the document is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dragoman.server.apis.lmi.body import FORM, MULTIPART
from dragoman.server.apis.sagemaker.eventstream import EVENTSTREAM_MEDIA_TYPE
from dragoman.server.framing import JSON_MEDIA_TYPE, JSONLINES_MEDIA_TYPE, SSE_MEDIA_TYPE, TEXT_MEDIA_TYPE
from dragoman.server.openapi.errors import ROUTED, Answer, Answers, Family, error_answers, front_answer, merged
from dragoman.server.openapi.json_schema import TEXT, Schema, any_of, ref

Key = tuple[str, str]  # method, path

QUESTION = "What is Deep Learning?"
_MESSAGES = [{"role": "user", "content": QUESTION}]

_LMI_EXAMPLE = {"inputs": QUESTION, "parameters": {"max_new_tokens": 32, "details": True}, "stream": True}
_COMPLETION_EXAMPLE = {"model": "default", "prompt": QUESTION, "max_tokens": 32, "temperature": 0, "stream": True}
_CHAT_EXAMPLE = {"model": "default", "messages": _MESSAGES, "max_tokens": 32, "temperature": 0, "stream": True}
_TGI_EXAMPLE = {"inputs": QUESTION, "parameters": {"max_new_tokens": 32, "details": True}}
_ONE_EXAMPLE = {"id": "123", "prompt": QUESTION, "maxLength": 32}
_BATCH_EXAMPLE = {
    "prompts": [{"id": "123", "prompt": QUESTION, "maxLength": 10}, {"id": "456", "prompt": "Write a story."}],
    "maxLength": 20,
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `parameters`: names of parameter components. `example`: a JSON body that is answered."""

    tag: str
    summary: str
    answers: Answers
    description: str = ""
    parameters: tuple[str, ...] = ()
    body: Mapping[str, Schema] = field(default_factory=dict)
    example: Any = None
    needs_key: bool = True


_IGNORED = ("x-dragoman-ignored",)
_BY_NAME = ("model_name_query", "model_name_header")
_VERSIONED = ("model_version_query", "model_version_header")
_NEXT = ("x-next-token", "X-Amzn-SageMaker-Custom-Attributes")
_POLLING = ("x-synchronous", "x-starting-token", "x-max-items")

_LMI_BODIES: Mapping[str, Schema] = {
    JSON_MEDIA_TYPE: any_of(ref("LmiRequest"), ref("ChatRequestInvocations"), ref("CompletionRequestInvocations")),
    "text/plain": {**TEXT, "minLength": 1, "description": "the prompt"},
    FORM: ref("LmiForm"),
    MULTIPART: ref("LmiForm"),
}
_LMI_STREAM = any_of(ref("LmiStreamObject"), ref("ChatCompletionChunk"), ref("CompletionChunk"), ref("LmiChatError"))
_LMI_TEXT = (
    "A JSON object with `messages` is a conversation, one with `prompt` and without `inputs` a completion, everything else "
    "LMI's `inputs`. Streams are JSON lines, or server-sent events if `Accept` names `text/event-stream`.\n\n"
    "With `x-synchronous: false` the call runs without a waiting client. Its answer is fetched with calls that have "
    "`x-starting-token`, the `x-next-token` of the answer before: 202 while there is nothing new, else what was written "
    "since, with the status of the call itself; the last answer has no `x-next-token`."
)


def _answered(content: Mapping[str, Schema], description: str = "the answer", *headers: str) -> Answers:
    return {200: Answer(description, content, (*_IGNORED, *headers))}


_DEFERRED: Answers = {
    200: Answer(
        "empty, with a token to poll with, for `x-synchronous: false`",
        {TEXT_MEDIA_TYPE: {**TEXT, "maxLength": 0}},
        _NEXT,
    ),
    202: Answer("a poll: nothing new yet", {}, _NEXT),
}
_REFUSED_BY_FRONT: Answers = {400: front_answer("the poll names no answer, or the call tries to override the handler")}

_LMI_CONTENT: Mapping[str, Schema] = {
    JSON_MEDIA_TYPE: any_of(ref("LmiAnswer"), ref("ChatCompletion"), ref("Completion")),
    JSONLINES_MEDIA_TYPE: _LMI_STREAM,
    SSE_MEDIA_TYPE: any_of(*_LMI_STREAM["anyOf"], ref("OpenAiError")),
}
_LMI_ANSWERS = merged(_answered(_LMI_CONTENT), _DEFERRED, _REFUSED_BY_FRONT, error_answers("lmi"))

_lmi = partial(
    Operation,
    "LMI",
    answers=_LMI_ANSWERS,
    description=_LMI_TEXT,
    body=_LMI_BODIES,
    example=_LMI_EXAMPLE,
)


def _sagemaker(summary: str, content: Mapping[str, Schema], description: str) -> Operation:
    ok = _answered(content, "the container's answer", "x-Amzn-Invoked-Production-Variant")
    return Operation(
        "SageMaker",
        summary,
        merged(ok, _DEFERRED, error_answers("sagemaker")),
        f"{description} Signatures are not checked. {_LMI_TEXT}",
        ("endpoint_name", *_BY_NAME, *_VERSIONED, *_POLLING, *_SAGEMAKER_HEADERS),
        _LMI_BODIES,
        _LMI_EXAMPLE,
    )


_SAGEMAKER_HEADERS = ("x-amzn-sagemaker-target-model", "x-amzn-sagemaker-inference-component")

_EVENT_STREAM: Mapping[str, Schema] = {
    EVENTSTREAM_MEDIA_TYPE: {
        "type": "string",
        "format": "binary",
        "description": "PayloadPart messages whose payloads are the container's stream; a failure in the middle is a "
        "ModelStreamError message",
    }
}


def _chat(
    route: str, summary: str, stream: Mapping[str, Schema], errors: Answers, parameters: tuple[str, ...] = ()
) -> Operation:
    return Operation(
        "Chat",
        summary,
        merged(_answered({JSON_MEDIA_TYPE: ref("ChatCompletion"), **stream}), errors),
        "Streams in OpenAI's shape are server-sent events that end in `data: [DONE]`.",
        parameters,
        body={JSON_MEDIA_TYPE: ref(f"ChatRequest{route}")},
        example=_CHAT_EXAMPLE,
    )


_IN_LMI_SHAPE = tuple(kind for kind in ROUTED if kind not in ("unauthorized", "too_large"))  # these are always OpenAI's
_CHAT_V1_ERRORS = merged(_DEFERRED, _REFUSED_BY_FRONT, error_answers("openai"), error_answers("lmi", _IN_LMI_SHAPE))


def _completions(route: str, summary: str, family: Family, error: str) -> Operation:
    content = {
        JSON_MEDIA_TYPE: ref("Completion"),
        SSE_MEDIA_TYPE: any_of(ref("CompletionChunk"), ref(error)),
    }
    return Operation(
        "Completions",
        summary,
        merged(_answered(content), error_answers(family)),
        "Streams are server-sent events that end in `data: [DONE]`.",
        body={JSON_MEDIA_TYPE: ref(f"CompletionRequest{route}")},
        example=_COMPLETION_EXAMPLE,
    )


def _tgi(summary: str, content: Mapping[str, Schema], example: Mapping[str, Any] = _TGI_EXAMPLE) -> Operation:
    return Operation(
        "Text Generation Inference",
        summary,
        merged(_answered(content), error_answers("tgi")),
        parameters=(*_BY_NAME, *_VERSIONED),
        body={
            JSON_MEDIA_TYPE: ref("TgiRequest"),
            "text/plain": {**TEXT, "minLength": 1, "description": "the prompt"},
            FORM: ref("LmiForm"),
            MULTIPART: ref("LmiForm"),
        },
        example=example,
    )


_TGI_STREAM: Mapping[str, Schema] = {SSE_MEDIA_TYPE: ref("TgiStreamObject")}
_TEXT_STATUS = "200 if the text ended by itself; 206 if it was cut at `maxLength`, or if its end is not known yet."


def _generated(status: int, media_type: str, schema: Schema, text: str, *headers: str) -> Answers:
    return {status: Answer(text, {media_type: schema}, (*_IGNORED, *headers))}


_ONE = merged(
    _generated(200, TEXT_MEDIA_TYPE, TEXT, "the text, complete", "Trailer"),
    _generated(206, TEXT_MEDIA_TYPE, TEXT, "the text, cut, or not known yet to be complete", "Trailer"),
    error_answers("text"),
)
_BATCH = merged(
    _generated(200, JSON_MEDIA_TYPE, ref("GenerateBatchAnswer"), "the texts, all of them complete"),
    _generated(206, JSON_MEDIA_TYPE, ref("GenerateBatchAnswer"), "the texts, at least one of them cut"),
    error_answers("text_batch"),
)

INFERENCE: Mapping[Key, Operation] = {
    ("POST", "/invocations"): _lmi(
        "Generate with the model that query or header name", parameters=(*_BY_NAME, *_VERSIONED, *_POLLING)
    ),
    ("POST", "/predictions/{model}"): _lmi("Generate", parameters=("model_path", *_VERSIONED, *_POLLING)),
    ("POST", "/models/{model}/invoke"): _lmi("Generate", parameters=("model_path", *_VERSIONED, *_POLLING)),
    ("POST", "/endpoints/{name}/invocations"): _sagemaker(
        "SageMaker's InvokeEndpoint",
        _LMI_CONTENT,
        "What AWS clients call when their endpoint_url points here.",
    ),
    ("POST", "/endpoints/{name}/invocations-response-stream"): _sagemaker(
        "SageMaker's InvokeEndpointWithResponseStream",
        _EVENT_STREAM,
        "What AWS clients call for streams; `X-Amzn-SageMaker-Accept` takes the place of `Accept`.",
    ),
    ("POST", "/v1/chat/completions"): _chat(
        "V1",
        "A conversation, in OpenAI's or LMI's shape",
        {
            SSE_MEDIA_TYPE: any_of(ref("ChatCompletionChunk"), ref("OpenAiError")),
            JSONLINES_MEDIA_TYPE: any_of(ref("ChatCompletionChunk"), ref("LmiChatError")),
        },
        _CHAT_V1_ERRORS,
        _POLLING,
    ),
    ("POST", "/v3/chat/completions"): _chat(
        "V3",
        "A conversation, with OpenVINO Model Server's defaults",
        {SSE_MEDIA_TYPE: any_of(ref("ChatCompletionChunk"), ref("OvmsError"))},
        error_answers("ovms"),
    ),
    ("POST", "/v1/completions"): _completions("V1", "A completion, as OpenAI's", "openai", "OpenAiError"),
    ("POST", "/v3/completions"): _completions(
        "V3", "A completion, with OpenVINO Model Server's defaults", "ovms", "OvmsError"
    ),
    ("POST", "/api/generate-one"): Operation(
        "Plain text",
        "Continue one prompt; the body of the answer is the text",
        _ONE,
        f"{_TEXT_STATUS} With `TE: trailers`, the trailers `X-Status` and `X-Finish-Reason` tell the exact outcome. "
        "A failure in the middle closes the connection without the final chunk.",
        (*_BY_NAME, *_VERSIONED, "stream_query"),
        {JSON_MEDIA_TYPE: ref("GenerateOneRequest")},
        _ONE_EXAMPLE,
    ),
    ("POST", "/api/generate-batch"): Operation(
        "Plain text",
        "Continue several prompts at once",
        _BATCH,
        "200 if every text ended by itself, else 206. Never streamed.",
        (*_BY_NAME, *_VERSIONED),
        {JSON_MEDIA_TYPE: ref("GenerateBatchRequest")},
        _BATCH_EXAMPLE,
    ),
    ("POST", "/"): _tgi(
        "Generate: a list of one answer, or a stream",
        {JSON_MEDIA_TYPE: {"type": "array", "items": ref("TgiAnswer")}, **_TGI_STREAM},
        {**_TGI_EXAMPLE, "stream": True},
    ),
    ("POST", "/generate"): _tgi("Generate", {JSON_MEDIA_TYPE: ref("TgiAnswer")}),
    ("POST", "/generate_stream"): _tgi("Generate, streamed", _TGI_STREAM),
}
"""The routes that generate."""
