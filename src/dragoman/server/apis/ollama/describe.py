"""The bodies of Ollama's operations as schemas.

Does: describe, with the ranges that are checked. Does not: answer. Used when the document is built.
"""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.parameters import Bounds
from dragoman.server.api import ModelProfile
from dragoman.server.apis.ollama.options import OPTIONS, WORDS, OllamaOptions
from dragoman.server.apis.ollama.request import LEVELS
from dragoman.server.apis.ollama.schema import OllamaChatBody, OllamaGenerateBody
from dragoman.server.apis.openai_wire.describe.bodies import field_schemas
from dragoman.server.apis.openai_wire.describe.parameters import EFFECTS
from dragoman.server.describe.json_schema import (
    INTEGER,
    LENIENT_BOOLEAN,
    NUMBER,
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    described,
    nullable,
    range_of,
    ref,
    struct_schemas,
)

_COMPONENTS = {
    "OllamaGenerateRequest": OllamaGenerateBody,
    "OllamaChatRequest": OllamaChatBody,
}
_TEXTS: Mapping[str, str] = {
    "model": "the model, with or without `:latest`",
    "stream": "answer line by line",
    "keep_alive": "how long the model stays after this call, where models come and go: seconds, or a duration as `5m`",
    "truncate": "true is named as without effect: a prompt that is too long is refused",
    "shift": "true is named as without effect: an answer ends where the context does",
    "logprobs": "tell the log-probabilities of the tokens",
}
_OPTION_EFFECTS = {**EFFECTS, "num_predict": "maximum number of tokens to generate; 0, -1 and -2: up to the context"}


def schemas(profile: ModelProfile) -> dict[str, Schema]:
    """The components of its bodies."""
    made = struct_schemas(tuple(_COMPONENTS.values()))
    told = {kind.__name__ for kind in _COMPONENTS.values()} | {OllamaOptions.__name__}  # with more than their types
    parts = {name: schema for name, schema in made.items() if name.startswith("Ollama") and name not in told}
    bodies = {name: _body(made[kind.__name__], profile) for name, kind in _COMPONENTS.items()}
    made_options = made[OllamaOptions.__name__]
    options = {**made_options, "properties": field_schemas(made_options, _OPTION_EFFECTS, OPTIONS, profile)}
    return {**parts, **bodies, **_other_bodies(), "OllamaRequestOptions": options}


def _other_bodies() -> dict[str, Schema]:
    """The bodies of calls that ask for no text."""
    model = {"model": described(TEXT, _TEXTS["model"])}
    more: dict[str, Schema] = {
        "keep_alive": described(nullable(any_of(NUMBER, TEXT)), _TEXTS["keep_alive"]),
        "options": described(nullable({"type": "object"}), "without effect"),
    }
    cuts = described(nullable(LENIENT_BOOLEAN), "false: a text that is too long is refused", True)
    size = described(nullable({"type": "integer", "minimum": 1}), "keep so many of the first components")
    texts = described(nullable(any_of(TEXT, array(TEXT))), "one text or several")
    verbose = described(nullable(LENIENT_BOOLEAN), "true is named as without effect")
    older_name = {"name": described(TEXT, "an older name of `model`")}
    pulled = {"model": described(TEXT, "ORG/NAME on the hub, with or without `hf.co/` before it, or a served model")}
    how = {
        "stream": described(nullable(LENIENT_BOOLEAN), "tell how far it is, line by line", True),
        "insecure": described(nullable(LENIENT_BOOLEAN), "true is named as without effect"),
    }
    return {
        "OllamaEmbedRequest": an_object(model, {"input": texts, "truncate": cuts, "dimensions": size, **more}),
        "OllamaEmbeddingsRequest": an_object(model, {"prompt": described(nullable(TEXT), "the text"), **more}),
        "OllamaShowRequest": any_of(
            an_object(model, {"verbose": verbose}), an_object(older_name, {"verbose": verbose})
        ),
        "OllamaPullRequest": any_of(an_object(pulled, how), an_object({"name": older_name["name"]}, how)),
    }


def _body(schema: Schema, model: ModelProfile) -> Schema:
    own: dict[str, Schema] = {
        "top_logprobs": INTEGER | range_of(Bounds(0, model.limits.max_logprobs)),
        "options": ref("OllamaRequestOptions"),
        "format": {"anyOf": [{"enum": ["json", ""]}, {"type": "object"}]},
        "think": {"anyOf": [LENIENT_BOOLEAN, {"enum": list(LEVELS)}]},
    }
    required = ["model"]
    properties = field_schemas(
        schema, _TEXTS, WORDS, model, required=required, defaults={"stream": True, "top_logprobs": None}, own=own
    )
    return {**schema, "properties": properties, "required": required}
