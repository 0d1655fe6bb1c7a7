"""The bodies, answers and errors of Text Generation Inference's routes as schemas.

Does: describe. Does not: answer. Used when the document is built.
"""

from __future__ import annotations

from dragoman.server.apis.lmi.describe.answers import FINISH, prompt_token
from dragoman.server.apis.lmi.describe.bodies import form, parameters
from dragoman.server.apis.lmi.parameters.table import TGI, rows_for
from dragoman.server.apis.tgi.dialect import ERRORS
from dragoman.server.describe.answers import ErrorFamily
from dragoman.server.describe.json_schema import (
    BOOLEAN,
    INTEGER,
    LENIENT_BOOLEAN,
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
from dragoman.server.framing import JSON_MEDIA_TYPE
from dragoman.types import Limits

_INTEGER_OR_NULL: Schema = {"type": ["integer", "null"]}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}

TGI_ERRORS = ErrorFamily(
    {kind: row.status for kind, row in ERRORS.items()}, lambda status: {JSON_MEDIA_TYPE: ref("TgiError")}
)


def schemas(limits: Limits) -> dict[str, Schema]:
    """The components of its bodies and answers."""
    return {
        "TgiParameters": parameters(rows_for(TGI), TGI, "", limits),
        "TgiRequest": an_object(
            {"inputs": described(NON_EMPTY_TEXT, "the prompt")},
            {
                "parameters": nullable(ref("TgiParameters")),
                "stream": described(nullable(LENIENT_BOOLEAN), "on `/` only: stream the answer", False),
            },
        ),
        "LmiForm": form(),
        "LmiPromptToken": prompt_token(),
        "TgiError": an_object(
            {"error": TEXT, "error_type": {"enum": sorted({row.error_type for row in ERRORS.values()})}}
        ),
        **_answers(),
    }


def _answers() -> dict[str, Schema]:
    token = an_object({"id": INTEGER, "text": TEXT, "logprob": NUMBER, "special": BOOLEAN}, {"log_prob": NUMBER})
    tokens = array(ref("TgiToken"))
    sequence: dict[str, Schema] = {
        "finish_reason": FINISH,
        "generated_tokens": INTEGER,
        "seed": _INTEGER_OR_NULL,
        "prefill": array(ref("LmiPromptToken")),
        "tokens": tokens,
    }
    other = an_object({**sequence, "generated_text": TEXT}, {"top_tokens": array(tokens)})
    details = an_object(sequence, {"inputs": TEXT, "top_tokens": array(tokens), "best_of_sequences": array(other)})
    stream_details = an_object(
        {"finish_reason": FINISH, "generated_tokens": INTEGER, "input_length": INTEGER, "seed": _INTEGER_OR_NULL},
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
    return {
        "TgiToken": token,
        "TgiAnswer": an_object({"generated_text": TEXT}, {"details": details}),
        "TgiStreamObject": any_of(event, ref("TgiError")),
    }
