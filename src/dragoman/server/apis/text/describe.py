"""The bodies of the plain-text service as schemas, and its errors.

Does: describe. Does not: answer. Used when the document is built.
"""

from __future__ import annotations

from dragoman.server.api import TEXT_MEDIA_TYPE
from dragoman.server.apis.text.dialect import ERROR_STATUS, TextError, TextOptions
from dragoman.server.describe.answers import ErrorFamily, json_errors
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
)

ONE_ERRORS = ErrorFamily(ERROR_STATUS, lambda status: {TEXT_MEDIA_TYPE: TEXT})
BATCH_ERRORS = json_errors(ERROR_STATUS, TextError)


def schemas(options: TextOptions) -> dict[str, Schema]:
    """The components of its bodies."""
    return {
        "GenerateOneRequest": _generate_one(),
        "GenerateBatchRequest": _generate_batch(options),
    }


def _generate_one() -> Schema:
    return an_object(
        {
            "id": described(any_of(TEXT, NUMBER), "the caller's name for the prompt"),
            "prompt": described(NON_EMPTY_TEXT, "the text to continue"),
            "maxLength": _max_length("tokens to generate at most, the end-of-sequence token included"),
        }
    )


def _generate_batch(options: TextOptions) -> Schema:
    own = _generate_one()["properties"]
    prompt = an_object(
        {"id": own["id"], "prompt": own["prompt"]}, {"maxLength": _optional(_max_length("wins over the shared one"))}
    )
    prompts = {**array(prompt, minItems=1, maxItems=options.limits.max_prompts), "description": "ids must differ"}
    return an_object({"prompts": prompts}, {"maxLength": _optional(_max_length("for prompts without their own"))})


def _max_length(text: str) -> Schema:
    return {"description": text, "type": "integer", "minimum": 1}


def _optional(schema: Schema) -> Schema:
    text = schema["description"]
    return described(nullable({name: value for name, value in schema.items() if name != "description"}), text)
