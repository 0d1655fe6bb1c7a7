"""Bodies and answers of embeddings, and their schemas. Sources: OpenAI API reference, embeddings; vLLM's embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.server.api import ModelProfile
from dragoman.server.apis.openai_wire.describe.bodies import struct_body
from dragoman.server.apis.openai_wire.pooling.texts import CUT_SCHEMA, texts_schema
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.openai_wire.staying import EFFECT, NAME
from dragoman.server.describe.json_schema import TEXT, Schema

FORMATS = ("float", "base64")


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    """The body of an embeddings call; `input` is read by hand, as it may be many things."""

    input: Any = None
    model: str | None = None
    dimensions: int | None = None
    encoding_format: str | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    task: str | None = None
    ttl: float | None = None
    allow_token_ids: bool | None = None


class EmbeddingItem(msgspec.Struct):
    """One text's vector: numbers, or the base64 of their little-endian 32-bit floats."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | Annotated[str, Meta(description="base64 of little-endian 32-bit floats")]


class TextUsage(msgspec.Struct):
    """Tokens that were computed, special ones included."""

    prompt_tokens: int
    total_tokens: int


def usage_of(num_tokens: Iterable[int]) -> TextUsage:
    total = sum(num_tokens)
    return TextUsage(total, total)


class EmbeddingList(msgspec.Struct):
    """The vectors in the order of the texts."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: TextUsage


_EFFECTS = {
    "model": "the default model if absent",
    "dimensions": "keep so many of the first components",
    "encoding_format": "",
    "truncate_prompt_tokens": (
        "cut texts to so many tokens, -1 to what the model takes; too long ones are refused if absent"
    ),
    "add_special_tokens": "put the model's own tokens around texts",
    "allow_token_ids": "token ids are this model's own; without it, only texts are embedded",
    "normalize": "vectors of length 1; as the model does if absent",
    "prompt_name": "one of the model's prompts, which goes before each text",
    "task": "what the vectors are for, as Jina has it; another name of `prompt_name`",
    NAME: EFFECT,
}


def embeddings_body(words: Profile, profile: ModelProfile) -> Schema:
    return struct_body(
        EmbeddingsBody,
        _EFFECTS,
        words,
        profile,
        needed={"input": texts_schema(profile.limits)} | ({"model": TEXT} if words.requires_model else {}),
        defaults={"encoding_format": "float", "add_special_tokens": True, "allow_token_ids": False},
        own={
            "dimensions": {"type": "integer", "minimum": 1},
            "encoding_format": {"enum": list(FORMATS)},
            "truncate_prompt_tokens": CUT_SCHEMA,
        },
        ignored={"user": "an end-user label; nothing is tracked per user"},
    )
