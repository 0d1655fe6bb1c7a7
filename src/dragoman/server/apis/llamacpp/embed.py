"""`/embedding`, `/embeddings`. Source: llama.cpp, tools/server/README.md, "POST /embedding"; common_embd_normalize."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.parameters import Bounds
from dragoman.server.apis.llamacpp.errors import ERRORS
from dragoman.server.apis.llamacpp.parameters import INT32_MAX, WORDS
from dragoman.server.apis.llamacpp.schema import LlamaEmbedBody, LlamaEmbedding
from dragoman.server.apis.openai_wire.fields import check_number, unknown_names
from dragoman.server.apis.openai_wire.pooling import TextsCall, TextsOperation, encoded_arrays, read_texts, told_as
from dragoman.server.pooling.base import EmbedRequest, embedder

EUCLIDEAN = 2
NORMS = Bounds(-1, INT32_MAX)


async def _embed(call: TextsCall[LlamaEmbedBody]) -> Any:
    body = call.body
    kind = EUCLIDEAN if body.embd_normalize is None else body.embd_normalize
    check_number("embd_normalize", kind, NORMS, WORDS)
    name, value = ("content", body.content) if body.input is None else ("input", body.input)
    if value is None:
        raise WORDS.payload_fault("content", "content is missing: it must be a text or a list of texts", param=name)
    service = embedder(call.profile)
    given = read_texts(name, value, call.limits, WORDS)
    with told_as({"texts": name}, partial(given.place, name)):
        made = await service.embed(EmbedRequest(texts=given.texts, request_id=call.request_id, normalize=False))
    return await encoded_arrays(made.values, partial(_told, kind))


def _idle(call: TextsCall[LlamaEmbedBody]) -> list[str]:
    overridden = [] if call.body.input is None or "content" not in call.raw else ["content"]
    return [*unknown_names(call.raw, LlamaEmbedBody), *overridden]


EMBED = TextsOperation(LlamaEmbedBody, _embed, WORDS, ERRORS, _idle)


def _told(kind: int, index: int, row: npt.NDArray[np.float32]) -> Any:
    return LlamaEmbedding(index, [scaled(row, kind).tolist()])


def scaled(row: npt.NDArray[np.float32], kind: int) -> npt.NDArray[np.float32]:
    """The vector as it is (-1), as fractions of 32,760 of its largest number (0), or of length 1 in the `kind`-norm."""
    if kind == -1:
        return row
    lengths = np.abs(row.astype(np.float64))
    largest = float(lengths.max(initial=0.0))
    if largest == 0.0:
        return row
    size = largest / 32760.0 if kind == 0 else largest * float(np.sum((lengths / largest) ** kind)) ** (1 / kind)
    return (row / size).astype(np.float32)
