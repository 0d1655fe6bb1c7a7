"""`/embedding` and `/embeddings`: texts become vectors, in llama.cpp's shape.

Does: read the texts, ask the model's service, scale the vectors. Does not: compute.
Set up for each served model; called on the event loop.
Source: llama.cpp, tools/server/README.md, "POST /embedding"; its function common_embd_normalize.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.parameters import Bounds
from dragoman.server.api import CallSwitches, HttpCall, Reply, json_reply
from dragoman.server.apis.llamacpp.errors import LlamaErrors
from dragoman.server.apis.llamacpp.parameters import INT32_MAX, WORDS
from dragoman.server.apis.llamacpp.schema import LlamaEmbedBody, LlamaEmbedding
from dragoman.server.apis.openai_wire.fields import check_number, decode_object, read_struct, unknown_names
from dragoman.server.apis.openai_wire.pooling.rows import encoded_rows
from dragoman.server.apis.openai_wire.pooling.texts import read_texts, told_as
from dragoman.server.pooling import AnsweringDialect, EmbedRequest, embedder
from dragoman.server.responder import note_ignored

EUCLIDEAN = 2


class EmbedDialect(LlamaErrors, AnsweringDialect):
    """Both operations for one model."""

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        raw = decode_object(http, WORDS)
        service = embedder(self._profile)
        body = read_struct(raw, LlamaEmbedBody, WORDS)
        kind = EUCLIDEAN if body.embd_normalize is None else body.embd_normalize
        check_number("embd_normalize", kind, Bounds(-1, INT32_MAX), WORDS)
        name, value = ("content", body.content) if body.input is None else ("input", body.input)
        if value is None:
            raise WORDS.payload_fault("content", "content is missing: it must be a text or a list of texts", param=name)
        given = read_texts(name, value, self._profile.limits, WORDS)
        idle = [*unknown_names(raw, LlamaEmbedBody), *(["content"] if name == "input" and "content" in raw else [])]
        headers = note_ignored(switches, idle)
        with told_as({"texts": name}, partial(given.place, name)):
            made = await service.embed(EmbedRequest(texts=given.texts, request_id=http.request_id, normalize=False))
        return json_reply(200, await encoded_rows(made.vectors, partial(_told, kind)), headers)


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
