"""The answers of all dialects: whole bodies, and the objects of streams.

Does: take schemas from the Structs that encode; write those of LMI and TGI, whose objects are built by hand.
Does not: describe errors. Called when the document is built. The golden answers are checked against these schemas.
"""

from __future__ import annotations

from typing import Any

from dragoman.server.apis.lmi.objects import LMI_FINISH
from dragoman.server.apis.openai_wire.chat.schema import ChatChoice, ChunkChoice
from dragoman.server.apis.openai_wire.common import OPENAI_FINISH, Usage
from dragoman.server.apis.openai_wire.completions.schema import CompletionChoice
from dragoman.server.apis.tgi.dialect import TgiInfo
from dragoman.server.openapi.json_schema import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    nullable,
    ref,
    struct_schemas,
)

_NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
_INTEGER_OR_NULL: Schema = {"type": ["integer", "null"]}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_LMI_FINISH: Schema = {"enum": sorted({*LMI_FINISH.values(), "error"})}
_OPENAI_FINISH = sorted({*OPENAI_FINISH.values(), "tool_calls", "function_call"})
_CHAT_FINISH = sorted({*_OPENAI_FINISH, *LMI_FINISH.values()})


def answer_schemas() -> dict[str, Schema]:
    """The components of all answers."""
    return {**_completions(), **_chat(), **_lmi(), **_tgi(), **_text(), **_models(), **_health()}


def _completions() -> dict[str, Schema]:
    components = struct_schemas([CompletionChoice, Usage])
    finish = {"enum": [*_OPENAI_FINISH, None], "description": "null while the generation continues"}
    components["CompletionChoice"]["properties"]["finish_reason"] = finish
    head = {
        "id": TEXT,
        "object": {"enum": ["text_completion", "text_completion.chunk"]},
        "created": {**INTEGER, "description": "Unix time in seconds"},
        "model": TEXT,
        "system_fingerprint": TEXT,
        "choices": array(ref("CompletionChoice")),
    }
    components["Completion"] = an_object({**head, "usage": ref("Usage")})
    components["CompletionChunk"] = an_object(head, {"usage": nullable(ref("Usage"))}, "one event or line of a stream")
    return components


def _chat() -> dict[str, Schema]:
    components = struct_schemas([ChatChoice, ChunkChoice])
    components["ChatChoice"]["properties"]["finish_reason"] = {"enum": _CHAT_FINISH}
    components["ChunkChoice"]["properties"]["finish_reason"] = {"enum": [*_CHAT_FINISH, None]}
    prompt_logprobs = struct_schemas([CompletionChoice])["CompletionChoice"]["properties"]["prompt_logprobs"]
    head = {"id": TEXT, "created": {**INTEGER, "description": "Unix time in seconds"}, "model": TEXT}
    more: dict[str, Schema] = {"system_fingerprint": TEXT, "prompt_logprobs": prompt_logprobs}
    components["ChatCompletion"] = an_object(
        {
            **head,
            "object": {"const": "chat.completion"},
            "choices": array(ref("ChatChoice")),
            "usage": ref("Usage"),
        },
        more,
        "LMI's shape has no system_fingerprint and says eos_token or stop_sequence where OpenAI's says stop.",
    )
    components["ChatCompletionChunk"] = an_object(
        {**head, "object": {"const": "chat.completion.chunk"}, "choices": array(ref("ChunkChoice"))},
        {**more, "usage": nullable(ref("Usage"))},
        "one event or line of a stream",
    )
    return components


def _lmi() -> dict[str, Schema]:
    token = an_object(
        {"id": INTEGER, "text": TEXT, "log_prob": _NUMBER_OR_NULL},
        {
            "special_token": {**BOOLEAN, "description": "with lmi_version=0.26"},
            "logprob": {**NUMBER, "description": "with tgi_compat"},
            "special": {**BOOLEAN, "description": "with tgi_compat"},
        },
    )
    sequence: dict[str, Schema] = {
        "finish_reason": _LMI_FINISH,
        "generated_tokens": INTEGER,
        "tokens": array(ref("LmiToken")),
        "inputs": TEXT,
        "prefill": array(ref("LmiPromptToken")),
        "top_tokens": array(array(ref("LmiToken"))),
        "seed": {**INTEGER, "description": "with tgi_compat"},
        "input_length": {**INTEGER, "description": "with tgi_compat, in streams"},
    }
    other = an_object({"generated_text": TEXT, "finish_reason": _LMI_FINISH}, sequence)
    details = an_object({"finish_reason": _LMI_FINISH}, {**sequence, "best_of_sequences": array(other)})
    result = an_object(
        {"generated_text": TEXT},
        {"details": ref("LmiDetails"), "token": {**array(ref("LmiToken")), "description": "with lmi_version=0.26"}},
    )
    batch_026 = an_object(
        {"generated_text": array(TEXT)}, text="dynamic batch of several prompts with lmi_version=0.26"
    )
    line = an_object(
        {"token": ref("LmiToken")}, {"generated_text": TEXT, "details": ref("LmiDetails"), **_top_tokens()}
    )
    return {
        "LmiToken": token,
        "LmiPromptToken": _prompt_token(),
        "LmiDetails": details,
        "LmiResult": result,
        "LmiAnswer": {
            "description": "An array for several prompts, in dynamic batch mode, and with tgi_compat.",
            **any_of(ref("LmiResult"), array(ref("LmiResult")), batch_026),
        },
        "LmiLine": line,
        "LmiOutputsLine": an_object({"outputs": array(TEXT)}, text="what every prompt of the call gained in one step"),
        "LmiStreamObject": any_of(ref("LmiLine"), ref("LmiOutputsLine"), ref("LmiStreamError")),
    }


def _top_tokens() -> dict[str, Schema]:
    return {"top_tokens": {**array(ref("LmiToken")), "description": "with tgi_compat"}}


def _prompt_token() -> Schema:
    return an_object(
        {"id": INTEGER, "text": TEXT, "log_prob": _NUMBER_OR_NULL},
        {"logprob": _NUMBER_OR_NULL, "top_tokens": array(ref("LmiToken"))},
    )


def _tgi() -> dict[str, Schema]:
    token = an_object({"id": INTEGER, "text": TEXT, "logprob": NUMBER, "special": BOOLEAN}, {"log_prob": NUMBER})
    tokens = array(ref("TgiToken"))
    sequence: dict[str, Schema] = {
        "finish_reason": _LMI_FINISH,
        "generated_tokens": INTEGER,
        "seed": _INTEGER_OR_NULL,
        "prefill": array(ref("LmiPromptToken")),
        "tokens": tokens,
    }
    other = an_object({**sequence, "generated_text": TEXT}, {"top_tokens": array(tokens)})
    details = an_object(sequence, {"inputs": TEXT, "top_tokens": array(tokens), "best_of_sequences": array(other)})
    stream_details = an_object(
        {"finish_reason": _LMI_FINISH, "generated_tokens": INTEGER, "input_length": INTEGER, "seed": _INTEGER_OR_NULL},
        {"inputs": TEXT, "prefill": array(ref("LmiPromptToken"))},
    )
    event = an_object(
        {
            "index": INTEGER,
            "token": ref("TgiToken"),
            "generated_text": {**_TEXT_OR_NULL, "description": "null until the last token"},
            "details": nullable(stream_details),
        },
        {"top_tokens": tokens},
    )
    info = struct_schemas([TgiInfo])["TgiInfo"]
    return {
        "TgiToken": token,
        "TgiAnswer": an_object({"generated_text": TEXT}, {"details": details}),
        "TgiStreamObject": any_of(event, ref("TgiError")),
        "TgiInfo": info,
    }


def _text() -> dict[str, Schema]:
    item = an_object({"id": {"type": ["string", "number"], "description": "as it was sent"}, "data": TEXT})
    return {"GenerateBatchAnswer": {**array(item), "description": "in the order of the request"}}


def _models() -> dict[str, Schema]:
    model = an_object(
        {"id": TEXT, "object": {"const": "model"}, "created": INTEGER, "owned_by": TEXT}, {"max_model_len": INTEGER}
    )
    entry = an_object({"modelName": TEXT, "modelUrl": TEXT, "status": TEXT}, {"version": TEXT})
    counts: Any = dict.fromkeys(
        ("batchSize", "maxBatchDelayMillis", "maxIdleSeconds", "queueSize", "requestInQueue"), INTEGER
    )
    worker = an_object({"id": INTEGER, "startTime": {**TEXT, "format": "date-time"}, "status": TEXT})
    group = an_object(
        {
            "device": an_object({"deviceType": TEXT, "deviceId": INTEGER}),
            "minWorkers": INTEGER,
            "maxWorkers": INTEGER,
            "workers": array(worker),
        }
    )
    described = an_object(
        {
            **entry["properties"],
            **counts,
            "loadedAtStartup": BOOLEAN,
            "workerGroups": array(group),
        }
    )
    described["required"].remove("version")
    return {
        "OpenAiModel": model,
        "OpenAiModelList": an_object({"object": {"const": "list"}, "data": array(ref("OpenAiModel"))}),
        "LmiModelList": an_object({"models": array(entry)}, {"nextPageToken": TEXT}),
        "LmiModel": array(an_object({"workflowName": TEXT, "models": array(described)})),
    }


def _health() -> dict[str, Schema]:
    status = an_object({"status": TEXT})
    return {
        "ModelStatuses": {"type": "object", "additionalProperties": status, "description": "a status per model"},
        "Index": an_object(
            {
                **dict.fromkeys(("server", "version", "docs", "openapi"), TEXT),
                "models": ref("ModelStatuses"),
                "routes": {"type": "object", "additionalProperties": array(TEXT), "description": "calls by kind"},
            }
        ),
        "Liveness": an_object({"status": {"enum": ["Healthy", "Unhealthy"]}}),
    }
