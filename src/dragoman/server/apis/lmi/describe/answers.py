"""The answers and errors of LMI's routes as schemas: whole bodies, and the objects of streams.

Does: describe. Does not: answer. Used when the document is built.
"""

from __future__ import annotations

from dragoman.server.apis.lmi.errors import ERRORS, MODEL_ERROR
from dragoman.server.apis.lmi.objects import LMI_FINISH
from dragoman.server.describe.answers import Answer, ErrorFamily
from dragoman.server.describe.json_schema import (
    BOOLEAN,
    INTEGER,
    NULL,
    NUMBER,
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    ref,
)
from dragoman.server.framing import JSON_MEDIA_TYPE

_NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
FINISH: Schema = {"enum": sorted({*LMI_FINISH.values(), "error"})}


def _content(status: int) -> dict[str, Schema]:
    return {JSON_MEDIA_TYPE: ref("LmiError" if status == MODEL_ERROR else "FrontError")}


LMI_ERRORS = ErrorFamily({kind: row.status for kind, row in ERRORS.items()}, _content)


def front_answer(description: str) -> Answer:
    """An error of the front end."""
    return Answer(description, {JSON_MEDIA_TYPE: ref("FrontError")})


def answer_schemas() -> dict[str, Schema]:
    """The components of all answers."""
    token = an_object(
        {"id": INTEGER, "text": TEXT, "log_prob": _NUMBER_OR_NULL},
        {
            "special_token": {**BOOLEAN, "description": "with lmi_version=0.26"},
            "logprob": {**NUMBER, "description": "with tgi_compat"},
            "special": {**BOOLEAN, "description": "with tgi_compat"},
        },
    )
    sequence: dict[str, Schema] = {
        "finish_reason": FINISH,
        "generated_tokens": INTEGER,
        "tokens": array(ref("LmiToken")),
        "inputs": TEXT,
        "prefill": array(ref("LmiPromptToken")),
        "top_tokens": array(array(ref("LmiToken"))),
        "seed": {**INTEGER, "description": "with tgi_compat"},
        "input_length": {**INTEGER, "description": "with tgi_compat, in streams"},
    }
    other = an_object({"generated_text": TEXT, "finish_reason": FINISH}, sequence)
    details = an_object({"finish_reason": FINISH}, {**sequence, "best_of_sequences": array(other)})
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
        "LmiPromptToken": prompt_token(),
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


def prompt_token() -> Schema:
    """A token of the prompt."""
    return an_object(
        {"id": INTEGER, "text": TEXT, "log_prob": _NUMBER_OR_NULL},
        {"logprob": _NUMBER_OR_NULL, "top_tokens": array(ref("LmiToken"))},
    )


def error_schemas() -> dict[str, Schema]:
    """The components of all error bodies."""
    code: Schema = {**INTEGER, "description": "the HTTP status"}
    nothing = {"generated_tokens": NULL, "inputs": NULL}
    failed: Schema = {
        "generated_text": {"const": ""},
        "details": an_object({"finish_reason": {"const": "error"}, **nothing}, {"tokens": NULL}),
        "error": TEXT,
        "code": code,
    }
    tgi_type = {"error_type": {**TEXT, "description": "with tgi_compat"}}
    token = an_object({"id": {"const": -1}, "text": {"const": ""}, "log_prob": {"const": -1}, "special_token": BOOLEAN})
    dynamic = an_object({"code": code, "message": TEXT, "error": TEXT}, text="in dynamic batch mode")
    return {
        "FrontError": an_object({"code": code, "type": TEXT, "message": TEXT}, {"error": TEXT, **tgi_type}),
        "LmiError": any_of(
            an_object(failed, tgi_type, "a generation parameter is wrong, or the generation failed"),
            an_object({"error": TEXT, "code": code}, tgi_type, "the payload is wrong"),
            dynamic,
            ref("LmiStreamError"),
        ),
        "LmiStreamError": any_of(
            an_object({"token": token, **failed}, tgi_type, "the last object of a stream that failed, or its only one"),
            dynamic,
        ),
        "LmiChatError": an_object({"error": TEXT, "code": code}),
    }
