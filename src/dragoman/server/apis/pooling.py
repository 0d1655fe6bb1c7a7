"""vLLM's `/classify` and `/pooling`: classification, and vectors of texts or of their tokens. Source: vLLM's pooling API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.errors import UnsupportedFeature
from dragoman.parameters import Bounds
from dragoman.server.api import JSON_MEDIA_TYPE, Dialects, ModelProfile, model_of_body
from dragoman.server.apis.openai_wire.common import Created
from dragoman.server.apis.openai_wire.describe import struct_body
from dragoman.server.apis.openai_wire.errors import ERRORS
from dragoman.server.apis.openai_wire.fields import check_word, unknown_names
from dragoman.server.apis.openai_wire.pooling import (
    CUT_SCHEMA,
    FORMATS,
    IGNORED_FIELDS,
    TextsCall,
    TextsDialect,
    TextsField,
    TextsOperation,
    TextUsage,
    check_token_ids,
    embed_request,
    encoded_arrays,
    read_cut,
    read_texts,
    texts_schema,
    usage_of,
    vector_writer,
)
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.descriptions import IGNORED, QUESTION, Schema, json_answer, ref
from dragoman.server.operations import Api, PoolingOperation
from dragoman.server.pooling.base import (
    ClassifyRequest,
    Numbers,
    Pooled,
    PoolingKind,
    PoolingService,
    Text,
    classifier,
    embedder,
    token_embedder,
)

TASKS = ("embed", "token_embed", "classify")


# --- bodies and answers -----------------------------------------------------------------------------------------------


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
_WORDS = replace(V1, bounds={"dimensions": Bounds(1)}, ignored=IGNORED_FIELDS)
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
    )
    return {"ClassifyRequest": made(ClassifyBody), "PoolingRequest": made(PoolingBody)}


# --- calls ------------------------------------------------------------------------------------------------------------

_SERVICES: Mapping[str, Callable[[ModelProfile], PoolingService]] = {
    "embed": embedder,
    "token_embed": token_embedder,
    "classify": classifier,
}
_USUAL = {PoolingKind.TOKENS: "token_embed", PoolingKind.CLASSIFY: "classify", PoolingKind.SCORE: "classify"}
"""The task of a call that names none."""
_ONLY_VECTORS = ("dimensions", "normalize", "prompt_name")
_ONLY_CLASSES = ("use_activation", "activation")


async def _classify(call: TextsCall[ClassifyBody]) -> ClassList:
    service = classifier(call.profile)
    labels = service.facts.labels
    made = await _classes(call, service)
    rows = made.values.tolist()
    data = [ClassItem(index, labels[row.index(max(row))], row, len(labels)) for index, row in enumerate(rows)]
    return ClassList(f"classify-{call.request_id}", "list", *_about(call), data, usage_of(made.num_tokens))


async def _pool(call: TextsCall[PoolingBody]) -> PoolingList:
    body, task = call.body, _task(call)
    service = _SERVICES[task](call.profile)
    check_word("encoding_format", body.encoding_format, FORMATS, V1)
    if task == "classify":
        made: Pooled[Any] = await _classes(call, service)
    else:
        made = await _vectors(call, service, is_of_tokens=task == "token_embed")
    written = vector_writer(body.encoding_format)
    data: Any = await encoded_arrays(made.values, lambda index, row: PoolingItem(index, "pooling", written(row)))
    return PoolingList(f"pool-{call.request_id}", "list", *_about(call), data, usage_of(made.num_tokens))


def _idle_of_pool(call: TextsCall[PoolingBody]) -> Iterator[str]:
    yield from unknown_names(call.raw, PoolingBody)
    idle = _ONLY_VECTORS if _task(call) == "classify" else _ONLY_CLASSES
    yield from (name for name in call.raw if name in idle)


CLASSIFY = TextsOperation(ClassifyBody, _classify, V1)
POOL = TextsOperation(PoolingBody, _pool, V1, idle=_idle_of_pool)


def _about(call: TextsCall[Any]) -> tuple[int, str]:
    return int(call.clock()), call.body.model or call.profile.name


def _task(call: TextsCall[PoolingBody]) -> str:
    task = call.body.task
    if task is None:
        service = call.profile.pooling
        return "embed" if service is None else _USUAL.get(service.facts.kind, "embed")
    if task not in _SERVICES:
        raise V1.wrong("task", f"one of {', '.join(_SERVICES)}", task)
    return task


def _texts(call: TextsCall[Any]) -> tuple[TextsField, list[Text]]:
    body = call.body
    if body.input is None and "messages" in call.raw:
        raise UnsupportedFeature("messages are not supported: send the texts as input", param="messages")
    if body.input is None:
        raise V1.missing("input")
    field, texts = read_texts("input", body.input, call.limits, V1)
    check_token_ids(texts, body.allow_token_ids, call.profile, V1)
    return field, texts


async def _classes(call: TextsCall[Any], service: PoolingService) -> Pooled[Numbers]:
    body = call.body
    field, texts = _texts(call)
    activation = body.activation if body.use_activation is None else body.use_activation
    request = ClassifyRequest(
        texts=texts,
        request_id=call.request_id,
        **read_cut(body.truncate_prompt_tokens, V1),
        add_special_tokens=body.add_special_tokens is not False,
        raw=activation is False,
    )
    return await field.asked(service.classify, request)


async def _vectors(call: TextsCall[PoolingBody], service: PoolingService, *, is_of_tokens: bool) -> Pooled[Any]:
    """An array for each text: its vector, or those of its tokens."""
    field, texts = _texts(call)
    request = embed_request(call, texts, call.body.prompt_name)
    if is_of_tokens:
        return await field.asked(service.token_vectors, request)
    return await field.asked(service.embed, request)


# --- the API ----------------------------------------------------------------------------------------------------------

NAME = "pooling"


def set_up(profile: ModelProfile) -> Dialects:
    return {f"{NAME}.classify": TextsDialect(profile, CLASSIFY), NAME: TextsDialect(profile, POOL)}


def _operation(path: str, summary: str, kind: Any, body: str, dialect: str) -> PoolingOperation:
    return PoolingOperation(
        path=path,
        tag="Pooling",
        summary=summary,
        answers=ERRORS.beside(json_answer(kind, "what was made, in the order of the texts", *IGNORED)),
        body={JSON_MEDIA_TYPE: ref(body)},
        example={"model": "default", "input": [QUESTION]},
        dialect=dialect,
        model=model_of_body,
    )


API = Api(
    name=NAME,
    title="Pooling",
    owns=("/classify", "/pooling"),
    set_up=set_up,
    teller=lambda dialects: dialects[NAME],
    schemas=bodies,
    operations=(
        _operation("/classify", "Classify texts, as vLLM does", ClassList, "ClassifyRequest", f"{NAME}.classify"),
        _operation(
            "/pooling",
            "Embed or classify texts, or embed their tokens, as vLLM does",
            PoolingList,
            "PoolingRequest",
            NAME,
        ),
    ),
)
