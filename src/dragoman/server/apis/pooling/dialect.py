"""vLLM's `/classify` and `/pooling`. Called on the event loop. Source: vLLM's pooling API."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.errors import UnsupportedFeature
from dragoman.server.api import ModelProfile
from dragoman.server.apis.openai_wire.embeddings.dialect import check_token_ids
from dragoman.server.apis.openai_wire.embeddings.schema import FORMATS, usage_of
from dragoman.server.apis.openai_wire.fields import check_word, unknown_names
from dragoman.server.apis.openai_wire.pooling.dialect import TextsCall, TextsOperation
from dragoman.server.apis.openai_wire.pooling.rows import encoded_arrays
from dragoman.server.apis.openai_wire.pooling.texts import CUT, Texts, read_cut, read_texts, told_as
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.apis.pooling.schema import (
    ClassifyBody,
    ClassItem,
    ClassList,
    PoolingBody,
    PoolingItem,
    PoolingList,
)
from dragoman.server.pooling import (
    Classes,
    ClassifyRequest,
    EmbedRequest,
    PoolingKind,
    PoolingService,
    classifier,
    embedder,
    token_embedder,
)

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
    rows: Sequence[npt.NDArray[np.float32]]
    if task == "classify":
        classes = await _classes(call, service)
        rows, num_tokens = list(classes.values), classes.num_tokens
    else:
        rows, num_tokens = await _vectors(call, service, is_of_tokens=task == "token_embed")
    data: Any = await encoded_arrays(rows, _as_base64 if body.encoding_format == "base64" else _as_numbers)
    return PoolingList(f"pool-{call.request_id}", "list", *_about(call), data, usage_of(num_tokens))


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


def _texts(call: TextsCall[Any]) -> Texts:
    body = call.body
    if body.input is None and "messages" in call.raw:
        raise UnsupportedFeature("messages are not supported: send the texts as input", param="messages")
    if body.input is None:
        raise V1.fault("input", "missing", "input is missing")
    given = read_texts("input", body.input, call.limits, V1)
    check_token_ids(given.texts, body.allow_token_ids, call.profile, V1)
    return given


async def _classes(call: TextsCall[Any], service: PoolingService) -> Classes:
    body, given = call.body, _texts(call)
    cut = read_cut(body.truncate_prompt_tokens, V1)
    activation = body.activation if body.use_activation is None else body.use_activation
    with told_as({"texts": "input", "max_tokens": CUT}, partial(given.place, "input")):
        return await service.classify(
            ClassifyRequest(
                texts=given.texts,
                request_id=call.request_id,
                truncation=cut.truncation,
                max_tokens=cut.max_tokens,
                add_special_tokens=body.add_special_tokens is not False,
                raw=activation is False,
            )
        )


async def _vectors(
    call: TextsCall[PoolingBody], service: PoolingService, *, is_of_tokens: bool
) -> tuple[Sequence[npt.NDArray[np.float32]], tuple[int, ...]]:
    """An array for each text, and the number of its tokens."""
    body, given = call.body, _texts(call)
    cut = read_cut(body.truncate_prompt_tokens, V1)
    request = EmbedRequest(
        texts=given.texts,
        request_id=call.request_id,
        prompt_name=body.prompt_name,
        truncation=cut.truncation,
        max_tokens=cut.max_tokens,
        dimensions=body.dimensions,
        normalize=body.normalize,
        add_special_tokens=body.add_special_tokens is not False,
    )
    with told_as({"texts": "input", "max_tokens": CUT}, partial(given.place, "input")):
        if is_of_tokens:
            made = await service.token_vectors(request)
            return made.rows, made.num_tokens
        embedded = await service.embed(request)
    return list(embedded.vectors), embedded.num_tokens


def _as_numbers(index: int, row: npt.NDArray[Any]) -> PoolingItem:
    return PoolingItem(index, "pooling", row.tolist())


def _as_base64(index: int, row: npt.NDArray[Any]) -> PoolingItem:
    return PoolingItem(index, "pooling", b64encode(row.astype("<f4", copy=False).tobytes()).decode())
