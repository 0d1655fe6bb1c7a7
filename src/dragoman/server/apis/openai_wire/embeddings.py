"""Embeddings in OpenAI's wire format. On the event loop. Sources: OpenAI API reference, embeddings; vLLM's embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.errors import UnsupportedFeature
from dragoman.server.api import ModelProfile
from dragoman.server.apis.openai_wire.describe import struct_body
from dragoman.server.apis.openai_wire.fields import check_word, shown, unknown_names
from dragoman.server.apis.openai_wire.pooling import (
    CUT,
    CUT_SCHEMA,
    TextsCall,
    TextsOperation,
    encoded_arrays,
    read_cut,
    read_texts,
    texts_schema,
    told_as,
    vector_writer,
)
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.openai_wire.staying import EFFECT, NAME, is_idle, note_ttl
from dragoman.server.describe.json_schema import TEXT, Schema
from dragoman.server.pooling.base import EmbedRequest, Text, embedder

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


# --- calls ------------------------------------------------------------------------------------------------------------


async def _embed(call: TextsCall[EmbeddingsBody]) -> EmbeddingList:
    profile, body, words = call.profile, call.body, call.words
    service = embedder(profile)
    check_body(call.raw, body, words)
    given = read_texts("input", body.input, call.limits, words)
    check_token_ids(given.texts, body.allow_token_ids, profile, words)
    names = {"texts": "input", "max_tokens": CUT} | ({} if body.task is None else {"prompt_name": "task"})
    request = embed_request(call, given.texts, body.task if body.prompt_name is None else body.prompt_name)
    with told_as(names, partial(given.place, "input")):
        made = await service.embed(request)
    told = vector_writer(body.encoding_format)
    data = await encoded_arrays(made.values, lambda index, row: EmbeddingItem("embedding", index, told(row)))
    return EmbeddingList("list", data, body.model or profile.name, usage_of(made.num_tokens))


def embed_request(call: TextsCall[Any], texts: Sequence[Text], prompt_name: str | None) -> EmbedRequest:
    """The request of a body with vLLM's fields. Raises: InvalidRequest."""
    body = call.body
    cut = read_cut(body.truncate_prompt_tokens, call.words)
    return EmbedRequest(
        texts=texts,
        request_id=call.request_id,
        prompt_name=prompt_name,
        truncation=cut.truncation,
        max_tokens=cut.max_tokens,
        dimensions=body.dimensions,
        normalize=body.normalize,
        add_special_tokens=body.add_special_tokens is not False,
    )


def _idle(call: TextsCall[EmbeddingsBody]) -> Iterator[str]:
    yield from unknown_names(call.raw, EmbeddingsBody)
    if call.body.ttl is not None and is_idle():
        yield NAME


def embeddings(words: Profile) -> TextsOperation[EmbeddingsBody]:
    return TextsOperation(EmbeddingsBody, _embed, words, idle=_idle)


def check_token_ids(texts: Sequence[Text], is_allowed: bool | None, profile: ModelProfile, words: Profile) -> None:
    """Raises: InvalidParameter for token ids that may be another model's: LangChain sends those of OpenAI's."""
    if is_allowed or (is_allowed is None and profile.settings.get("allow_token_ids")):
        return
    if not all(isinstance(text, str) for text in texts):
        message = (
            "input holds token ids, which may be those of another model: send texts (LangChain does with "
            "check_embedding_ctx_length=False), or say allow_token_ids: true if they are this model's"
        )
        raise words.fault("input", "token_ids", message)


def check_body(raw: Mapping[str, Any], body: EmbeddingsBody, words: Profile) -> None:
    if body.ttl is not None:
        note_ttl(body.ttl, words)
    words.check_model(body.model)
    if body.input is None and "messages" in raw:
        raise UnsupportedFeature("messages cannot be embedded: send the texts as input", param="messages")
    if body.input is None:
        raise words.missing("input")
    if None not in (body.task, body.prompt_name) and body.task != body.prompt_name:
        raise words.wrong("task", f"the same as prompt_name ({shown(body.prompt_name)})", body.task, "conflict")
    check_word("encoding_format", body.encoding_format, FORMATS, words)
