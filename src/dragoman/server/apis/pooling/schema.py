"""Bodies and answers of vLLM's `/classify` and `/pooling`, and their schemas. Source: vLLM's pooling API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.parameters import Bounds
from dragoman.server.api import ModelProfile
from dragoman.server.apis.openai_wire.common import Created
from dragoman.server.apis.openai_wire.describe.bodies import struct_body
from dragoman.server.apis.openai_wire.embeddings.schema import FORMATS, TextUsage
from dragoman.server.apis.openai_wire.pooling.ignored import IGNORED
from dragoman.server.apis.openai_wire.pooling.texts import CUT_SCHEMA, texts_schema
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.describe.json_schema import Schema

TASKS = ("embed", "token_embed", "classify")


class ClassifyBody(msgspec.Struct, kw_only=True):
    """The body of POST /classify."""

    input: Any = None
    model: str | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    allow_token_ids: bool | None = None


class PoolingBody(ClassifyBody, kw_only=True):
    """The body of POST /pooling."""

    task: str | None = None
    dimensions: int | None = None
    encoding_format: str | None = None
    normalize: bool | None = None
    prompt_name: str | None = None


class ClassItem(msgspec.Struct):
    """One text's classes: the likeliest label, and the probability of each."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassList(msgspec.Struct):
    """The classes in the order of the texts."""

    id: str
    object: Literal["list"]
    created: Created
    model: str
    data: list[ClassItem]
    usage: TextUsage


class PoolingItem(msgspec.Struct):
    """The result of one text: a vector, probabilities, or a vector of each token; numbers or their base64."""

    index: int
    object: Literal["pooling"]
    data: (
        list[float | list[float]]
        | Annotated[str, Meta(description="base64 of little-endian 32-bit floats, row after row")]
    )


class PoolingList(msgspec.Struct):
    """The results of the texts, in their order."""

    id: str
    object: Literal["list"]
    created: Created
    model: str
    data: list[PoolingItem]
    usage: TextUsage


_EFFECTS: Mapping[str, str] = {
    "model": "the default model if absent",
    "truncate_prompt_tokens": (
        "cut texts to this number of tokens, -1 to what the model takes; too long ones are refused if absent"
    ),
    "add_special_tokens": "put the model's own tokens around texts",
    "use_activation": "false tells the outputs themselves, not probabilities",
    "activation": "an older name of `use_activation`",
    "allow_token_ids": "token ids are this model's own; without it, only texts are read",
    "task": "what is made; what the model is for if absent",
    "dimensions": "keep this number of the first components",
    "normalize": "vectors of length 1; as the model does if absent",
    "prompt_name": "one of the model's prompts; of late interaction: query, or document if absent",
}
_WORDS = replace(V1, bounds={"dimensions": Bounds(1)})
_OWN_TYPES: Mapping[str, Schema] = {
    "truncate_prompt_tokens": CUT_SCHEMA,
    "task": {"enum": list(TASKS)},
    "encoding_format": {"enum": list(FORMATS), "default": "float"},
}


def bodies(profile: ModelProfile) -> dict[str, Schema]:
    made = partial(
        struct_body,
        effects=_EFFECTS,
        profile=_WORDS,
        model=profile,
        needed={"input": texts_schema(profile.limits)},
        defaults={"add_special_tokens": True, "use_activation": True, "allow_token_ids": False},
        own=_OWN_TYPES,
        ignored=IGNORED,
    )
    return {"ClassifyRequest": made(ClassifyBody), "PoolingRequest": made(PoolingBody)}
