"""Bodies and answers of vLLM's `/classify` and `/pooling`, and their schemas.

Does: name the fields. Does not: check values. Used on the event loop, and when the document is built.
Source: vLLM's pooling API.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.server.api import ModelProfile
from dragoman.server.apis.openai_wire.common import Created
from dragoman.server.apis.openai_wire.embeddings.schema import FORMATS, TextUsage
from dragoman.server.apis.openai_wire.pooling.ignored import IGNORED
from dragoman.server.apis.openai_wire.pooling.texts import MODEL, switch_schema, texts_schema
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.describe.json_schema import TEXT, Schema, an_object, described, nullable

TASKS = ("embed", "token_embed", "classify")


class ClassifyBody(msgspec.Struct, kw_only=True):
    """The body of POST /classify; `input` is read by hand, as it may be many things."""

    input: Any = None
    model: str | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    allow_token_ids: bool | None = None
    user: str | None = None
    priority: int | None = None


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


def bodies(profile: ModelProfile) -> dict[str, Schema]:
    """The schemas of the bodies."""
    switch = switch_schema(V1)
    shared = {
        "model": MODEL,
        "truncate_prompt_tokens": described(
            nullable({"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]}),
            "cut texts to so many tokens, -1 to what the model takes; too long ones are refused if absent",
        ),
        "add_special_tokens": described(switch, "put the model's own tokens around texts", True),
        "use_activation": described(switch, "false tells the outputs themselves, not probabilities", True),
        "activation": described(switch, "an older name of `use_activation`"),
        "allow_token_ids": described(switch, "token ids are this model's own; without it, only texts are read", False),
        **{name: {"description": f"without effect: {IGNORED[name]}"} for name in ("user", "priority")},
    }
    more = {
        "task": described(nullable({"enum": list(TASKS)}), "what is made; what the model is for if absent"),
        "dimensions": described(nullable({"type": "integer", "minimum": 1}), "keep so many of the first components"),
        "encoding_format": nullable({"enum": list(FORMATS), "default": "float"}),
        "normalize": described(switch, "vectors of length 1; as the model does if absent"),
        "prompt_name": described(
            nullable(TEXT), "one of the model's prompts; of late interaction: query, or document if absent"
        ),
    }
    needed = {"input": texts_schema(profile.limits)}
    return {"ClassifyRequest": an_object(needed, shared), "PoolingRequest": an_object(needed, shared | more)}
