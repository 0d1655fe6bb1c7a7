"""The bodies of Ollama's operations as schemas. Used when the document is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from dragoman.parameters import Bounds
from dragoman.server.api import ModelProfile
from dragoman.server.apis.ollama.options import OPTIONS, WORDS, OllamaOptions
from dragoman.server.apis.ollama.request import LEVELS
from dragoman.server.apis.ollama.schema import (
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
    OllamaPullBody,
    OllamaShowBody,
)
from dragoman.server.apis.openai_wire.describe import EFFECTS, struct_body
from dragoman.server.describe.json_schema import (
    INTEGER,
    LENIENT_BOOLEAN,
    TEXT,
    Schema,
    any_of,
    described,
    range_of,
    ref,
    struct_schemas,
)

_TEXTS: Mapping[str, str] = {
    "model": "the model, with or without `:latest`",
    "stream": "answer line by line",
    "keep_alive": "how long the model stays after this call, where models come and go: seconds, or a duration as `5m`",
    "truncate": "true is named as without effect: a prompt that is too long is refused",
    "shift": "false: the answer ends where the context is full, even if the server shifts contexts",
    "logprobs": "tell the log-probabilities of the tokens",
}
_OTHER_TEXTS: Mapping[str, str] = {
    **_TEXTS,
    "input": "one text or several",
    "prompt": "the text",
    "truncate": "false: a text that is too long is refused",
    "dimensions": "keep this number of the first components",
    "options": "without effect",
    "name": "an older name of `model`",
    "verbose": "true is named as without effect",
    "insecure": "true is named as without effect",
    "stream": "tell how far it is, line by line",
}
_OPTION_EFFECTS = {
    **EFFECTS,
    "num_predict": "maximum number of tokens to generate; 0, -1 and -2: up to the context",
    "num_keep": "tokens of the prompt that stay when a full context is shifted; -1: all",
}


def schemas(profile: ModelProfile) -> dict[str, Schema]:
    made = struct_schemas((OllamaGenerateBody, OllamaChatBody))
    own: dict[str, Schema] = {
        "top_logprobs": INTEGER | range_of(Bounds(0, profile.limits.max_logprobs)),
        "options": ref("OllamaRequestOptions"),
        "format": {"anyOf": [{"enum": ["json", ""]}, {"type": "object"}]},
        "think": {"anyOf": [LENIENT_BOOLEAN, {"enum": list(LEVELS)}]},
    }
    defaults = {"stream": True, "top_logprobs": None}
    body = partial(
        struct_body, effects=_TEXTS, profile=WORDS, model=profile, needed={"model": TEXT}, defaults=defaults, own=own
    )
    return {
        **{name: schema for name, schema in made.items() if name.startswith("Ollama")},
        "OllamaGenerateRequest": body(OllamaGenerateBody),
        "OllamaChatRequest": body(OllamaChatBody),
        "OllamaRequestOptions": struct_body(OllamaOptions, _OPTION_EFFECTS, OPTIONS, profile, needed={}),
        **_other_bodies(profile),
    }


def _other_bodies(profile: ModelProfile) -> dict[str, Schema]:
    model, older_name = {"model": TEXT}, {"name": TEXT}
    pulled = {"model": described(TEXT, "ORG/NAME on the hub, with or without `hf.co/` before it, or a served model")}
    body = partial(
        struct_body,
        effects=_OTHER_TEXTS,
        profile=replace(WORDS, bounds={"dimensions": Bounds(1)}),
        model=profile,
        defaults={"truncate": True, "stream": True},
        own={"options": {"type": "object"}, "prompt": TEXT},
    )
    return {
        "OllamaEmbedRequest": body(OllamaEmbedBody, needed=model),
        "OllamaEmbeddingsRequest": body(OllamaEmbeddingsBody, needed=model),
        "OllamaShowRequest": any_of(body(OllamaShowBody, needed=model), body(OllamaShowBody, needed=older_name)),
        "OllamaPullRequest": any_of(body(OllamaPullBody, needed=pulled), body(OllamaPullBody, needed=older_name)),
    }
